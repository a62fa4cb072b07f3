"""Votes, equal or weighted by trust: `MajorityVote`, `WeightedSum` and `Logistic`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from ..reports import CodedReports, TaskLayout, Values
from .model import EVIDENCE, Arrays, Floats, Term, TruthModel

__all__ = ["Logistic", "MajorityVote", "WeightedSum", "count_votes", "share_votes"]


def count_votes(layout: TaskLayout, reports: CodedReports) -> Arrays:
    """Return how many workers say what, ``(cells,)``."""
    return {"votes": np.bincount(reports.cell, minlength=layout.cells).astype(np.float64)}


def share_votes(layout: TaskLayout, votes: Floats, before: Floats) -> Floats:
    """Return each cell's part of its task's votes, ``(cells,)``; a task without votes keeps what was there."""
    whole = layout.sum_tasks(votes)[layout.owners]
    return np.where(whole > 0, votes / np.where(whole > 0, whole, 1.0), before)


@dataclass(frozen=True, kw_only=True)
class MajorityVote(TruthModel):
    """The part of the workers who say so: the baseline.

    Of labels that tie, the first is the truth; `score_labels` gives each its part.
    """

    values: ClassVar[tuple[Values, ...]] = ("classes", "claims")
    steps: ClassVar[tuple[str, ...]] = ("votes",)

    iterations: int = 1

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """The votes of each cell."""
        return {"votes": Term((layout.cells,), 1.0, signed=False)}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Nothing: all votes are equal."""
        return {}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """One for each label that is said."""
        layout = reports.layout
        return count_votes(layout, reports)

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """Parts of the votes."""
        return {"truth": share_votes(layout, sums["votes"], broadcast["truth"])}


@dataclass(frozen=True, kw_only=True)
class _Events(TruthModel):
    """What `WeightedSum` and `Logistic` share: events that are true or false, and the trust in a worker.

    With two classes an event is "the second class is true": a number a task. With more, every class of a task is an event, and a report says one and denies the others (section "Extensions" of the paper).
    The trust is the mean of the confidences in what a worker said (equation 13)::

        tau_i = mean over its events of  rho_j if it said so, 1 - rho_j if it denied it

    within ``[delta, 1 - delta]``. A worker without reports keeps its trust.

    Args:
        trust: the trust in every worker at the beginning.
        delta: trust stays so far from 0 and 1, and so every sum is bounded.
    """

    values: ClassVar[tuple[Values, ...]] = ("classes", "claims")

    trust: float = 0.9
    delta: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.delta < 0.5:
            raise ConfigError(f"delta={self.delta}", remedy="use a number above 0 and below 0.5")
        if not self.delta <= self.trust <= 1 - self.delta:
            raise ConfigError(f"trust={self.trust}", remedy=f"use a number from {self.delta:g} to {1 - self.delta:g}")

    @staticmethod
    def _binary(layout: TaskLayout) -> bool:
        return len(layout.classes) == 2

    def _events(self, layout: TaskLayout) -> int:
        return len(layout.tasks) if self._binary(layout) else layout.cells

    def start(self, layout: TaskLayout) -> Arrays:
        """The confidence in each event: one half of each of two classes, an equal part of more."""
        if self._binary(layout):
            return {"truth": np.full(len(layout.tasks), 0.5)}
        return super().start(layout)

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """The same trust in all workers."""
        return {"trust": np.full(workers, self.trust)}

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Equation 13."""
        layout = reports.layout
        truth = broadcast["truth"]
        if self._binary(layout):
            agreed = np.where(reports.label == 1, truth[reports.task], 1 - truth[reports.task])
        else:
            widths, whole = layout.widths[reports.task], layout.sum_tasks(truth)[reports.task]
            agreed = (2 * truth[reports.cell] + widths - 1 - whole) / widths
        trust = reports.mean_by_worker(agreed, state["trust"])
        return {"trust": np.clip(trust, self.delta, 1 - self.delta)}

    def shares(self, layout: TaskLayout, broadcast: Arrays) -> Floats:
        """The confidence in each class; of more than two, each divided by their sum."""
        truth = broadcast["truth"]
        if self._binary(layout):
            return np.stack([1 - truth, truth], axis=1).ravel()
        return truth / np.maximum(layout.sum_tasks(truth)[layout.owners], 1e-300)

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """The trust in each worker."""
        return state["trust"]


@dataclass(frozen=True, kw_only=True)
class WeightedSum(_Events):
    """SUM of FedTruthFinder: the confidence in an event is the part of the trust of those who say so (equation 12).

    In terms of the trust ``tau``::

        rho_j = sum of tau_i of those who say so / sum of tau_i of all who reported

    Source: "FedTruthFinder", section 3 and equations 12, 13, 20 to 24.
    """

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """The trust of those who say so, and of all who reported."""
        most = 1 - self.delta
        return {"said": Term((self._events(layout),), most, signed=False), "reported": Term((len(layout.tasks),), most, signed=False)}  # fmt: skip

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Equations 20 and 21."""
        layout = reports.layout
        trust = state["trust"][reports.worker]
        said = reports.by_task(trust * reports.label) if self._binary(layout) else reports.by_cell(trust)
        return {"said": said, "reported": reports.by_task(trust)}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """Equations 22 to 24; a task without reports keeps its confidence."""
        whole = sums["reported"] if self._binary(layout) else sums["reported"][layout.owners]
        there = whole > 0.5 * self.delta  # one reporter has at least delta
        part = np.clip(sums["said"] / np.where(there, whole, 1.0), 0.0, 1.0)
        return {"truth": np.where(there, part, broadcast["truth"])}


@dataclass(frozen=True, kw_only=True)
class Logistic(_Events):
    """LOGISTIC of FedTruthFinder: those who say so against those who deny it (equations 15 to 19).

    In terms of the trust ``tau``::

        tau*_i = -ln(1 - tau_i)
        rho_j  = 1 / (1 + exp(-(sum of tau*_i of those who say so - sum of tau*_k of those who deny it)))

    One number an event. So a sum of zero may be silence or a draw; either keeps the confidence, which is one half at the beginning.

    Source: "FedTruthFinder", section 3 and equations 14 to 19, 25, 26.
    """

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Those who say so less those who deny it."""
        return {"said": Term((self._events(layout),), -float(np.log(self.delta)))}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Equation 25."""
        layout = reports.layout
        weight = -np.log1p(-state["trust"])[reports.worker]
        if self._binary(layout):
            return {"said": reports.by_task(weight * (2 * reports.label - 1))}
        return {"said": 2 * reports.by_cell(weight) - reports.by_task(weight)[layout.owners]}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """Equation 26; a sum of zero keeps the confidence."""
        said = sums["said"]
        draw = np.abs(said) < EVIDENCE  # not exactly zero: workers may be added up in any order
        return {"truth": np.where(draw, broadcast["truth"], 1 / (1 + np.exp(-np.clip(said, -700, 700))))}
