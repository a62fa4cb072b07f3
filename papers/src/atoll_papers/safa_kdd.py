"""SAFA on KDD Cup 1999: the thesis's tables and statements against ours. Protocol: `atoll_papers.safa`."""

from __future__ import annotations

from .safa.runs import entry
from .safa.tasks import KDD

__all__ = ["ENTRY"]

ENTRY = entry(KDD, "KDD Cup 1999, filtered", "kddcup99_tcp")
