"""Asking a program to end early."""

from __future__ import annotations

__all__ = ["StopRun"]


class StopRun(Exception):  # noqa: N818 - a request, not an error
    """Raise it in a callback on a run's records to end the run after this record; its text is the reason."""
