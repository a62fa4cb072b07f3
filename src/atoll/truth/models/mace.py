"""`MACE`: workers who know, and workers who answer without looking."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from ..reports import CodedReports, TaskLayout
from .confusion import share_likelihoods
from .model import EVIDENCE, Arrays, Floats, Term, TruthModel

__all__ = ["MACE"]


def _digamma(x: Floats) -> Floats:
    """The derivative of ``ln Gamma`` for positive numbers, to 1e-12: recurrence to at least 10, then the asymptotic series (Abramowitz and Stegun 6.3.18)."""
    shift = np.zeros_like(x)
    for _ in range(10):
        low = x < 10
        shift = shift - np.where(low, 1 / x, 0.0)
        x = np.where(low, x + 1, x)
    square = 1 / (x * x)
    series = square * (1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132))))
    return shift + np.log(x) - 0.5 / x - series


@dataclass(frozen=True, kw_only=True)
class MACE(TruthModel):
    """A worker knows the truth of a task and says it, or answers by a habit of its own (Hovy et al. 2013).

    With ``k_i`` the weight of knowing, ``s_i`` of not, and ``h_i[l]`` of label ``l`` in worker ``i``'s habit, the likelihood of label ``l`` is ``s_i h_i[l] + k_i [l = c]`` when ``c`` is true. The log-likelihoods add up over workers;
    ``k``, ``s`` and ``h`` stay with theirs. The maximisation is that of variational Bayes: weights are ``exp(digamma(count + prior)) / exp(digamma(sum))``.

    Every worker begins with ``k = s = 1/2`` and an even habit, and labels mean what they say. So there are no random restarts, and the same reports give the same result.

    Source: Hovy, Berg-Kirkpatrick, Vaswani and Hovy, "Learning Whom to Trust with MACE", NAACL 2013, sections 2 and 3.

    Args:
        knowing_prior: prior count of tasks that a worker knows, and of those that it does not.
        habit_prior: prior count of each label in a worker's habit.
    """

    steps: ClassVar[tuple[str, ...]] = ("likelihoods",)

    iterations: int = 50
    knowing_prior: float = 0.5
    habit_prior: float = 10.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("knowing_prior", "habit_prior"):
            if not 1e-3 <= getattr(self, name) <= 1e6:
                raise ConfigError(f"{name}={getattr(self, name)}", remedy="use a number from 0.001 to 1,000,000")

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Log-likelihoods of cells."""
        return {"logs": Term((layout.cells,), -float(np.log(self._least(layout))))}

    def _least(self, layout: TaskLayout) -> float:
        """A lower bound of ``s h[l]``: of no count, and all tasks on the other side."""
        tasks, classes = float(len(layout.tasks)), len(layout.classes)
        ends = _digamma(np.array([self.knowing_prior, tasks + 2 * self.knowing_prior, self.habit_prior, tasks + classes * self.habit_prior]))  # fmt: skip
        return min(float(np.exp(ends[0] - ends[1] + ends[2] - ends[3])), 0.5 / classes)

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Workers who know as often as not, without a habit."""
        classes = len(layout.classes)
        return {"knowing": np.full((workers, 2), 0.5), "habit": np.full((workers, classes), 1 / classes)}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Log-likelihoods of what is said."""
        layout = reports.layout
        guessed, known = self._ways(state, reports)
        right, wrong = np.minimum(np.log(guessed + known), -EVIDENCE), np.minimum(np.log(guessed), -EVIDENCE)
        return {"logs": reports.by_cell(right - wrong) + reports.by_task(wrong)[layout.owners]}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The E-step, with even priors."""
        return {"truth": share_likelihoods(layout, sums["logs"], broadcast["truth"])}

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """What is expected to be known, and the habit of the rest."""
        layout = reports.layout
        guessed, known = self._ways(state, reports)
        knew = broadcast["truth"][reports.cell] * known / (guessed + known)
        classes = len(layout.classes)
        rows = reports.worker * classes + reports.label
        habit = (
            np.bincount(rows, 1 - knew, len(reports.workers) * classes)
            .reshape(-1, classes)
            .astype(np.float64, copy=False)
        )
        counts = np.stack([reports.by_worker(knew), reports.by_worker(1 - knew)], axis=1)
        found = {"knowing": _vary(counts, self.knowing_prior), "habit": _vary(habit, self.habit_prior)}
        there = reports.counts[:, None] > 0
        return {name: np.where(there, value, state[name]) for name, value in found.items()}

    def _ways(self, state: Arrays, reports: CodedReports) -> tuple[Floats, Floats]:
        """The probabilities of each report's label by habit, and of knowing."""
        knowing = state["knowing"][reports.worker]
        return knowing[:, 1] * state["habit"][reports.worker, reports.label], knowing[:, 0]

    def confusions(self, layout: TaskLayout, state: Arrays) -> Floats:
        """How probable each label is when each class is true, of weights that add up to 1."""
        knowing = state["knowing"] / state["knowing"].sum(axis=1, keepdims=True)
        habit = state["habit"] / state["habit"].sum(axis=1, keepdims=True)
        known = np.eye(len(layout.classes)) * knowing[:, 0, None, None]
        errors: Floats = known + (knowing[:, 1, None] * habit)[:, :, None]
        return errors

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """How often each worker knows the truth."""
        weights = state["knowing"]
        known: Floats = weights[:, 0] / (weights[:, 0] + weights[:, 1])
        return known


def _vary(counts: Floats, prior: float) -> Floats:
    """The weights of variational Bayes, which add up to less than 1."""
    whole = counts + prior
    return np.exp(_digamma(whole) - _digamma(whole.sum(axis=1, keepdims=True)))
