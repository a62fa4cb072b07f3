"""What you need to test parts of your own: strategies, crashes on purpose, a timetable of replies, and conformance laws."""

from __future__ import annotations

from .crash import Killed, Life, killed_and_resumed, live
from .timetable import Timetable

__all__ = ["Killed", "Life", "Timetable", "killed_and_resumed", "live"]
