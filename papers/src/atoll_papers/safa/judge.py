"""The rules that compare our costs with printed cells.

A printed cell is one run with clients and crashes that we do not have, so it is compared with the distribution of such
runs. It holds if it lies within three standard deviations of one run, estimated over our draws, plus or minus its last
printed digit. The rule is as tight as the quantity: distribution times, synchronisation ratios, futility and round
lengths at small C vary by a few per cent or less between draws; lengths that one slow client decides vary by a quarter
to a third. Each claim says how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from atoll.reproduce import Claim

from .grid import GridCost, Key
from .paper import TABLES, PaperTable
from .tasks import CRASHES, FRACTIONS, SafaTask

__all__ = ["TIGHT", "UNITS", "agrees", "row_claims"]

_DEVIATIONS = 3.0
TIGHT = 0.05
"""A cell whose standard deviation is below this share of its mean is judged tightly."""
UNITS = {
    "length": "mean round length, s",
    "distribution": "mean T_dist, s",
    "synchronised": "SR",
    "futility": "futility",
}
"""What the cost tables hold."""
_WHY = {
    ("length", "boston", "FedAvg"): "the table's task 1 waits by the rule of FedCS, see the claim on it",
    ("synchronised", "mnist", "FedCS"): "0.092 at C = 0.1 contradicts the same run's T_dist, whose 2.04 s are 10 copies in every round",
}  # fmt: skip


def agrees(printed: float, ours: GridCost, digits: int, seeds: int) -> bool:
    """Tell whether a printed cell could be one of our runs: ``|printed - mean| <= 3 s sqrt(1 + 1/seeds) + half a unit of the last digit``.

    Args:
        printed: the cell.
        ours: mean and standard deviation over our draws.
        digits: printed after the point.
        seeds: our draws; a single draw has no known spread, and allows only for the last digit.
    """
    room = _DEVIATIONS * ours.spread * math.sqrt(1 + 1 / seeds) + 0.5 * 10.0**-digits
    return abs(printed - ours.mean) <= room + 1e-9


def _row(
    task: SafaTask,
    quantity: str,
    table: PaperTable,
    algorithm: str,
    crash: float,
    found: Sequence[GridCost],
    seeds: int,
) -> Claim:
    printed = [table.cells[algorithm, crash, fraction] for fraction in FRACTIONS]
    met = [agrees(p, cost, table.digits, seeds) for p, cost in zip(printed, found, strict=True)]
    spread = [cost.spread / abs(cost.mean) if cost.mean else 0.0 for cost in found]
    tight = sum(share < TIGHT for share in spread)
    note = (
        f"{table.label}, line {table.lines[algorithm, crash]}; cells for C = {', '.join(f'{c:g}' for c in FRACTIONS)}"
    )
    note += f"; {sum(met)} of {len(met)} within 3 standard deviations of a run, {seeds} draws; {tight} of them judged tightly (below {TIGHT:.0%})"
    why = _WHY.get((quantity, task.name, algorithm))
    if why and not all(met):
        note += f"; {why}"
    return Claim(
        f"{task.name}: {UNITS[quantity]}, {algorithm}, cr = {crash:g}",
        " ".join(f"{p:.{table.digits}f}" for p in printed),
        " ".join(f"{cost.mean:.{table.digits}f}±{cost.spread:.{table.digits}f}" for cost in found),
        all(met),
        note,
    )


def row_claims(task: SafaTask, grid: Mapping[Key, Mapping[str, GridCost]], seeds: int) -> list[Claim]:
    """Return a claim for each row of the task's four cost tables.

    Args:
        task: the task.
        grid: the task's grid.
        seeds: the draws of the grid.
    """
    return [
        _row(
            task,
            quantity,
            TABLES[task.name, quantity],
            algorithm,
            crash,
            [grid[algorithm, crash, fraction][quantity] for fraction in FRACTIONS],
            seeds,
        )
        for quantity in UNITS
        for algorithm in ("FedAvg", "FedCS", "SAFA")
        for crash in CRASHES
    ]
