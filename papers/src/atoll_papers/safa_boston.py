"""SAFA on Boston housing: the thesis's tables and statements against ours. Protocol: `atoll_papers.safa`."""

from __future__ import annotations

from .safa.runs import entry
from .safa.tasks import BOSTON

__all__ = ["ENTRY"]

ENTRY = entry(BOSTON, "Boston housing", "boston_housing")
