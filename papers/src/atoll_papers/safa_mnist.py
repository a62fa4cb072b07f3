"""SAFA on MNIST: the thesis's tables and statements against ours. Protocol: `atoll_papers.safa`."""

from __future__ import annotations

from .safa.runs import entry
from .safa.tasks import MNIST

__all__ = ["ENTRY"]

ENTRY = entry(MNIST, "MNIST", "mnist")
