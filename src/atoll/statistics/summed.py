"""What one party adds to secure sums: whole numbers alone, so that sums modulo ``2^64`` are exact.

Counts are whole numbers. A sum of real numbers ``v`` with ``|v| <= 1`` becomes ``round(2^bits sum v)``, with as many bits as the sum of all parties has room for
(`resolution`): it errs by at most ``2^-(bits + 1)`` a party, below ``1e-11`` for a billion rows.

With a minimum count, everything about order (leading bits, ranks, bins) is that of coarse values (`atoll.statistics.disclosure.coarsening`). No range of the values is
told then. A party takes values beyond ``2^8`` times the power of two that enough of them reach as that number, a bound of its own that no message moves: a sum in which the
server chooses where values are cut would count the values above the cut.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task

from .aggregates.histogram import counts_in
from .aggregates.relations import Relations
from .aggregates.sketch import keys_of, refined
from .cells import Cell
from .columns import TableColumn, table_of
from .described import remember
from .disclosure.coarsening import coarsen, reach
from .plan import StatisticsPlan, agreed_parts

__all__ = ["LOWEST", "MARGIN", "STEP", "central_sums", "first_sums", "named", "next_sums", "resolution", "surveyed"]

STEP = 12
"""Bits of a key that a round counts."""

LOWEST = -1100
"""The exponent of the first place in the counts of parties by `reach`."""

MARGIN = 2.0**8
"""How far beyond the power of two that enough values reach a value counts as it is."""

Sums = dict[str, Sum]
_MOST = 60


def resolution(rows: int, parties: int) -> int:
    """Bits of the fraction of a fixed-point sum of so many numbers of at most 1 at so many parties."""
    return _MOST - max(1, rows).bit_length() - max(1, parties).bit_length()


def _promised(message: Any) -> Disclosure:
    return Disclosure(int(message["plan"]["min_count"]))


def _asked(island: Any, message: Any) -> tuple[StatisticsPlan, int, dict[str, TableColumn], list[Cell]]:
    """The plan, the rows, the agreed columns and the agreed cells of a party.

    Raises:
        DataError: a column is of another kind here.
    """
    plan, table, columns, cells = agreed_parts(island, message)
    remember(island, plan, table, [cell for cell in cells if cell.size(len(table))])
    return plan, len(table), columns, cells


def _numbers(columns: Mapping[str, TableColumn]) -> list[TableColumn]:
    return [column for column in columns.values() if column.kind == "number"]


def _whole(values: Any) -> Sum:
    return Sum(np.asarray(values, dtype=np.int64), role="side")


@task
def named(island: Any, message: Any) -> Any:
    """The kinds of one party's columns, and nothing of its rows."""
    plan = StatisticsPlan.unpacked(message["plan"])
    return {name: column.told_kind(plan.min_count) for name, column in plan.columns_of(table_of(island.data)).items()}


@task(discloses=_promised)
def surveyed(island: Any, message: Any) -> Sums:
    """Rows, values and missing values of each cell, the first bits of the values' keys, and counts of the agreed categories."""
    plan, of, columns, cells = _asked(island, message)
    numbers = _numbers(columns)
    counts = np.zeros((2, len(cells), len(numbers)), np.int64)
    tops = np.zeros((len(cells), len(numbers), 1 << STEP), np.int64)
    far = np.zeros((len(cells), len(numbers), 1024 - LOWEST + 1), np.int64)
    for k, cell in enumerate(cells):
        for j, column in enumerate(numbers):
            values = column.numbers(cell.rows)
            there = values[np.isfinite(values)] if values.dtype.kind == "f" else values
            counts[:, k, j] = len(there), len(values) - len(there)
            coarse = coarsen(there, plan.min_count * column.per_row) if plan.min_count > 1 else there
            tops[k, j] = np.bincount((keys_of(coarse) >> (64 - STEP)) + (1 << (STEP - 1)), minlength=1 << STEP)
            far[k, j, _exponent(there.astype(np.float64), plan.min_count * column.per_row) - LOWEST] = 1
    found = {"rows": _whole([cell.size(of) for cell in cells]), "counts": _whole(counts), "tops": _whole(tops)}
    if plan.min_count > 1:
        found["reach"] = _whole(far)
    for name, column in columns.items():
        if column.kind != "number":
            found[f"values {name}"] = _whole([_agreed(column, cell, plan, of) for cell in cells])
    return found


def _agreed(column: TableColumn, cell: Cell, plan: StatisticsPlan, of: int) -> list[int]:
    """Counts of the agreed values, of rows with any value, and of rows with none; of values that are nearly all different, none are counted."""
    counts, present, missing = column.counted(cell.rows, of)
    place = {name: k for k, name in enumerate(column.coded[0])} if column.listable else {}
    agreed = plan.categories.get(column.name, ())
    return [*(int(counts[place[name]]) if name in place else 0 for name in map(str, agreed)), present, missing]


@task(discloses=_promised)
def next_sums(island: Any, message: Any) -> Sums:
    """How many values have which next bits, for each target: place of a cell, column, and the known bits."""
    plan, _, columns, cells = _asked(island, message)
    known, bits = int(message["known"]), int(message["bits"])
    values = {(k, name): _ordered(columns[name], cells[k], plan) for k, name, _ in message["targets"]}
    rows = [refined(values[k, name], int(prefix), known, bits) for k, name, prefix in message["targets"]]
    return {"counts": _whole(np.array(rows, dtype=np.int64).reshape(-1, 1 << bits))}


def _ordered(column: TableColumn, cell: Cell, plan: StatisticsPlan) -> NDArray[Any]:
    """The values of a cell as ranks and bins see them."""
    values = column.numbers(cell.rows)
    return coarsen(values, plan.min_count * column.per_row) if plan.min_count > 1 else values


@task(discloses=_promised)
def first_sums(island: Any, message: Any) -> Sums:
    """Sums of ``(x - centre) / scale`` of each cell and column, in fixed point."""
    _, _, columns, cells = _asked(island, message)
    found = np.zeros((len(cells), len(message["centres"][0]) if len(cells) else 0), np.int64)
    for k, cell in enumerate(cells):
        for j, column in enumerate(_numbers(columns)):
            v = _scaled(column, cell, message, k, j)
            found[k, j] = _fixed(v.sum(), message["bits"])
    return {"sums": _whole(found)}


@task(discloses=_promised)
def central_sums(island: Any, message: Any) -> Sums:
    """Sums of squares and cubes around the common means, histograms over common bins, and sums for correlations."""
    plan, _, columns, cells = _asked(island, message)
    numbers, bits = _numbers(columns), message["bits"]
    found = np.zeros((2, len(cells), len(numbers)), np.int64)
    edges = {name: np.asarray(row) for name, row in message["edges"].items()}
    made: Sums = {}
    for k, cell in enumerate(cells):
        for j, column in enumerate(numbers):
            v = _scaled(column, cell, message, k, j)
            found[:, k, j] = _fixed((v * v).sum(), bits), _fixed((v * v * v).sum(), bits)
    made["powers"] = _whole(found)
    for name, row in edges.items():
        made[f"bins {name}"] = _whole([counts_in(_ordered(columns[name], cell, plan), row) for cell in cells])
    if message["correlations"]:
        single = [j for j, column in enumerate(numbers) if column.single]
        related = Relations.of(
            [_bounded(numbers[j], cells[0], plan.min_count) for j in single],
            [float(message["centres"][0][j]) for j in single],
            [float(message["scales"][0][j]) for j in single],
        )
        made["both"] = _whole(related.both)
        for name in ("sums", "squares", "products"):
            made[f"related {name}"] = _whole(_fixed(getattr(related, name), bits))
    return made


def _scaled(column: TableColumn, cell: Cell, message: Any, k: int, j: int) -> NDArray[np.float64]:
    values = _bounded(column, cell, int(message["plan"]["min_count"]))
    return (values[np.isfinite(values)] - float(message["centres"][k][j])) / float(message["scales"][k][j])


def _bounded(column: TableColumn, cell: Cell, least: int) -> NDArray[np.float64]:
    """The values of a cell as moments see them: with a minimum count, none beyond the party's own bound."""
    values = column.numbers(cell.rows).astype(np.float64)
    if least <= 1:
        return values
    exponent = _exponent(values[np.isfinite(values)], least * column.per_row)
    most = float(np.ldexp(MARGIN, min(exponent, 1000)))
    return np.where(np.isfinite(values), np.clip(values, -most, most), np.nan)


def _exponent(values: NDArray[np.float64], least: int) -> int:
    """The power of two that enough values reach; of fewer values, 2 to the next multiple of 16 above all of them."""
    found = reach(values, least)
    if found is not None:
        return max(found, LOWEST)
    most = float(np.abs(values).max(initial=0.0))
    return min(1024, 16 * math.ceil(math.frexp(most)[1] / 16)) if most else LOWEST


def _fixed(values: Any, bits: int) -> NDArray[np.int64]:
    return np.rint(np.asarray(values, dtype=np.float64) * 2.0 ** int(bits)).astype(np.int64)
