"""What the room of vertical models adds: a kind of job."""

from __future__ import annotations

__all__ = ["JOBS"]

JOBS = {"vertical": "atoll.vertical.job:Vertical"}
"""Maps ``job:`` of a configuration to its class."""
