"""What the room of data adds: sources, partitions, corruptions."""

from __future__ import annotations

from atoll.core.rooms import PartKind, gives, is_class

__all__ = ["PARTS"]

PARTS = (
    PartKind("data source", ("atoll.data",), gives("Dataset", "Islands"), "Where the data come from."),
    PartKind("partition", ("atoll.data",), gives("Islands", takes="Dataset"), "How rows become clients.", given=1),
    PartKind(
        "corruption", ("atoll.data",), is_class("atoll.data:Corruption"),
        "What spoils the data of a ``share`` of the clients.", own=("share",),
    ),
)  # fmt: skip
