"""Cells: the rows that are described together: all of them, those of a group, and those of a period."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError, nearest
from atoll.data.readers.table import holes
from atoll.data.table import DataTable

from .columns import _texts, moments_in_time, nearly_all_differ

__all__ = ["CONDITIONS", "PERIODS", "Cell", "cells_of", "rows_where"]

PERIODS = {"year": "Y", "month": "M", "week": "W", "day": "D", "hour": "h"}
CONDITIONS = ("==", "!=", "<", "<=", ">", ">=", "in")


@dataclass(frozen=True)
class Cell:
    """Some rows of a party.

    Attributes:
        family: the column by which rows are divided; empty for all rows.
        label: its value.
        rows: the rows; ``None`` is all of the table.
    """

    family: str
    label: str
    rows: NDArray[np.int64] | None

    def size(self, of: int) -> int:
        """Number of rows, of a party with so many."""
        return of if self.rows is None else len(self.rows)


def cells_of(
    table: DataTable,
    by: Sequence[str] = (),
    over: str = "",
    period: str = "month",
    where: Sequence[Sequence[Any]] = (),
    agreed: Mapping[str, Sequence[str]] | None = None,
) -> list[Cell]:
    """All rows that meet the conditions, then those of each group and of each period.

    Args:
        table: a party's table.
        by: columns whose values are groups.
        over: a column of moments.
        period: how long a period is.
        where: conditions that every row meets, see `rows_where`.
        agreed: the groups of a column, in order, where parties must have the same cells; a row of another group is in none.

    Raises:
        DataError: the table lacks a column, or it cannot be used.
    """
    chosen = rows_where(table, where)
    cells = [Cell("", "", chosen)]
    for column in by:
        texts = _texts(_column(table, column))
        cells += _split(column, texts, holes(texts), chosen, (agreed or {}).get(column))
    if over:
        times = moments_in_time(_column(table, over), over)
        labels = np.datetime_as_string(times.astype(f"datetime64[{PERIODS[period]}]"))
        cells += _split(over, labels, np.isnat(times), chosen, (agreed or {}).get(over))
    return cells


def _split(
    family: str,
    labels: NDArray[Any],
    hole: NDArray[np.bool_],
    chosen: NDArray[np.int64] | None,
    agreed: Sequence[str] | None,
) -> list[Cell]:
    rows = np.flatnonzero(~hole)
    if chosen is not None:
        rows = rows[np.isin(rows, chosen)]
    names, codes = np.unique(labels[rows], return_inverse=True)
    order = np.argsort(codes, kind="stable")
    ends = np.searchsorted(codes[order], np.arange(len(names) + 1))
    found = {str(name): rows[order[ends[k] : ends[k + 1]]] for k, name in enumerate(names.tolist())}
    if nearly_all_differ(labels[~hole]):
        found = {}  # the labels of the groups would be a list of single rows
    none = np.zeros(0, np.int64)
    wanted = found if agreed is None else {str(name): found.get(str(name), none) for name in agreed}
    return [Cell(family, name, part) for name, part in wanted.items()]


def rows_where(table: DataTable, where: Sequence[Sequence[Any]]) -> NDArray[np.int64] | None:
    """The rows that meet all conditions; ``None`` without conditions.

    Args:
        table: a party's table.
        where: conditions ``[column, sign, value]``, with a sign of `CONDITIONS`; a missing value meets none.

    Raises:
        DataError: the table lacks a column, or the value is not comparable with it.
        ConfigError: it is no condition.
    """
    if not where:
        return None
    kept = np.ones(len(table), bool)
    for condition in where:
        if len(condition) != 3 or condition[1] not in CONDITIONS:
            raise ConfigError(
                f"where={list(condition)!r}",
                where="statistics",
                remedy=f"give [column, sign, value] with one of {', '.join(CONDITIONS)}",
            )
        column, sign, value = condition
        values = _column(table, str(column))
        kept &= _meets(values, str(sign), value, str(column)) & ~holes(values)
    return np.flatnonzero(kept)


def _meets(values: NDArray[Any], sign: str, value: Any, column: str) -> NDArray[np.bool_]:
    several = list(value) if sign == "in" and not isinstance(value, str) else [value]
    text = values.dtype.kind in "UM"
    if any(isinstance(one, str) != text for one in several):
        raise DataError(
            f"column {column!r} holds {'text' if text else 'numbers'}, and the condition compares it with {value!r}",
            where="statistics",
            remedy="compare numbers with numbers and text with text",
        )
    values = values.astype(np.str_) if values.dtype.kind == "M" else values
    if sign == "in":
        return np.isin(values, several)
    compare = {"==": np.equal, "!=": np.not_equal, "<": np.less, "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal}  # fmt: skip
    return np.asarray(compare[sign](values, value), dtype=bool)


def _column(table: DataTable, name: str) -> NDArray[Any]:
    if name not in table:
        raise DataError(
            f"no column {name!r}.{nearest(name, table.columns)}",
            where="statistics",
            remedy=f"its columns are {', '.join(table.columns)}",
        )
    return table[name]
