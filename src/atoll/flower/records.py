"""Flower's records as message trees, and back: bytes for bytes, so that nothing changes on the way."""

from __future__ import annotations

from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, MetricRecord, RecordDict
from flwr.app.message.array import Array

from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError

__all__ = ["packed", "unpacked"]


def packed(records: RecordDict) -> Tree:
    """Return records as a message tree.

    Raises:
        CompositionError: a record of a kind that is not known here.
    """
    return [[name, *_packed(name, record)] for name, record in records.items()]


def _packed(name: str, record: Any) -> tuple[str, Tree]:
    if isinstance(record, ArrayRecord):
        return "arrays", [[key, a.dtype, list(a.shape), a.stype, a.data] for key, a in record.items()]
    if isinstance(record, MetricRecord | ConfigRecord):
        kind = "metrics" if isinstance(record, MetricRecord) else "config"
        return kind, [[key, list(value) if isinstance(value, list) else value] for key, value in record.items()]
    raise CompositionError(
        f"the record {name!r} is a {type(record).__name__}, which has no counterpart in Atoll",
        where="Flower's message",
        remedy="use ArrayRecord, MetricRecord and ConfigRecord",
    )


def unpacked(tree: Tree) -> RecordDict:
    """Return records from a message tree."""
    found = RecordDict()
    for name, kind, rows in tree:
        if kind == "arrays":
            found[name] = ArrayRecord(
                {key: Array(dtype, tuple(shape), stype, data) for key, dtype, shape, stype, data in rows}
            )
        else:
            found[name] = (MetricRecord if kind == "metrics" else ConfigRecord)(dict(rows))
    return found
