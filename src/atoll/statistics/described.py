"""What one party tells of its rows where single replies may be seen: its own statistics, without the cells of too few rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.tree import Tree
from atoll.core.requests.disclosure import Disclosure, RowRules
from atoll.core.requests.task import task
from atoll.data.table import DataTable

from .answered import AnswerRecord, RowSets, base_sets
from .columns import TableColumn, table_of
from .combined import weigh_values
from .disclosure import coarsen, hidden, show_counts
from .histogram import counts_in
from .moments import CentralMoments, Relations
from .plan import Cell, StatisticsPlan
from .sketch import Sketch, refine_counts

__all__ = ["binned", "described", "next_bits", "remember", "tell_products"]


def _read_promise(message: Any) -> Disclosure:
    return Disclosure(int(message["plan"]["min_count"]))


@task(discloses=_read_promise)
def described(island: Any, message: Any) -> Tree:
    """One party's moments, sketches and categories, of all rows, of each group and of each period."""
    plan, table, columns, cells, record, withheld = _read_request(island, message)
    told = [_Cell(cell, plan, columns, len(table), island.rules).make_reply(record) for cell in cells]
    record.keep(island)
    for cell, one in zip(cells, told, strict=True):
        withheld += [[cell.family, cell.label, name] for name in one.pop("withheld")]
    kinds = {name: column.told_kind(plan.min_count) for name, column in columns.items()}
    found = {cell.family for cell in plan.cells_of(table)}
    listed = [name for name, column in columns.items() if column.kind == "category" and not column.listable]
    empty = {family for family in plan.families if not len(table) or table.missing(family).all()}
    unlisted = [*listed, *(family for family in plan.families if family not in found and family not in empty)]
    return {"rows": len(table), "kinds": kinds, "cells": told, "withheld": withheld, "unlisted": unlisted}


def _read_request(
    island: Any, message: Any
) -> tuple[StatisticsPlan, DataTable, dict[str, TableColumn], list[Cell], AnswerRecord, list[Any]]:
    """The plan, the table, its columns, the cells that may be shown, the record of answers with them, and what is withheld."""
    plan, table = StatisticsPlan.unpack(message["plan"]), table_of(island.data)
    columns = plan.columns_of(table)
    cells, withheld = visible(plan.cells_of(table), plan.min_count, len(table))
    record = AnswerRecord.opened(island, plan.request, plan.min_count, table)
    record.describe(base_sets(cells, plan.base, len(table)))
    return plan, table, columns, cells, record, withheld


def visible(cells: list[Cell], least: int, of: int) -> tuple[list[Cell], list[Any]]:
    """The cells of enough rows, and family, label and column (``""``: all) of the others.

    The rows that are in no group of a family are a cell too: all rows without the groups would give them away.
    """
    kept: list[Cell] = []
    withheld: list[Any] = []
    whole = next((cell.size(of) for cell in cells if not cell.family), of)
    for family in dict.fromkeys(cell.family for cell in cells):
        mine = [cell for cell in cells if cell.family == family]
        sizes = [cell.size(of) for cell in mine]
        small = hidden([*sizes, whole - sum(sizes)] if family else sizes, least)[: len(mine)]
        kept += [cell for cell, hide in zip(mine, small, strict=True) if not hide]
        withheld += [[cell.family, cell.label, ""] for cell, hide in zip(mine, small, strict=True) if hide]
    return kept, withheld


def remember(island: Any, plan: StatisticsPlan, table: DataTable, cells: list[Cell]) -> AnswerRecord:
    """The record with a request for sums over parties, unless its rows differ from answered ones by too few. Keep it before the reply is made.

    Raises:
        PolicyError: names the earlier request.
    """
    record = AnswerRecord.opened(island, plan.request, plan.min_count, table)
    # Whether all rows are told a party knows, if it has enough of them; whether a group is, it does not learn.
    for family in dict.fromkeys(cell.family for cell in cells):
        sets = base_sets([cell for cell in cells if cell.family == family], plan.base, len(table))
        record.describe([replace(one, combined=not family) for one in sets], alone=False)
    return record


def tell_products(record: AnswerRecord, plan: StatisticsPlan, cell: Cell, columns: Mapping[str, NDArray[Any]], wanted: NDArray[np.bool_], of: int) -> NDArray[np.bool_]:  # fmt: skip
    """The pairs of columns whose sums of products may be told: those that show few rows neither by themselves nor with all other sums. The record takes note of them.

    What a column is multiplied with others may know. Then each sum is an equation for the column: ``sum (pay - a) (icu - b)`` and ``sum pay`` give the pay of the only one in intensive care.
    If a column lacks values, sums of the other one over the rows that have both are equations too.

    Args:
        record: what was answered.
        plan: the settings.
        cell: the rows.
        columns: name -> the cell's values.
        wanted: the pairs that are asked for, ``(columns, columns)``, symmetric.
        of: rows of the table.
    """
    if plan.min_count <= 1 or len(columns) < 2:
        return wanted
    labels = _within(np.zeros(of, np.int64), cell)
    names = list(columns)
    factors = [_list_factors(labels, values) for values in columns.values()]

    def make_sets(pairs: NDArray[np.bool_]) -> list[RowSets]:
        made = []
        for j, own in enumerate(factors):
            multiplied = tuple(
                name for name, asked in zip(names, pairs[:, j], strict=True) if asked and name != names[j]
            )
            made += [RowSets([f"{plan.base} times {names[j]}"], labels, weights=one, of=multiplied) for one in own if multiplied]  # fmt: skip
        return made

    if record.combines(make_sets(wanted)):
        return wanted
    told = np.diag(np.diag(wanted))
    left = [(i, j) for j in range(len(names)) for i in range(j) if wanted[i, j]]
    parts = [[pair for pair in left if record.combines(make_sets(_pairs_of([pair], len(names))), try_only=True)]]
    while parts:  # in halves, until one pair shows too much with those before it
        part = parts.pop()
        more = told | _pairs_of(part, len(names))
        if record.combines(make_sets(more), try_only=True):
            told = more
        elif len(part) > 1:
            parts += [part[len(part) // 2 :], part[: len(part) // 2]]
    record.combines(make_sets(told))
    return told


def _list_factors(labels: NDArray[np.int64], values: NDArray[Any]) -> list[NDArray[np.int64]]:
    """What rows are multiplied by in sums with a column: its value, and whether there is one if it lacks some."""
    made = []
    there = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
    for one in (weigh_values(values), *([] if there.all() else [there.astype(np.int64)])):
        weights = np.zeros((1, len(labels)), np.int64)
        weights[:, labels >= 0] = one
        made.append(weights)
    return made


def _pairs_of(pairs: Sequence[tuple[int, int]], size: int) -> NDArray[np.bool_]:
    """Pairs as a symmetric matrix."""
    made = np.zeros((size, size), bool)
    for i, j in pairs:
        made[i, j] = made[j, i] = True
    return made


class _Cell:
    """What is told of one cell."""

    def __init__(
        self, cell: Cell, plan: StatisticsPlan, columns: Mapping[str, TableColumn], of: int, rules: RowRules
    ) -> None:
        self.cell, self.plan, self.columns, self.of, self.rules = cell, plan, columns, of, rules

    def make_reply(self, record: AnswerRecord) -> dict[str, Any]:
        plan, rows = self.plan, self.cell.rows
        numbers = {name: column for name, column in self.columns.items() if column.kind == "number"}
        values = {name: column.numbers(rows) for name, column in numbers.items()}
        kept = [name for name in numbers if not _few(numbers[name], values[name], plan.min_count)]
        tells = [plan.extremes and self.rules.tells_extremes(name, plan.min_count) for name in kept]
        coarse = {name: self._coarse(name, values[name], tell) for name, tell in zip(kept, tells, strict=True)}
        moments = CentralMoments.of([values[name] for name in kept]).without_ends([not tell for tell in tells])
        texts = {name: column for name, column in self.columns.items() if column.kind != "number"}
        told = {name: self._categories(column, record) for name, column in texts.items()}
        return {
            "family": self.cell.family,
            "label": self.cell.label,
            "rows": self.cell.size(self.of),
            "numbers": kept,
            "moments": moments.pack(),
            "sketches": [Sketch.of(coarse[name], plan.digits).pack() for name in kept] if plan.digits else [],
            "ends": [None if tell or not len(coarse[name]) else [float(coarse[name].min()), float(coarse[name].max())] for name, tell in zip(kept, tells, strict=True)],
            "categories": told,
            "withheld": [name for name in numbers if name not in kept] + [name for name, one in told.items() if one["withheld"]],
        }  # fmt: skip

    def _coarse(self, name: str, values: NDArray[Any], tells: bool) -> NDArray[Any]:
        """The values that sketches and ranges are made of. Where single rows may be told but no extremes, the range is that of coarse values too."""
        if tells and self.plan.min_count <= 1:
            return values
        column = self.columns[name]
        return coarsen(values, max(self.plan.min_count, 1 if self.plan.digits else _FEW) * column.per_row)

    def _categories(self, column: TableColumn, record: AnswerRecord) -> dict[str, Any]:
        """Counts of the values that enough rows have; the others are withheld."""
        counts, present, missing = column.counted(self.cell.rows, self.of)
        names = list(column.coded[0])
        agreed = self.plan.categories.get(column.name)
        if not column.listable and column.kind != "words":
            return _make_counts([], np.zeros(0, np.int64), present, missing, 0)
        if agreed is not None:
            place = {name: k for k, name in enumerate(names)}
            counts = np.array([counts[place[name]] if name in place else 0 for name in agreed], dtype=np.int64)
            names = list(agreed)
        if column.kind == "words":  # most frequent first; a word of too few rows is not told
            least = max(self.plan.min_count, 1 if column.listable else 2)
            ranked = np.lexsort((np.array(names, dtype=np.str_), -counts)).tolist()
            order = [k for k in ranked if counts[k] >= least][: self.plan.words]
            return _make_counts([names[k] for k in order], counts[order], present, missing, len(names) - len(order))
        told, small = show_counts([*counts, present - int(counts.sum())], self.plan.min_count)
        told, small = told[:-1], small[:-1]
        if not record.lists(self._sets(column, [name for name, n in zip(names, told.tolist(), strict=True) if n])):
            told, small = np.zeros_like(told), told >= 0
        if agreed is None:
            keep = np.flatnonzero(told > 0)
            names, told = [names[k] for k in keep.tolist()], told[keep]
        return _make_counts(names, told, present, missing, int(small.sum()))

    def _sets(self, column: TableColumn, listed: list[str]) -> RowSets:
        """The rows of each value that is listed."""
        names, codes, rows = column.coded
        place = {name: k for k, name in enumerate(listed)}
        labels = np.full(self.of, -1, np.int64)
        labels[rows] = np.array([place.get(name, -1) for name in names] or [-1])[codes]
        return RowSets([f"{column.name}={name}" for name in listed], _within(labels, self.cell), described=False)


_FEW = 10
"""How many values share an end of a range where extremes are hidden and there is no minimum count."""


def _within(labels: NDArray[np.int64], cell: Cell) -> NDArray[np.int64]:
    """The labels of the rows of a cell; -1 of the others."""
    if cell.rows is None:
        return labels
    made = np.full_like(labels, -1)
    made[cell.rows] = labels[cell.rows]
    return made


def _few(column: TableColumn, values: NDArray[Any], least: int) -> bool:
    """Whether 1 to ``least - 1`` rows have a number."""
    if least <= 1:
        return False
    there = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
    rows = there if column.single else there.reshape(-1, column.per_row).any(axis=1)
    return 0 < int(rows.sum()) < least


def _make_counts(
    names: list[str], counts: NDArray[np.int64], present: int, missing: int, withheld: int
) -> dict[str, Any]:
    return {
        "values": names,
        "counts": counts.astype(np.int64),
        "count": present,
        "missing": missing,
        "withheld": withheld,
    }


@task(discloses=_read_promise)
def binned(island: Any, message: Any) -> Tree:
    """One party's histograms over common bins, and sums for correlations around the common means.

    With a minimum count, bins count coarse values, so that no bin, and no difference of bins of other edges, holds fewer of them.
    """
    plan, table, columns, cells, record, _ = _read_request(island, message)
    told = []
    for cell in cells:
        counts: dict[str, Any] = {}
        hides: dict[str, int] = {}
        for name, edges in message["edges"].items():
            if name in columns and not _few(columns[name], columns[name].numbers(cell.rows), plan.min_count):
                counts[name], hides[name] = _bins(
                    columns[name], cell, np.asarray(edges), plan.min_count, record, len(table)
                )
        told.append({"family": cell.family, "label": cell.label, "counts": counts, "withheld": hides})
    means = message["means"]
    related: Tree = None
    names, unrelated = list[str](), list[Tree]()
    if means and cells and not cells[0].family:
        # A picture has many numbers a row: they are no column that correlates.
        values = {name: columns[name].numbers(cells[0].rows) for name in means if columns[name].single}
        sums = Relations.of(list(values.values()), [means[name] for name in values])
        wanted = sums.visible(plan.min_count)
        pairs = tell_products(record, plan, cells[0], values, wanted, len(table))
        related = sums.keeping(pairs).pack()
        names = list(values)
        unrelated = [[names[i], names[j]] for i, j in np.argwhere(np.triu(wanted & ~pairs)).tolist()]
    record.keep(island)
    return {"cells": told, "relations": related, "related": [*names], "unrelated": unrelated}


def _bins(
    column: TableColumn, cell: Cell, edges: NDArray[np.float64], least: int, record: AnswerRecord, of: int
) -> tuple[NDArray[np.int64], int]:
    """Counts of the bins of a cell, and how many are withheld: all of them, if the rows of one are nearly those of an earlier answer."""
    values = column.numbers(cell.rows)
    if least <= 1:
        return counts_in(values, edges), 0
    coarse = coarsen(values, least * column.per_row)
    counts = counts_in(coarse, edges)
    if column.single:
        labels = np.full(of, -1, np.int64)
        rows = np.arange(of) if cell.rows is None else cell.rows
        rows = rows[np.isfinite(values)] if values.dtype.kind == "f" else rows
        place = np.where(coarse == edges[-1], len(edges) - 2, np.searchsorted(edges, coarse, side="right") - 1)
        labels[rows] = np.where((coarse < edges[0]) | (coarse > edges[-1]), -1, place)
        names = [f"{column.name} from {low:.6g} to {high:.6g}" for low, high in pairwise(edges.tolist())]
        if not record.lists(RowSets(names, labels, described=False)):
            return np.zeros_like(counts), int((counts > 0).sum())
    return counts, 0


@task(discloses=_read_promise)
def next_bits(island: Any, message: Any) -> Tree:
    """How many of one party's values have which next bits, for each column, cell and prefix that is asked about."""
    plan, _, columns, visible_cells, record, _ = _read_request(island, message)
    record.keep(island)
    cells = {(cell.family, cell.label): cell for cell in visible_cells}
    rows = []
    for name, family, label, prefix in message["targets"]:
        cell = cells.get((family, label))
        values = columns[name].numbers(cell.rows) if cell is not None and name in columns else np.zeros(0)
        if plan.min_count > 1 and len(values):
            values = coarsen(values, plan.min_count * columns[name].per_row)
        rows.append(refine_counts(values, int(prefix), int(message["known"]), int(message["bits"])))
    return {"counts": np.array(rows, dtype=np.int64)}
