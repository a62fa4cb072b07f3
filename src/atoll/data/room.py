"""What the room of data adds: sources, partitions, corruptions."""

from __future__ import annotations

from atoll.core.rooms import PartKind, gives, is_class

__all__ = ["PARTS"]

PARTS = (
    PartKind("data source", ("atoll.data",), gives("Dataset", "Islands"), "The source of the data."),
    PartKind("partition", ("atoll.data",), gives("Islands", takes="Dataset"), "How rows are divided among clients.", given=1),
    PartKind(
        "corruption", ("atoll.data",), is_class("atoll.data:Corruption"),
        "How the data of a ``share`` of the clients are corrupted.", own=("share",),
    ),
)  # fmt: skip
