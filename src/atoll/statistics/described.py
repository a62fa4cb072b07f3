"""What one party tells of its rows where single replies may be seen: its own statistics, without the cells of too few rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task
from atoll.data.table import DataTable

from .aggregates.histogram import counts_in
from .aggregates.moments import CentralMoments
from .aggregates.relations import Relations
from .aggregates.sketch import Sketch, refined
from .cells import Cell
from .columns import TableColumn, table_of
from .disclosure.answered import NAME, entry_of, require_apart, row_hashes, with_entry
from .disclosure.suppression import hidden, shown
from .plan import StatisticsPlan

__all__ = ["binned", "described", "next_bits"]


def _promised(message: Any) -> Disclosure:
    return Disclosure(int(message["plan"]["min_count"]))


@task(discloses=_promised)
def described(island: Any, message: Any) -> Tree:
    """One party's moments, sketches and categories, of all rows, of each group and of each period."""
    plan, table = StatisticsPlan.unpacked(message["plan"]), table_of(island.data)
    columns, cells = plan.columns_of(table), plan.cells_of(table)
    cells, withheld = visible(cells, plan.min_count, len(table))
    remember(island, plan, table, columns, cells)
    told = [_cell(cell, plan, columns, len(table)) for cell in cells]
    for cell, one in zip(cells, told, strict=True):
        withheld += [[cell.family, cell.label, name] for name in one.pop("withheld")]
    kinds = {name: column.kind for name, column in columns.items()}
    return {"rows": len(table), "kinds": kinds, "cells": told, "withheld": withheld}


def asked(island: Any, message: Any) -> tuple[StatisticsPlan, DataTable, dict[str, TableColumn], list[Cell]]:
    """The plan, the table, its columns and the cells that may be shown, once the request is in the record."""
    plan, table = StatisticsPlan.unpacked(message["plan"]), table_of(island.data)
    columns = plan.columns_of(table)
    cells, _ = visible(plan.cells_of(table), plan.min_count, len(table))
    remember(island, plan, table, columns, cells)
    return plan, table, columns, cells


def visible(cells: list[Cell], least: int, of: int) -> tuple[list[Cell], list[Any]]:
    """The cells of enough rows, and family, label and column (``""``: all) of the others."""
    kept: list[Cell] = []
    withheld: list[Any] = []
    for family in dict.fromkeys(cell.family for cell in cells):
        mine = [cell for cell in cells if cell.family == family]
        small = hidden([cell.size(of) for cell in mine], least)
        kept += [cell for cell, hide in zip(mine, small, strict=True) if not hide]
        withheld += [[cell.family, cell.label, ""] for cell, hide in zip(mine, small, strict=True) if hide]
    return kept, withheld


def remember(
    island: Any, plan: StatisticsPlan, table: DataTable, columns: Mapping[str, TableColumn], cells: list[Cell]
) -> None:
    """Refuse a request that differs from an answered one by too few rows; else add it to the record, before the reply is made.

    Raises:
        PolicyError: names the earlier request.
    """
    if plan.min_count <= 1:
        return
    hashes = row_hashes(table)
    try:
        record = island.left(NAME)
    except ConfigError:
        record = None
    entry = entry_of(plan.request, plan.base, columns, cells, hashes)
    require_apart(record, entry, hashes, plan.min_count, island.name)
    island.leave(NAME, with_entry(record, entry, hashes), at_once=True)


def _cell(cell: Cell, plan: StatisticsPlan, columns: Mapping[str, TableColumn], of: int) -> dict[str, Any]:
    numbers = {name: column for name, column in columns.items() if column.kind == "number"}
    values = {name: column.numbers(cell.rows) for name, column in numbers.items()}
    moments = CentralMoments.of(list(values.values()))
    few = np.array([_few(numbers[name], values[name], plan.min_count) for name in numbers], dtype=bool)
    keep = np.flatnonzero(~few)
    moments = moments if plan.extremes else moments.without_ends()
    kept = [name for name, small in zip(numbers, few.tolist(), strict=True) if not small]
    sketches = (
        [Sketch.of(values[name], plan.digits).coarse(plan.min_count).packed() for name in kept] if plan.digits else []
    )
    texts = {name: column for name, column in columns.items() if column.kind != "number"}
    told = {name: _categories(column, cell.rows, plan, of) for name, column in texts.items()}
    return {
        "family": cell.family,
        "label": cell.label,
        "rows": cell.size(of),
        "numbers": kept,
        "moments": moments.take(keep).packed(),
        "sketches": sketches,
        "categories": told,
        "withheld": [name for name in numbers if name not in kept]
        + [name for name, one in told.items() if one["withheld"]],
    }


def _few(column: TableColumn, values: NDArray[Any], least: int) -> bool:
    """Whether 1 to ``least - 1`` rows have a number."""
    if least <= 1:
        return False
    there = np.isfinite(values) if values.dtype.kind == "f" else np.ones(len(values), bool)
    rows = there if column.single else there.reshape(-1, int(np.prod(column.values.shape[1:]))).any(axis=1)
    return 0 < int(rows.sum()) < least


def _categories(column: TableColumn, rows: NDArray[np.int64] | None, plan: StatisticsPlan, of: int) -> dict[str, Any]:
    """Counts of the values that enough rows have; the others are withheld."""
    counts, present, missing = column.counted(rows, of)
    names = list(column.coded[0])
    agreed = plan.categories.get(column.name)
    if agreed is not None:
        place = {name: k for k, name in enumerate(names)}
        counts = np.array([counts[place[name]] if name in place else 0 for name in agreed], dtype=np.int64)
        names = list(agreed)
    if column.kind == "words":  # most frequent first; a word of too few rows is not told
        least = max(1, plan.min_count)
        order = [k for k in np.lexsort((np.array(names, dtype=np.str_), -counts)).tolist() if counts[k] >= least][
            : plan.words
        ]
        return _told([names[k] for k in order], counts[order], present, missing, len(names) - len(order))
    told, small = shown(counts, plan.min_count)
    if agreed is None:
        keep = np.flatnonzero(told > 0)
        names, told = [names[k] for k in keep.tolist()], told[keep]
    return _told(names, told, present, missing, int(small.sum()))


def _told(names: list[str], counts: NDArray[np.int64], present: int, missing: int, withheld: int) -> dict[str, Any]:
    return {
        "values": names,
        "counts": counts.astype(np.int64),
        "count": present,
        "missing": missing,
        "withheld": withheld,
    }


@task(discloses=_promised)
def binned(island: Any, message: Any) -> Tree:
    """One party's histograms over common bins, and sums for correlations around the common means."""
    plan, _, columns, cells = asked(island, message)
    told = []
    for cell in cells:
        counts: dict[str, Any] = {}
        hides: dict[str, int] = {}
        for name, edges in message["edges"].items():
            if name in columns:
                values = columns[name].numbers(cell.rows)
                if _few(columns[name], values, plan.min_count):
                    continue
                counts[name], small = shown(counts_in(values, np.asarray(edges)), plan.min_count)
                hides[name] = int(small.sum())
        told.append({"family": cell.family, "label": cell.label, "counts": counts, "withheld": hides})
    means = message["means"]
    related: Tree = None
    if means and cells and not cells[0].family:
        sums = Relations.of([columns[name].numbers(cells[0].rows) for name in means], list(means.values()))
        related = sums.hiding(plan.min_count).packed()
    return {"cells": told, "relations": related}


@task(discloses=_promised)
def next_bits(island: Any, message: Any) -> Tree:
    """How many of one party's values have which next bits, for each column, cell and prefix that is asked about."""
    _, _, columns, shown_cells = asked(island, message)
    cells = {(cell.family, cell.label): cell for cell in shown_cells}
    rows = []
    for name, family, label, prefix in message["targets"]:
        cell = cells.get((family, label))
        values = columns[name].numbers(cell.rows) if cell is not None and name in columns else np.zeros(0)
        rows.append(refined(values, int(prefix), int(message["known"]), int(message["bits"])))
    return {"counts": np.array(rows, dtype=np.int64)}
