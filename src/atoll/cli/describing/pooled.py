"""The comparison of federated statistics with those of all rows in one place, which this machine has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from atoll.data import DataTable
from atoll.statistics.cells import rows_where
from atoll.statistics.columns import columns_of
from atoll.statistics.summary import ColumnSummary

__all__ = ["max_error"]

_MOMENTS = ("mean", "std", "variance", "sum", "min", "max")


def max_error(summary: Any, tables: Mapping[str, DataTable], where: Sequence[Any]) -> float | None:
    """The largest error of a moment, ``|found - pooled| / max(1, |pooled|)``; ``None`` if nothing can be compared.

    A column is compared with the rows of the sites that told it: what a site withholds is in no sum.

    Args:
        summary: the federated result.
        tables: the sites' tables.
        where: conditions that every row meets.
    """
    errors: list[float] = []
    for name, found in summary.whole.items():
        if found.kind != "number":
            continue
        parts = [
            _values(table, name, where)
            for site, table in tables.items()
            if name in table and (not summary.sites or name in summary.sites[site])
        ]
        if parts and sum(map(len, parts)):
            errors += _errors(found, np.concatenate(parts))
    return max(errors, default=None)


def _values(table: DataTable, name: str, where: Sequence[Any]) -> Any:
    values = columns_of(table, [name])[name].numbers(rows_where(table, where)).astype(np.float64)
    return values[np.isfinite(values)]


def _errors(found: ColumnSummary, x: Any) -> list[float]:
    pooled = {"mean": x.mean(), "std": x.std(), "variance": x.var(), "sum": x.sum(), "min": x.min(), "max": x.max()}
    pairs = [(getattr(found, name), float(pooled[name])) for name in _MOMENTS]
    made = [abs(one - other) / max(1.0, abs(other)) for one, other in pairs if one is not None]
    return [*made, abs(found.count - len(x)) / len(x)]
