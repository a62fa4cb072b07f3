"""What one party tells with differential privacy: whole numbers, each with discrete Laplace noise of the party's own.

The unit is a row; neighbouring tables differ in one row that is there or not. A row moves a count by at most 1. A number ``x`` clipped to its range becomes
``u = (x - middle) / half`` in [-1, 1]; sums of ``u`` and ``u^2`` are rounded to multiples of ``2^-20``, so one row moves them by at most ``2^20 + 1`` units.
Every row is in each column, and in one group of each dividing column besides all rows: the budget is split evenly over everything that a row can move.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.event import Laplace
from atoll.core.requests.disclosure import Disclosure
from atoll.core.requests.task import task

from .aggregates.histogram import counts_in
from .cells import Cell
from .columns import TableColumn
from .disclosure.noise import discrete_laplace, rate_of
from .plan import StatisticsPlan, agreed_parts

__all__ = ["EXPONENTS", "FINE", "noised_ranges", "noised_ranges_told", "noised_sums", "noised_told"]

FINE = 20
"""Bits of the fraction of a sum."""
EXPONENTS = 40
"""A range is found among powers of two from ``2^-40`` to ``2^40``, of either sign."""

Arrays = dict[str, NDArray[np.int64]]


def _promised(message: Any) -> Disclosure:
    del message
    return Disclosure(private=True)


def _asked(island: Any, message: Any) -> tuple[StatisticsPlan, int, dict[str, TableColumn], list[Cell]]:
    """The plan, the rows, the columns and the agreed cells; the ledger has the cost before anything is looked at.

    Raises:
        DataError: a column is of another kind here, or a row has many numbers.
    """
    plan, table, columns, cells = agreed_parts(island, message)
    island.spend(Laplace(unit="example", epsilon=float(message["share"]), count=int(message["releases"])))
    return plan, len(table), columns, cells


def _numbers(column: TableColumn, cell: Cell) -> NDArray[np.float64]:
    """One number a row: for a row of several, such as the pixels of an image, the mean of those that are there."""
    values = column.values if cell.rows is None else column.values[cell.rows]
    values = values.astype(np.float64)
    if values.ndim == 1:
        return values
    flat = values.reshape(len(values), -1)
    there = np.isfinite(flat)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(there, flat, 0.0).sum(axis=1) / there.sum(axis=1))


def _ranges(island: Any, message: Any) -> Arrays:
    """Counts of values by sign and power of two, of each column without a range."""
    _, _, columns, cells = _asked(island, message)
    rate = rate_of(float(message["share"]), 1)
    found: Arrays = {}
    for name in message["unknown"]:
        values = _numbers(columns[name], cells[0])
        values = values[np.isfinite(values)]
        exponents = np.clip(np.frexp(values)[1], -EXPONENTS, EXPONENTS) + EXPONENTS + 1
        places = np.where(values == 0, 0, np.sign(values) * exponents).astype(np.int64) + 2 * EXPONENTS + 1
        counts = np.bincount(places, minlength=4 * EXPONENTS + 3)
        found[name] = counts + discrete_laplace(rate, island.secret, counts.shape)
    return found


def _sums(island: Any, message: Any) -> Arrays:
    """Counts, sums, sums of squares and histograms of numbers; counts of agreed categories; for each cell."""
    plan, of, columns, cells = _asked(island, message)
    share = float(message["share"])
    counting, summing = rate_of(share, 1), rate_of(share, (1 << FINE) + 1)
    found: Arrays = {}

    def put(name: str, rows: Sequence[Any], rate: Any) -> None:
        exact = np.array(rows, dtype=np.int64)
        found[name] = exact + discrete_laplace(rate, island.secret, exact.shape)

    for name, column in columns.items():
        if column.kind == "number":
            _put_numbers(name, column, cells, message, put, counting, summing)
        elif column.kind == "category":
            counted = [_agreed(column, cell, plan, of) for cell in cells]
            put(f"{name} values", counted, counting)
    return found


def _put_numbers(
    name: str, column: TableColumn, cells: Sequence[Cell], message: Any, put: Any, counting: Any, summing: Any
) -> None:
    low, high = (float(end) for end in message["ranges"][name])
    middle, half = (low + high) / 2, (high - low) / 2
    rows: dict[str, list[Any]] = {"counts": [], "sums": [], "squares": [], "bins": []}
    for cell in cells:
        values = _numbers(column, cell)
        kept = np.clip(values[np.isfinite(values)], low, high)
        u = (kept - middle) / half
        rows["counts"].append([len(kept), len(values) - len(kept)])
        rows["sums"].append(int(np.rint(u.sum() * 2.0**FINE)))
        rows["squares"].append(int(np.rint((u * u).sum() * 2.0**FINE)))
        rows["bins"].append(counts_in(kept, np.linspace(low, high, int(message["bins"]) + 1)))
    put(f"{name} counts", rows["counts"], counting)
    put(f"{name} sums", rows["sums"], summing)
    put(f"{name} squares", rows["squares"], summing)
    put(f"{name} bins", rows["bins"], counting)


def _agreed(column: TableColumn, cell: Cell, plan: StatisticsPlan, of: int) -> list[int]:
    """Counts of the agreed values, of any other value and of none: a row is in one of them."""
    counts, present, missing = column.counted(cell.rows, of)
    place = {name: k for k, name in enumerate(column.coded[0])}
    told = [int(counts[place[name]]) if name in place else 0 for name in map(str, plan.categories.get(column.name, ()))]
    return [*told, present - sum(told), missing]


def _summed(arrays: Mapping[str, NDArray[np.int64]]) -> dict[str, Sum]:
    return {name: Sum(value, role="side") for name, value in arrays.items()}


@task(discloses=_promised)
def noised_ranges_told(island: Any, message: Any) -> Any:
    """Return the noised counts by power of two."""
    return _ranges(island, message)


@task(discloses=_promised)
def noised_ranges(island: Any, message: Any) -> dict[str, Sum]:
    """Add the noised counts by power of two to a secure sum."""
    return _summed(_ranges(island, message))


@task(discloses=_promised)
def noised_told(island: Any, message: Any) -> Any:
    """Return the noised counts and sums."""
    return _sums(island, message)


@task(discloses=_promised)
def noised_sums(island: Any, message: Any) -> dict[str, Sum]:
    """Add the noised counts and sums to a secure sum."""
    return _summed(_sums(island, message))
