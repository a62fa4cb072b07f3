"""What the room of truth adds: a kind of job, its models, and the protocols that add up."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS", "TABLES"]

JOBS = {"truth": "atoll.truth.job:Truth"}
"""Maps ``job:`` of a configuration to its class."""

TABLES = (("task", "worker", "label"), ("obj", "src", "value"))
"""Columns of reports and of claims: a site that has them brings them as they are."""

PARTS = (
    PartKind("truth model", ("atoll.truth.models",), is_class("atoll.truth.models.model:TruthModel"), "How the truth follows from what workers say, and how reliable each is.", "TruthModel"),
    PartKind("truth protocol", ("atoll.truth.protocols",), is_class("atoll.truth.protocols:TruthProtocol"), "How parties add up what their workers contribute to each task, and what a server sees of it.", "TruthProtocol"),
)  # fmt: skip
