"""What the room of trees adds: a kind of job."""

from __future__ import annotations

__all__ = ["JOBS"]

JOBS = {"trees": "atoll.trees.job:Trees"}
"""Maps ``job:`` of a configuration to its class."""
