"""SAFA without foresight, its extensions and its rivals on convex tasks. Protocol: `atoll_papers.safa.study`."""

from __future__ import annotations

from atoll.reproduce import Entry

from .safa.runs import SOURCE
from .safa.study_claims import claims

__all__ = ["ENTRY"]

ENTRY = Entry(
    name="safa-study",
    title="SAFA without foresight, its extensions and its rivals: the cost of rounds, and the time to the loss of FedAvg",
    source=f"Tasks of {SOURCE}; the study is ours",
    run=claims,
    needs="Boston housing and KDD Cup 1999, filtered, below ATOLL_DATA; nothing with --quick, which runs on bundled digits",
    data=("boston_housing", "kddcup99_tcp"),
    quick_data=(),
)
