"""`GLAD`: abilities of workers and difficulties of tasks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from ..reports import CodedReports, TaskLayout
from .confusion import add_coin_logs, share_likelihoods
from .model import EVIDENCE, Arrays, Floats, Term, TruthModel

__all__ = ["GLAD"]

_LOGIT = 30.0  # a probability within 1e-13 of 0 or 1
_STEP = 1.0  # longest step of a logarithm


@dataclass(frozen=True, kw_only=True)
class GLAD(TruthModel):
    """A label is right with probability ``sigma(alpha_i exp(beta_t))``: worker ``i`` has an ability, task ``t`` an ease (Whitehill et al. 2009).

    All wrong labels are equally likely, and abilities and eases have normal priors of mean 1 and variance 1. An ability below 0 is that of a worker who is wrong more often than right.

    Expectation and maximisation, in one sum an iteration: parties add the log-likelihoods of the truth, and the gradient and curvature of the eases, of the probabilities before. The server takes one step of
    Fisher's scoring an ease; a worker takes some on its own ability::

        beta_t  += (sum over i of (T[t, l] - sigma) a - (beta_t - 1)) / (sum over i of sigma (1 - sigma) a^2 + 1),   a = alpha_i exp(beta_t)

    A stationary point is one of the likelihood with these priors, as that of the paper's conjugate gradients, and needs no line search over the federation. Steps are at most 1.

    Source: Whitehill, Ruvolo, Wu, Bergsma and Movellan, "Whose Vote Should Count More", NIPS 2009; many classes and priors as in crowd-kit.
    """

    opening: ClassVar[tuple[str, ...]] = ("likelihoods",)
    steps: ClassVar[tuple[str, ...]] = ("likelihoods and slopes",)

    iterations: int = 100

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Log-likelihoods of cells, and the slopes and curvatures of eases."""
        logs = Term((layout.cells,), _LOGIT + float(np.log(max(len(layout.classes) - 1, 1))) + EVIDENCE)
        if step == "likelihoods":
            return {"logs": logs}
        tasks = (len(layout.tasks),)
        return {"logs": logs, "slope": Term(tasks, _LOGIT), "curvature": Term(tasks, 0.5, signed=False)}

    def start(self, layout: TaskLayout) -> Arrays:
        """Every task is of ease 1."""
        return {**super().start(layout), "ease": np.ones(len(layout.tasks))}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Every worker is of ability 1."""
        return {"ability": np.ones(workers)}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Log-likelihoods at the present ability, and slopes at the probabilities before."""
        layout = reports.layout
        logit = np.clip(state["ability"][reports.worker] * np.exp(broadcast["ease"])[reports.task], -_LOGIT, _LOGIT)
        right, wrong = -np.logaddexp(0.0, -logit), -np.logaddexp(0.0, logit)
        logs = add_coin_logs(reports, right, wrong - np.log(len(layout.classes) - 1))
        if step == "likelihoods":
            return {"logs": logs}
        sigma = np.exp(right)
        slope = reports.by_task((broadcast["truth"][reports.cell] - sigma) * logit)
        return {"logs": logs, "slope": slope, "curvature": reports.by_task(sigma * np.exp(wrong) * logit**2)}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The E-step, and a step of each ease."""
        truth, ease = share_likelihoods(layout, sums["logs"], broadcast["truth"]), broadcast["ease"]
        if step != "likelihoods":
            change = (sums["slope"] - (ease - 1)) / (np.maximum(sums["curvature"], 0.0) + 1)
            ease = ease + np.clip(change, -_STEP, _STEP)
        return {"truth": truth, "ease": ease}

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Three steps on the own ability."""
        ability, scale = state["ability"], np.exp(broadcast["ease"])[reports.task]
        said = broadcast["truth"][reports.cell]
        for _ in range(3):
            sigma = 1 / (1 + np.exp(-np.clip(ability[reports.worker] * scale, -_LOGIT, _LOGIT)))
            slope = reports.by_worker((said - sigma) * scale) - (ability - 1)
            curvature = reports.by_worker(sigma * (1 - sigma) * scale**2) + 1
            ability = ability + np.clip(slope / curvature, -_STEP, _STEP)
        return {"ability": ability}

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """The ability of each worker."""
        return state["ability"]
