"""What the room of modalities adds: a kind of job, and the networks that read a modality."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["JOBS", "PARTS"]

JOBS = {"crossmodal": "atoll.crossmodal.job:Crossmodal"}
"""Maps ``job:`` of a configuration to its class."""

PARTS = (
    PartKind("own network", ("atoll.crossmodal.networks",), is_class("atoll.crossmodal.networks:OwnNetwork"), "What reads a party's own modality: words, or frames of sound.", "OwnNetwork"),
)  # fmt: skip
