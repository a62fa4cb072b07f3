"""Compression underneath secure sums: tweets read by characters, in place of Sent140's. Source and protocol: `atoll_papers.compression`."""

from __future__ import annotations

from dataclasses import replace

from .compression.entry_of import entry_of
from .compression.sweep import CompressionTask

__all__ = ["ENTRY"]

_TASK = CompressionTask(
    "tweets", "Sent140", 32, {"name": "characters", "embedding": 16, "hidden": 32},
    {"name": "FedAdam", "lr": 0.5, "server_lr": 0.01, "epochs": 1, "batch_size": 10}, cohort=20, rounds=80, more={"compile": "always"},
)  # fmt: skip
_QUICK = replace(
    _TASK, training={**_TASK.training, "batch_size": 20}, cohort=4, rounds=3, data={"public": 5, "clients": 40, "tests": 500},
    more={"compile": "never"},
)  # fmt: skip

ENTRY = entry_of(
    "secure-compression-sent140", _TASK, _QUICK, "the tweets of Sent140 below ATOLL_DATA", ("sentiment140",),
    "tweets of 475 clients, an LSTM over characters of 8,002 parameters",
)  # fmt: skip
