"""What a party is asked to describe, as a message, and the cells of rows that are described together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, DataError, nearest
from atoll.data.readers._words import read_truths
from atoll.data.readers.table import holes
from atoll.data.table import DataTable

from .columns import TableColumn, _texts, columns_of, moments_in_time, nearly_all_differ, table_of

__all__ = ["CONDITIONS", "Cell", "PERIODS", "StatisticsPlan", "agreed_parts", "cells_of", "rows_where"]

PERIODS = {"year": "Y", "month": "M", "week": "D", "day": "D", "hour": "h"}
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
        texts = _label_groups(_column(table, column), (agreed or {}).get(column))
        cells += _split(column, texts, holes(texts), chosen, (agreed or {}).get(column))
    if over:
        times = moments_in_time(_column(table, over), over, f"table {table.name!r}", table.row_offset)
        labels = np.datetime_as_string(_begin_periods(times, period))
        cells += _split(over, labels, np.isnat(times), chosen, (agreed or {}).get(over))
    return cells


def _label_groups(values: NDArray[Any], agreed: Sequence[str] | None) -> NDArray[np.str_]:
    """The labels of a column's groups: of truth values, however a file writes them, those of Parquet and frames."""
    truths = read_truths(values) if agreed is None else None
    if truths is None:
        return _texts(values)
    return np.where(np.isnan(truths), "", np.where(truths == 1, "True", "False"))


def _begin_periods(times: NDArray[np.datetime64], period: str) -> NDArray[np.datetime64]:
    """The begin of each moment's period. Weeks begin on Mondays, as ISO 8601 has them; those of NumPy begin on the day of 1970-01-01, a Thursday."""
    if period != "week":
        return times.astype(f"datetime64[{PERIODS[period]}]")
    days = times.astype("datetime64[D]")
    begun: NDArray[np.datetime64] = np.subtract(days, (days - _MONDAY) % np.timedelta64(7, "D"))
    return begun


_MONDAY = np.datetime64("1970-01-05", "D")


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
    if holes(values).all():  # a column without a value has every kind
        return np.zeros(len(values), np.bool_)
    truths = values.astype(np.float64) if values.dtype.kind == "b" else read_truths(values)
    if truths is not None:
        words = read_truths(np.array([str(one) for one in several])) if isinstance(several[0], str) else None
        if words is not None or not isinstance(several[0], str):
            values, several = truths, several if words is None else words.tolist()
            value = several if sign == "in" else several[0]
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


# ---------------------------------------------------------------- what a party is asked to describe, as a message


@dataclass(frozen=True)
class StatisticsPlan:
    """The part of the settings that parties must know.

    Attributes:
        request: what people know the request by.
        columns: columns, in order; by default all of each party.
        text: columns of free text.
        categories: the values of a column, in order, where they are agreed.
        by: columns whose values are groups.
        over: a column of moments.
        period: how long a period is.
        where: conditions that every row meets.
        digits: bits of the fraction in sketches of quantiles; 0 for no sketch.
        words: how many words of a vocabulary are told.
        extremes: whether the smallest and the largest value are told.
        min_count: with fewer rows a cell is withheld.
    """

    request: str = "statistics"
    columns: Sequence[str] = ()
    text: Sequence[str] = ()
    categories: Mapping[str, Sequence[str]] = field(default_factory=dict)
    by: Sequence[str] = ()
    over: str = ""
    period: str = "month"
    where: Sequence[Any] = ()
    digits: int = 0
    words: int = 100
    extremes: bool = True
    min_count: int = 1

    def pack(self) -> dict[str, Any]:
        """The plan as a message."""
        made = asdict(self)
        lists = {name: [*made[name]] for name in ("columns", "text", "by")}
        where = [[one[0], one[1], [*one[2]] if isinstance(one[2], list | tuple) else one[2]] for one in self.where]
        return {
            **made,
            **lists,
            "where": where,
            "categories": {name: [*map(str, v)] for name, v in self.categories.items()},
        }

    @classmethod
    def unpack(cls, message: Any) -> StatisticsPlan:
        """The inverse of `pack`."""
        return cls(**message)

    @property
    def families(self) -> tuple[str, ...]:
        """The columns that divide the rows into groups and periods."""
        return (*self.by, *([self.over] if self.over else ()))

    @property
    def base(self) -> str:
        """The rows that are described, in words."""
        conditions = " and ".join(f"{column} {sign} {value}" for column, sign, value in self.where)
        return f"the rows where {conditions}" if conditions else "all rows"

    def columns_of(self, table: DataTable) -> dict[str, TableColumn]:
        """The columns of a table that the plan describes; by default all but those that only divide it."""
        wanted = self.columns or [name for name in table.columns if name not in self.by and name != self.over]
        return columns_of(table, wanted, self.text, self.categories)

    def cells_of(self, table: DataTable, agreed: Mapping[str, Sequence[str]] | None = None) -> list[Cell]:
        """The cells of a table."""
        return cells_of(table, self.by, self.over, self.period, self.where, agreed)


def agreed_parts(island: Any, message: Any) -> tuple[StatisticsPlan, DataTable, dict[str, TableColumn], list[Cell]]:
    """The plan of a message, and a party's table, agreed columns and agreed cells.

    Raises:
        DataError: a column is of another kind here.
    """
    plan, table = StatisticsPlan.unpack(message["plan"]), table_of(island.data)
    columns, cells = plan.columns_of(table), plan.cells_of(table, plan.categories)
    columns = {name: column.as_kind(message["kinds"].get(name, column.kind)) for name, column in columns.items()}
    kinds = {name: column.kind for name, column in columns.items()}
    if kinds != dict(message["kinds"]):
        raise DataError(
            f"the columns are {kinds}, and the other parties' are {dict(message['kinds'])}",
            where=island.name,
            remedy="name columns= that all parties have, of one kind",
        )
    return plan, table, columns, cells
