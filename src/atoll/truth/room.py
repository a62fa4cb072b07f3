"""What the room of truth adds: its models."""

from __future__ import annotations

from atoll.core.rooms import PartKind, is_class

__all__ = ["PARTS"]

PARTS = (
    PartKind("truth model", ("atoll.truth.models",), is_class("atoll.truth.models.model:TruthModel"), "How the truth follows from what workers say, and how reliable each is.", "TruthModel"),
)  # fmt: skip
