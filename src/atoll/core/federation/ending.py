"""Asking a program to end early."""

from __future__ import annotations

__all__ = ["StopRun"]


class StopRun(Exception):  # noqa: N818 - a request, not an error
    """Whoever is told of a run's records raises it to end the run after this record; its text is the reason."""
