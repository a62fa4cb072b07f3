"""What the room of adapters adds: a kind of job, and the methods that tune a frozen encoder."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {"tuning": "atoll.adapters.job:Tuning"}
"""Maps ``job:`` of a configuration to its class."""

PARTS = (
    PartKind("tuning method", ("atoll.adapters.methods",), is_class("atoll.adapters.methods:TuningMethod"), "What of an encoder is trained: an adapter behind it, parts of its layers, or a head.", "TuningMethod"),
)  # fmt: skip
