"""The cost of rounds in all 240 runs, simulated without training, and the rules that compare it with printed cells.

A printed cell is one run with clients and crashes that we do not have, so it is compared with the distribution of such
runs. It holds if it lies within three standard deviations of one run, estimated over our draws, plus or minus its last
printed digit. The rule is as tight as the quantity: distribution times, synchronisation ratios, futility and round
lengths at small C vary by a few per cent or less between draws; lengths that one slow client decides vary by a quarter
to a third. Each claim says how much.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from atoll.devices.accounting import (
    COMPAT,
    CORRECTED,
    Accounting,
    RoundAccount,
    effective_update_ratio,
    futility,
    synchronisation_ratio,
    version_variance,
)
from atoll.reproduce import Claim

from .paper import TABLES, PaperTable
from .reference import Crashes, SafaRounds, draw_crashes, fedavg, fedcs, local, safa
from .tasks import COPY_SECONDS, CRASHES, FRACTIONS, LAG, SafaFleet, SafaTask, fleet

__all__ = [
    "ALGORITHMS",
    "FIXED",
    "GridCost",
    "SEEDS",
    "STRICT",
    "TIGHT",
    "UNITS",
    "agrees",
    "cost",
    "costs",
    "grid",
    "printed_futility",
    "printed_ratio",
    "row_claims",
    "simulate",
    "study",
]


# ------------------------------------------------------------------ all 240 runs, simulated

ALGORITHMS = ("Fully local", "FedAvg", "FedCS", "SAFA")
FIXED = Accounting("taken", outside=True)
"""As `COMPAT` for SAFA, but with the distribution time of the round alone."""
STRICT = Accounting("deadline", outside=True)
"""As `FIXED`, and a server that waits until the limit while its quota is unmet, as Algorithm 1 says."""
SEEDS = 20
_LOCAL = Accounting("asked")

Key = tuple[str, float, float]


@dataclass(frozen=True)
class GridCost:
    """A cell over several draws of fleet and trace: the mean and the standard deviation of one run's value.

    Attributes:
        mean: over draws.
        spread: standard deviation between draws: how far a single printed run may be off.
    """

    mean: float
    spread: float


def simulate(
    task: SafaTask,
    algorithm: str,
    fraction: float,
    members: SafaFleet,
    crashes: Crashes,
    seed: int,
    *,
    compat: bool = True,
    lag: int = LAG,
) -> SafaRounds:
    """Simulate one run, without training.

    Args:
        task: the task, with its limit.
        algorithm: one of `ALGORITHMS`.
        fraction: ``C``.
        members: the clients.
        crashes: the trace.
        seed: of the random selection.
        compat: SAFA takes replies by the clients' speed and skips those whose training alone exceeds the limit, as the
            author's program does; otherwise by arrival, and skips those that arrive too late.
        lag: SAFA's tolerance.
    """
    rng = np.random.default_rng([seed, 1])
    seconds = members.seconds
    if algorithm == "FedAvg":
        return fedavg(crashes, seconds, fraction, rng, task.limit)
    if algorithm == "FedCS":
        return fedcs(crashes, seconds, fraction, rng, members.forecast, task.limit)
    if algorithm == "SAFA":
        order = -members.speeds if compat else seconds
        able = (members.training if compat else seconds) <= task.limit
        return safa(crashes, seconds, fraction, lag, order=order, pickable=able)
    return local(crashes, members.training, fraction, rng)


def printed_futility(made: SafaRounds) -> float:
    """Return futility as in the tables: each client's share of wasted time, and the plain mean (the author's program).

    Under SAFA the time of a round counts as lost if the client was overwritten at its start and finished, out of all
    rounds that it finished. Otherwise a crash loses the time until then, and a client that was never asked counts as
    fully lost; both sums start from 0.01 s.
    """
    if made.resumes:
        done = made.picked | made.undrafted
        lost, busy = (made.deprecated & done).sum(axis=0), np.maximum(done.sum(axis=0), 1)
        return float((lost / busy).mean())
    lost = 0.01 + made.seconds * np.where(made.crashed, made.point, 0.0).sum(axis=0)
    return float((lost / (0.01 + made.seconds * made.asked.sum(axis=0))).mean())


def printed_ratio(ratio: float, algorithm: str, fraction: float) -> float:
    """Return SR as in the tables, by the author's program: FedAvg's is set to ``C``; FedCS's is ``SR C / (C + 0.1)`` if it is above C.

    So 5 clients show C, and not ``ceil(5 C) / 5``.
    """
    if algorithm == "FedAvg":
        return fraction
    scaled = algorithm == "FedCS" and ratio > fraction + 1e-9
    return ratio * fraction / (fraction + 0.1) if scaled else ratio


def _measures(
    task: SafaTask, algorithm: str, fraction: float, made: SafaRounds, physical: RoundAccount
) -> dict[str, float]:
    log = made.log()

    def length(rule: Accounting, of: RoundAccount = log) -> float:
        return float(rule.lengths(of, COPY_SECONDS, task.limit).mean())

    printed = COMPAT.get(algorithm, _LOCAL)
    ratio = synchronisation_ratio(log)
    return {
        "length": length(printed),
        "distribution": float(printed.distribution(log, COPY_SECONDS).mean()),
        "synchronised": printed_ratio(ratio, algorithm, fraction),
        "futility": printed_futility(made),
        "copies": ratio,
        "wasted": futility(log),
        "forgotten": float(np.where(made.crashed, made.point, 0.0).sum() / made.asked.sum()),
        "effective": effective_update_ratio(log),
        "variance": version_variance(log),
        "patient": length(COMPAT["FedCS"]),
        "fixed": length(FIXED),
        "strict": length(STRICT),
        "corrected": length(_LOCAL if algorithm == "Fully local" else CORRECTED, physical),
        "corrected distribution": float(CORRECTED.distribution(physical, COPY_SECONDS).mean()),
    }


def cost(
    task: SafaTask, algorithm: str, crash: float, fraction: float, seeds: int = SEEDS, lag: int = LAG
) -> dict[str, GridCost]:
    """Return one run's quantities over several draws; see `grid` for their meaning."""
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        rng = np.random.default_rng([seed, 0])  # the same clients and crashes for every algorithm
        members = fleet(task, rng)
        crashes = draw_crashes(task.rounds, task.clients, crash, rng)
        run = simulate(task, algorithm, fraction, members, crashes, seed, lag=lag)
        other = run
        if algorithm == "SAFA":
            other = simulate(task, algorithm, fraction, members, crashes, seed, compat=False, lag=lag)
        for name, value in _measures(task, algorithm, fraction, run, other.log(literal=True)).items():
            found.setdefault(name, []).append(value)
    return {
        name: GridCost(float(np.mean(v)), float(np.std(v, ddof=1)) if seeds > 1 else 0.0) for name, v in found.items()
    }


def costs(task: SafaTask, algorithm: str, crash: float, seeds: int = SEEDS) -> dict[float, dict[str, GridCost]]:
    """Return a row of the tables: by fraction, each quantity by name."""
    return {fraction: cost(task, algorithm, crash, fraction, seeds) for fraction in FRACTIONS}


def grid(task: SafaTask, seeds: int = SEEDS) -> Mapping[Key, Mapping[str, GridCost]]:
    """Return all 80 runs of a task: ``(algorithm, cr, C) -> quantity -> cost``.

    Quantities: ``length``, ``distribution`` (seconds), ``synchronised`` and ``futility`` by the tables' own rules;
        ``corrected`` and ``corrected
    distribution`` (seconds) by Eqs. 3.4 and 3.6 with rounds that wait literally as in Algorithm 1, ``copies`` (SR) by
    Eq. 3.12 and ``wasted`` in client-rounds, and ``forgotten``, the loss if no crashed client resumes its work;
    ``fixed`` and ``strict`` between the two accountings (see `FIXED`, `STRICT`) and ``patient`` by the tables' rule for
    FedCS; ``effective`` (EUR), ``variance`` (VV).

    Args:
        task: the task.
        seeds: draws of clients and crashes.
    """
    return {
        (algorithm, crash, fraction): row
        for algorithm in ALGORITHMS
        for crash in CRASHES
        for fraction, row in costs(task, algorithm, crash, seeds).items()
    }


def study(task: SafaTask, fraction: float, crash: float, lag: int, seeds: int = SEEDS) -> dict[str, GridCost]:
    """Return SAFA with another tolerance."""
    return cost(task, "SAFA", crash, fraction, seeds, lag)


# ------------------------------------------------------------------ the rules

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
