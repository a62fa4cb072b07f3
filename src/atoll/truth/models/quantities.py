"""Numbers: `CRH`, which weighs workers by their distance to the truth, and the baselines `MeanReport` and `MedianReport`.

Models see numbers between 0 (the layout's ``low``) and 1 (its ``high``). So no unit and no offset of the reports reaches a sum, and bounds do not depend on them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from ..reports import CodedReports, TaskLayout, Values
from .model import Arrays, Floats, Term, TruthModel

__all__ = ["CRH", "MeanReport", "MedianReport"]


def _divide_sums(sums: Floats, weights: Floats, before: Floats, least: float) -> Floats:
    """Weighted means; a task whose weights are below ``least`` keeps what was there."""
    there = weights > least
    return np.where(there, np.clip(sums / np.where(there, weights, 1.0), 0.0, 1.0), before)


@dataclass(frozen=True, kw_only=True)
class _Quantity(TruthModel):
    values: ClassVar[tuple[Values, ...]] = ("numbers",)

    def start(self, layout: TaskLayout) -> Arrays:
        """The middle of the range for every task."""
        return {"truth": np.full(len(layout.tasks), 0.5)}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Nothing: all reports are equal."""
        return {}


@dataclass(frozen=True, kw_only=True)
class MeanReport(_Quantity):
    """The mean of all reports on a task: the baseline."""

    steps: ClassVar[tuple[str, ...]] = ("means",)

    iterations: int = 1

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Numbers, and how many."""
        shape = (len(layout.tasks),)
        return {"numbers": Term(shape, 1.0, signed=False), "reports": Term(shape, 1.0, signed=False)}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """The numbers of each task."""
        return {"numbers": reports.by_task(reports.number), "reports": reports.by_task(np.ones(len(reports.task)))}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """Their mean; a task without reports keeps its number."""
        return {"truth": _divide_sums(sums["numbers"], sums["reports"], broadcast["truth"], 0.5)}


@dataclass(frozen=True, kw_only=True)
class MedianReport(_Quantity):
    """The median of all reports on a task, from sums alone: each iteration halves the interval in which it lies.

    A party adds how many of its numbers are at most the middle of the interval. After ``k`` iterations the median is known to ``2^-k`` of the range. Of an even number of reports it is the mean of the two in the
    middle, so two intervals are halved at once.
    """

    steps: ClassVar[tuple[str, ...]] = ("below",)

    iterations: int = 40
    tolerance: float = 0.0

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """How many numbers lie below, and how many there are."""
        tasks = len(layout.tasks)
        return {"below": Term((2, tasks), 1.0, signed=False), "reports": Term((tasks,), 1.0, signed=False)}

    def start(self, layout: TaskLayout) -> Arrays:
        """The whole range for both medians."""
        tasks = len(layout.tasks)
        return {**super().start(layout), "low": np.zeros((2, tasks)), "high": np.ones((2, tasks))}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """How many numbers are at most the middles of the intervals."""
        middles = (broadcast["low"] + broadcast["high"]) / 2
        below = np.stack([reports.by_task(reports.number <= middle[reports.task]) for middle in middles])
        return {"below": below, "reports": reports.by_task(np.ones(len(reports.task)))}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The half in which the median lies."""
        many = sums["reports"]
        low, high = broadcast["low"], broadcast["high"]
        middles, wanted = (low + high) / 2, np.stack([np.floor((many + 1) / 2), np.floor(many / 2) + 1])
        left = sums["below"] > wanted - 0.5
        low, high = np.where(left, low, middles), np.where(left, middles, high)
        truth = np.where(many > 0.5, (low + high).mean(axis=0) / 2, broadcast["truth"])
        return {"truth": truth, "low": low, "high": high}


@dataclass(frozen=True, kw_only=True)
class CRH(_Quantity):
    """The mean of the reports, weighted by how near a worker's reports are to the truth (Li et al. 2014).

    In terms of the reports ``x``::

        rho_j  = sum of tau_i x_ij / sum of tau_i
        loss_i = mean over i's tasks of (rho_j - x_ij)^2
        tau_i  = ln(sum of all losses) - ln(loss_i)

    The opening step takes plain means. An iteration has two sums: the losses, whose total every worker needs for its weight, then the weighted numbers. A loss is at least ``delta`` squares of the range, so that a
    worker that is never wrong has a finite weight. A worker without reports adds nothing to the losses; one worker alone has the weight 0, and its task keeps the plain mean.

    Source: Li et al., "Resolving Conflicts in Heterogeneous Data by Truth Discovery and Source Reliability Estimation", SIGMOD 2014, section 2.4; FedTruthFinder, equations 35 and 36.

    Args:
        delta: the least loss, as a part of the squared range.
    """

    opening: ClassVar[tuple[str, ...]] = ("means",)
    steps: ClassVar[tuple[str, ...]] = ("losses", "numbers")

    delta: float = 1e-6

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-12 <= self.delta < 1:
            raise ConfigError(f"delta={self.delta}", remedy="use a number from 1e-12, below 1")

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """The total loss, or weighted numbers and their weights."""
        if step == "losses":
            return {"loss": Term((1,), 1.0, signed=False)}
        shape, most = (len(layout.tasks),), 1.0 if step == "means" else float(np.log(layout.workers / self.delta))
        return {"numbers": Term(shape, most, signed=False), "weights": Term(shape, most, signed=False)}

    def start(self, layout: TaskLayout) -> Arrays:
        """No losses yet."""
        return {**super().start(layout), "loss": np.ones(1)}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Equal weights."""
        return {"weight": np.ones(workers), "loss": np.zeros(workers)}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """The losses, or weighted numbers."""
        if step == "losses":
            return {"loss": state["loss"].sum(keepdims=True)}
        weight = state["weight"][reports.worker]
        return {"numbers": reports.by_task(weight * reports.number), "weights": reports.by_task(weight)}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The total loss, or weighted means; a task without reports keeps its number."""
        if step == "losses":
            return {**broadcast, "loss": sums["loss"]}
        truth = _divide_sums(sums["numbers"], sums["weights"], broadcast["truth"], 1e-6)
        return {**broadcast, "truth": truth}

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """The weight after the losses, and the own loss after the truth."""
        layout = reports.layout
        if step == "losses":
            ratio = np.log(np.maximum(broadcast["loss"], self.delta)) - np.log(np.maximum(state["loss"], self.delta))
            weight = np.clip(ratio, 0.0, np.log(layout.workers / self.delta))
            return {**state, "weight": np.where(reports.counts > 0, weight, state["weight"])}
        losses = reports.mean_by_worker((broadcast["truth"][reports.task] - reports.number) ** 2, np.zeros(1))
        return {**state, "loss": np.where(reports.counts > 0, np.maximum(losses, self.delta), 0.0)}

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """The weight of each worker."""
        return state["weight"]
