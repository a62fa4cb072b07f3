"""Compression underneath secure sums: attributes of people, in place of CelebA's images. Source and protocol: `atoll_papers.compression`."""

from __future__ import annotations

from dataclasses import replace

from .compression.entry_of import entry_of
from .compression.sweep import CompressionTask

__all__ = ["ENTRY"]

_TASK = CompressionTask(
    "celebrities", "CelebA", 30, {"name": "perceptron", "features": 39, "hidden": 64, "outputs": 2},
    {"lr": 0.1, "epochs": 1, "batch_size": 10}, cohort=50, rounds=60,
)  # fmt: skip
_QUICK = replace(_TASK, cohort=20, rounds=15, data={"public": 50, "clients": 300, "tests": 2000})

ENTRY = entry_of(
    "secure-compression-celeba", _TASK, _QUICK, "CelebA's attributes below ATOLL_DATA", ("celeba_attributes",),
    "attributes of 9,077 people, a perceptron of 2,690 parameters",
)  # fmt: skip
