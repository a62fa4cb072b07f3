"""What the room of statistics adds: a kind of job."""

from __future__ import annotations

__all__ = ["JOBS"]

JOBS = {"statistics": "atoll.statistics.job:Statistics"}
