"""Cells of the table: a method on a task, over seeds, and the cost of reaching the target."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from atoll.reproduce import Lab, TrainedRun

from .methods import METHODS, FedAQMethod, settings
from .paper import BITS, COLUMNS
from .tasks import FedAQTask

__all__ = ["FedAQCell", "cell", "first_round", "target_of"]

_METRIC = "test/accuracy"


@dataclass(frozen=True)
class FedAQCell:
    """A method on a task.

    Attributes:
        method: the row.
        task: the column.
        rounds: until the target, for each seed; ``None`` if it was not reached.
        best: the best accuracy of each seed until then.
        measured: bytes up of one client until then, mean of the seeds that reached it.
    """

    method: FedAQMethod
    task: FedAQTask
    rounds: tuple[int | None, ...]
    best: tuple[float, ...]
    measured: float

    @property
    def reached(self) -> list[int]:
        """Return the rounds of the seeds that reached the target."""
        return [found for found in self.rounds if found is not None]

    @property
    def mean(self) -> float:
        """Return the mean rounds; infinite if a seed did not reach the target."""
        return float(np.mean(self.reached)) if len(self.reached) == len(self.rounds) else float("inf")

    @property
    def bits(self) -> float:
        """Return the uplink bits of one client until the target, as the paper counts: no headers, 32 bits for a number that is not quantised."""
        return self.mean * self.method.bits * self.task.parameters

    def seconds(self, devices: int | None = None) -> float:
        """Return the human time with the paper's sizes and computing at our rounds; a control computes as long as its base method.

        Args:
            devices: devices that share the links; the number in the paper's text if ``None``.
        """
        column, base = COLUMNS[self.task.column], self.method.base
        row = base if base in column.cells else next(name for name in column.cells if BITS[name] == BITS[base])
        fits = column.fits
        each = column.seconds(row, 1, devices or column.devices, column.residual(row, fits))
        return self.mean * each

    def __str__(self) -> str:
        if not self.reached:
            return f"not in {self.task.limit}"
        spread = f" ± {np.std(self.reached, ddof=1):.1f}" if len(self.reached) > 1 else ""
        missed = len(self.rounds) - len(self.reached)
        return (
            f"{np.mean(self.reached):.1f}".removesuffix(".0")
            + spread
            + (f" ({missed} not in {self.task.limit})" if missed else "")
        )


def first_round(run: TrainedRun, target: float) -> int | None:
    """Return the first round that meets the target."""
    met = [int(row["round"]) for row in run.rows if row.get(_METRIC) is not None and row[_METRIC] >= target]
    return met[0] if met else None


def target_of(lab: Lab, task: FedAQTask) -> float:
    """Return the task's target: the paper's, or the best accuracy that FedAvg reaches with every seed in ``task.rounds`` rounds."""
    if task.target is not None:
        return task.target
    return min(lab.train(settings(METHODS["FedAvg"], task, seed)).best() for seed in range(task.seeds))


def cell(
    lab: Lab, method: FedAQMethod, task: FedAQTask, target: float, seeds: Iterable[int] | None = None
) -> FedAQCell:
    """Run a cell, or read it back."""
    rounds, best, sent = [], [], []
    for seed in range(task.seeds) if seeds is None else seeds:
        run = lab.train(settings(method, task, seed, target=target))
        met = first_round(run, target)
        until = [row for row in run.rows if met is None or row["round"] <= met]
        rounds.append(met)
        best.append(max(float(row[_METRIC]) for row in until))
        sent.append(sum(int(row["bytes_up"]) for row in until) / task.clients)
    return FedAQCell(method, task, tuple(rounds), tuple(best), float(np.mean(sent)))
