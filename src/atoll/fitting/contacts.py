"""What parties do: tell their columns, and answer for preparing columns and for the method.

Real numbers as whole numbers that a secure sum adds up exactly.

A number ``v`` becomes six whole numbers ``w_0, ..., w_5`` with ``v = sum_k w_k 2^(64 - 32 k)``, ``|w_k| < 2^32``: fixed point from ``2^-96`` to ``2^95`` in
words of 32 bits, each in a place of 64. So many parties can add theirs without a carry, and no range has to be agreed on. What is lost of a number is below ``2^-97``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import DataError, nearest
from atoll.core.redaction import private
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import Task
from atoll.data.readers._words import require_categories, require_no_moments, require_one_notation
from atoll.data.readers.table import require_no_key, without_holes
from atoll.data.table import DataTable
from atoll.data.units import tell_numbers
from atoll.statistics.columns import columns_of, table_of
from atoll.statistics.described import remember
from atoll.statistics.disclosure import coarsen
from atoll.statistics.plan import StatisticsPlan

from .method import AtParty, FitMethod
from .ranks import rank_counts
from .rows import OTHER_COLUMNS, FeatureLayout, PartyRows, column_of, rows_of

__all__ = ["Contacts", "narrowed", "require_own_columns", "summed_numbers", "widened"]


# Real numbers as whole numbers that a secure sum adds up exactly.


WIDE_WORDS, _STEP, _TOP = 6, 32, 64
_LARGEST = 2.0**95


def widened(values: Any) -> NDArray[np.int64]:
    """The words of some numbers, ``(..., 6)``.

    Raises:
        DataError: a number is ``2^95`` or larger, or not finite.
    """
    rest = np.array(values, dtype=np.float64)
    if not (np.abs(rest) < _LARGEST).all():
        raise DataError(
            f"a sum of {np.abs(rest).max():.3g} is too large for a secure sum",
            where="fit",
            remedy="use smaller units, or scale='standard'",
        )
    words = np.empty((*rest.shape, WIDE_WORDS), np.int64)
    for k in range(WIDE_WORDS):
        unit = 2.0 ** (_TOP - _STEP * k)
        # Division by a power of two, truncation and the difference are exact: only the last word rounds.
        part = np.rint(rest / unit) if k == WIDE_WORDS - 1 else np.trunc(rest / unit)
        words[..., k] = part
        rest = rest - part * unit
    return words


def narrowed(words: Any) -> NDArray[np.float64]:
    """The numbers of summed words, rounded once: the inverse of `widened`."""
    summed = np.asarray(words, dtype=np.int64)
    low = np.zeros(summed.shape[:-1], np.int64)
    carried = np.empty_like(summed)
    for k in reversed(
        range(WIDE_WORDS)
    ):  # carry into the next word, so that the parts below are added in order of size
        total = summed[..., k] + low
        carried[..., k] = total - ((total + (1 << (_STEP - 1))) >> _STEP << _STEP) if k else total
        low = (total + (1 << (_STEP - 1))) >> _STEP
    found = np.zeros(summed.shape[:-1], np.float64)
    for k in reversed(range(WIDE_WORDS)):
        found = found + carried[..., k] * 2.0 ** (_TOP - _STEP * k)
    return found


WORDS = " in words"
_MOST = 16
"""Parties whose rows a process keeps between contacts."""

Sums = dict[str, NDArray[Any]]


def _promised(message: Any) -> Disclosure:
    return Disclosure(int(message["least"]))


class Contacts:
    """The tasks of one job. Both ends make them of its settings; no code travels.

    Args:
        method: the method.
    """

    def __init__(self, method: FitMethod) -> None:
        self._method = method
        self._kept: OrderedDict[str, tuple[Any, FeatureLayout, PartyRows]] = OrderedDict()
        promise = _promised if method.events() is None else lambda message: Disclosure(private=True)
        self.named = Task("atoll.fitting.contacts:named", self._named, discloses=_promised)
        self.prepared = Task("atoll.fitting.contacts:prepared", _prepared, discloses=_promised)
        self.replied = Task("atoll.fitting.contacts:replied", self._replied, discloses=promise)
        self.proposed = Task("atoll.fitting.contacts:proposed", self._proposed, discloses=promise)
        self.tasks = (self.named, self.prepared, self.replied, self.proposed)

    def _named(self, island: Any, message: Any) -> dict[str, Any]:
        """The kinds of the columns, and the values of categories that enough rows have."""
        table = table_of(island.data)
        require_own_columns(self._method, table, island.name, without=message["categories"])
        return _tell_columns(island.name, table, message)

    def _rows(self, island: Any, message: Any) -> tuple[PartyRows, AtParty, int]:
        """The rows, what the method finds here, and how many rows are withheld because they are too few."""
        noise = self._method.events()
        for event in noise or ():
            island.spend(event)
        least = 1 if noise else int(message["least"])  # whether rows are few would be told without noise
        layout, kept = FeatureLayout.unpacked(message["layout"]), island.state or {"answered": False, "memory": None}
        if least > 1 and not kept["answered"]:
            _remember(island, least, type(self._method).__name__)
        rows = self._read(island, layout, least)
        few = 0 < len(rows) < rows.least
        party = AtParty(island.rng.generator(), island.secret, kept["memory"])
        return (rows.none() if few else rows), party, len(rows) if few else 0

    def _read(self, island: Any, layout: FeatureLayout, least: int) -> PartyRows:
        """The rows, from memory if they are those of the party's last contact; all of it can be made again."""
        data = island.data
        kept = self._kept.pop(island.name, None)
        if kept is None or not _same(kept[0], data) or kept[1] != layout:
            kept = (data, layout, rows_of(data, layout, island.name, least=least))
            kept[2].x.flags.writeable = False
        self._kept[island.name] = kept
        while len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        return kept[2]

    def _replied(self, island: Any, message: Any) -> dict[str, Sum]:
        rows, party, withheld = self._rows(island, message)
        made = self._method.reply(rows, message["state"], party)
        island.state = {"answered": True, "memory": party.memory}
        told = (
            len(rows) if self._method.events() is None else len(table_of(island.data))
        )  # a party's size is known in any case
        counts: Sums = {"rows": np.array(told), "withheld": np.array(withheld)}
        return _summands({**made, **counts}, message)

    def _proposed(self, island: Any, message: Any) -> Sums:
        rows, party, _ = self._rows(island, message)
        made = self._method.proposal(rows, message["state"], party)
        island.state = {"answered": True, "memory": party.memory}
        return made


def _same(data: Any, other: Any) -> bool:
    """Whether two are one party's data: one object, or parts of one origin."""
    origin = getattr(data, "origin", None)
    return data is other or (origin is not None and origin == getattr(other, "origin", None))


def _remember(island: Any, least: int, method: str) -> None:
    """Refuse rows that differ from those behind an earlier answer by too few; else add them to the party's record.

    Raises:
        PolicyError: names the earlier request.
    """
    table = table_of(island.data)
    plan = StatisticsPlan(request=f"fit of {method}", min_count=least)
    remember(island, plan, table, plan.cells_of(table)).keep(island)


def _summands(made: Mapping[str, NDArray[Any]], message: Any) -> dict[str, Sum]:
    """Sums of numbers; where nobody sees single ones, of whole numbers alone: counts as they are, others as words, see `summed_numbers`."""
    found: dict[str, Sum] = {}
    for name, value in made.items():
        if not message["words"]:
            found[name] = Sum(np.asarray(value, dtype=np.float64), role="side")
        elif np.asarray(value).dtype.kind in "biu":
            found[name] = Sum(np.asarray(value, dtype=np.int64), role="side")
        else:
            found[name + WORDS] = Sum(widened(value), role="side")
    return found


def summed_numbers(found: Mapping[str, Any]) -> dict[str, NDArray[np.float64]]:
    """What a sum of replies says, by name."""
    return {
        name.removesuffix(WORDS): narrowed(value) if name.endswith(WORDS) else np.asarray(value, dtype=np.float64)
        for name, value in found.items()
    }


def require_own_columns(method: FitMethod, table: DataTable, where: str, without: Sequence[str] = ()) -> None:
    """Refuse a table that lacks a column of the method itself, such as the times of a survival, or has text in place of its numbers.

    Args:
        method: the method.
        table: the table.
        where: the place, for errors.
        without: columns of categories among them.

    Raises:
        DataError: names the column, and the setting that says another.
    """
    for column in method.extra:
        setting = next((one.name for one in fields(method) if getattr(method, one.name) == column), "")
        if column not in table:
            other = f": name the column in the setting {setting} of {type(method).__name__} (atoll fit: --set {setting}=COLUMN)"
            raise DataError(
                f"there is no column {column!r}, which {type(method).__name__} needs.{nearest(column, table.columns)}",
                where=where,
                remedy=f"the columns are {', '.join(table.columns[:20])}{other if setting else ''}",
            )
        values = table[column]
        if values.dtype.kind == "U" and column not in {*without, *method.grouped}:
            words = np.unique(values[~table.missing(column)])
            if len(words) and column_of(table, column, category=False).kind != "number":
                raise DataError(
                    f"column {column!r} has text, such as {private(words[0])}",
                    where=where,
                    remedy="write it as numbers: of an event, 1 for rows that have it and 0 for the others",
                )


def _tell_columns(where: str, table: DataTable, message: Any) -> dict[str, Any]:
    asked, least = set(message["categories"]), int(message["least"])
    kinds: dict[str, str] = {}
    values: dict[str, list[str]] = {}
    numbers: dict[str, NDArray[Any]] = {}
    for name in message["columns"] or table.columns:
        if name in message["features"] or (message["rest"] and name not in message["aside"]):
            _require_feature(table, name, asked, chosen=name in message["features"], where=where)
        if name in message["undeclared"] and table[name].dtype.kind == "U" and not table.missing(name).all():
            require_one_notation(without_holes(table[name]), name, where, table.row_offset, "or take another label")
        column = columns_of(table, [name], categories={name: ()} if name in asked else None)[name]
        kinds[name] = column.told_kind(least)
        if message["compare"] and column.kind == "number":
            numbers[name] = column.values
        if not column.listable:
            values[name] = []  # a list of the values would be a list of rows
        elif message["tell"] and column.kind == "category":
            counts, _, _ = column.counted(None, len(table))
            values[name] = [value for value, n in zip(column.coded[0], counts.tolist(), strict=True) if n >= least]
        elif message["numbers"] and column.kind == "number":
            found, counts = np.unique(column.values[np.isfinite(column.values)], return_counts=True)
            values[name] = [repr(float(value)) for value in found[counts >= least]]
    return {"kinds": kinds, "values": values, **tell_numbers(numbers, least)}


def _require_feature(table: Any, name: str, listed: set[str], *, chosen: bool, where: str) -> None:
    """Refuse a column that is no feature, by the rules of the readers of `atoll.data`: dates, numbers among words, and a key that nobody chose.

    Raises:
        DataError: names the party, the column and a value.
    """
    values = table[name]
    if name in listed or values.ndim > 1:
        return
    there = ~table.missing(name)
    if values.dtype.kind in "UM":
        require_no_moments(values[there], name, where, OTHER_COLUMNS)
    if values.dtype.kind == "U" and there.any():
        require_categories(without_holes(values), name, where, table.row_offset, OTHER_COLUMNS)
    if not chosen:
        require_no_key(values, name, where, f"leave it out with drop=[{name!r}], or name the features, columns=[...]")


def _prepared(island: Any, message: Any) -> dict[str, Sum]:
    """Sums for one step of preparing the columns of numbers."""
    layout, least = FeatureLayout.unpacked(message["layout"]), int(message["least"])
    table = table_of(island.data)
    if 0 < len(table) < least:
        table = type(table)({name: table[name][:0] for name in table.readable})
    if message["ask"] == "counts":
        return _summands({name: _counts(table, name, v, least) for name, v in message["values"].items()}, message)
    columns = [_numbers(table, layout, name) for name in layout.numbers]
    there = [np.isfinite(values) for values in columns]
    if message["ask"] == "ranks":
        made: Sums = {
            "ranks": rank_counts([coarsen(values, least) for values in columns] if least > 1 else columns, message)
        }
    elif message["ask"] == "spread":
        mean = np.asarray(message["mean"])
        made = {"squares": np.array([((v[t] - m) ** 2).sum() for v, t, m in zip(columns, there, mean, strict=True)])}
    else:
        counts = np.array([t.sum() for t in there], dtype=np.float64)
        few = (counts > 0) & (counts < least)
        sums = np.array([v[t].sum() for v, t in zip(columns, there, strict=True)])
        made = {"counts": np.where(few, 0, counts), "sums": np.where(few, 0.0, sums)}
    return _summands(made, message)


def _numbers(table: Any, layout: FeatureLayout, name: str) -> NDArray[np.float64]:
    values = column_of(table, name, category=False).as_kind("number").values.astype(np.float64)
    return np.where(np.isfinite(values), values, layout.fill[name]) if name in layout.fill else values


def _counts(table: Any, name: str, values: list[str], least: int) -> NDArray[np.float64]:
    """How many rows have each value; fewer than the minimum count are not told, and nothing of values that are nearly all different."""
    column = column_of(table, name, category=True)
    names, codes, _ = column.coded
    if not column.listable:
        return np.zeros(len(values))
    if column_of(table, name, category=False).kind == "number":
        found = [repr(float(value)) for value in names]
    else:
        found = list(names)
    by = dict(zip(found, np.bincount(codes, minlength=len(names)).tolist(), strict=True))
    counts = np.array([by.get(value, 0) for value in values], dtype=np.float64)
    return np.where(counts >= least, counts, 0.0)
