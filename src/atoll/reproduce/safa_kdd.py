"""SAFA on KDD Cup 1999: the tables and statements of the thesis about it, and ours beside them. Protocol: `atoll.reproduce.safa`."""

from __future__ import annotations

from .safa.runs import entry
from .safa.tasks import KDD

__all__ = ["ENTRY"]

ENTRY = entry(KDD, "KDD Cup 1999, filtered")
