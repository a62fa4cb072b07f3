"""What the room of fitting adds: a kind of job, and its methods."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {"fit": "atoll.fitting.job:Fit"}
"""Maps ``job:`` of a configuration to its class."""

PARTS = (
    PartKind("fit method", ("atoll.fitting.methods",), is_class("atoll.fitting.method:FitMethod"), "What a fit computes from sums.", "FitMethod"),
)  # fmt: skip
