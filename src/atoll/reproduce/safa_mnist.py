"""SAFA on MNIST: the tables and statements of the thesis about it, and ours beside them. Protocol: `atoll.reproduce.safa`."""

from __future__ import annotations

from .safa.runs import entry
from .safa.tasks import MNIST

__all__ = ["ENTRY"]

ENTRY = entry(MNIST, "MNIST")
