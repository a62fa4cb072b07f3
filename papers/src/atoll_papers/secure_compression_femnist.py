"""Compression underneath secure sums: digits by their writers, in place of FEMNIST. Source and protocol: `atoll_papers.compression`."""

from __future__ import annotations

from dataclasses import replace

from .compression.entry_of import entry_of
from .compression.sweep import CompressionTask

__all__ = ["ENTRY"]

_TASK = CompressionTask(
    "writers", "FEMNIST", 40, {"name": "perceptron", "features": 784, "hidden": 32, "outputs": 10},
    {"lr": 0.1, "epochs": 1, "batch_size": 10}, cohort=20, rounds=60,
)  # fmt: skip
_QUICK = replace(
    _TASK, model={**_TASK.model, "hidden": 16}, cohort=10, rounds=10, data={"public": 10, "clients": 60, "tests": 2000}
)  # fmt: skip

ENTRY = entry_of(
    "secure-compression-femnist", _TASK, _QUICK, "MNIST and its writers below ATOLL_DATA", ("qmnist_writers",),
    "digits by 509 writers, a perceptron of 25,450 parameters",
)  # fmt: skip
