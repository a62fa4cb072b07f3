"""Workers who confuse classes, by expectation and maximisation: `DawidSkene` with a matrix a worker, `OneCoin` with one number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from ..reports import CodedReports, TaskLayout, Values
from .model import EVIDENCE, Arrays, Floats, Term, TruthModel
from .voting import count_votes, share_votes

__all__ = ["DawidSkene", "OneCoin", "add_coin_logs", "share_likelihoods"]

_NO_BOUND = -1e300
"""Below any evidence lower bound; finite, since broadcasts are blended."""

_SAME_REPORTS = 2.0**-20
"""Reports a task that two iterations may differ by, because of rounding."""

_RAREST = 1e-10  # part of the rarest class, as in crowd-kit


def share_likelihoods(layout: TaskLayout, logs: Floats, before: Floats, priors: Floats | float = 0.0) -> Floats:
    """Return the probability of each cell, of sums of log-likelihoods, ``(cells,)``; a task without reports keeps what was there.

    Args:
        layout: the layout.
        logs: sums of log-likelihoods, ``(cells,)``.
        before: the probabilities before, ``(cells,)``.
        priors: log-probabilities of the cells before any report.
    """
    silent = np.minimum.reduceat(logs, layout.starts) > -EVIDENCE / 2
    return np.where(silent[layout.owners], before, layout.share_cells(logs + priors))


def add_coin_logs(reports: CodedReports, right: Floats, wrong: Floats) -> Floats:
    """Return sums of log-likelihoods where all wrong labels are equally likely, ``(cells,)``.

    Args:
        reports: the reports.
        right: the log-probability of the label if it is the truth, ``(reports,)``.
        wrong: if another one is.
    """
    right, wrong = np.minimum(right, -EVIDENCE), np.minimum(wrong, -EVIDENCE)
    return reports.by_cell(right - wrong) + reports.by_task(wrong)[reports.layout.owners]


def _count_priors(layout: TaskLayout, truth: Floats) -> Arrays:
    """How often each class is true; nothing for claims."""
    return {"priors": truth.reshape(-1, len(layout.classes)).mean(axis=0)} if layout.classes else {}


def _prior_logs(layout: TaskLayout, broadcast: Arrays) -> Floats | float:
    """The log-probability of each cell before any report."""
    if not layout.classes:
        return 0.0
    return np.tile(np.log(np.maximum(broadcast["priors"], _RAREST)), len(layout.tasks))


def _expect_truth(step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
    """The probabilities of the truth from votes or log-likelihoods, and the parts of the classes."""
    if step == "votes":
        truth = share_votes(layout, sums["votes"], broadcast["truth"])
    else:
        truth = share_likelihoods(layout, sums["logs"], broadcast["truth"], _prior_logs(layout, broadcast))
    return {"truth": truth, **_count_priors(layout, truth)}


@dataclass(frozen=True, kw_only=True)
class DawidSkene(TruthModel):
    """Every worker has a matrix of how it confuses classes (Dawid and Skene 1979).

    With ``T`` the probabilities of the truth, ``q`` the parts of the classes, and ``e_i[l, c]`` the probability that worker ``i`` says ``l`` when ``c`` is true::

        E:  T[t, c] is proportional to  q[c] * product over reports (i, l) on t of e_i[l, c]
        M:  e_i[l, c] = sum over i's reports l of T[t, c], at least floor, divided by the column's sum;  q[c] = mean of T[:, c]

    The log-likelihoods add up over workers; the matrix stays with its worker. The opening step counts votes. As in crowd-kit, an iteration is an E-step and an M-step, counts are at least ``floor``, and a
    worker's matrix has rows for the labels that it gave.

    As there too, a fit ends when the evidence lower bound rises by less than ``tolerance`` a report: further iterations hardly explain the reports better, and may move tasks on which little is known. The bound of an iteration follows
    from the sums of the next one, which then keeps the truth. Iterations with other numbers of reports are not compared.

    Source: Dawid and Skene, "Maximum Likelihood Estimation of Observer Error-Rates Using the EM Algorithm", Applied Statistics 28 (1979).

    Args:
        floor: the least count of a label; it bounds the log-likelihoods. Larger values trust small counts less.
    """

    opening: ClassVar[tuple[str, ...]] = ("votes",)
    steps: ClassVar[tuple[str, ...]] = ("likelihoods",)

    iterations: int = 100
    floor: float = 1e-10

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-30 <= self.floor <= 1e3:
            raise ConfigError(f"floor={self.floor}", remedy="use a number from 1e-30 to 1000")

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Votes, then the log-likelihoods of cells."""
        if step == "votes":
            return {"votes": Term((layout.cells,), 1.0, signed=False)}
        most = np.log((len(layout.tasks) + len(layout.classes) * self.floor) / self.floor)
        return {"logs": Term((layout.cells,), max(float(most), EVIDENCE)), "reports": Term((1,), 1.0, signed=False)}

    def start(self, layout: TaskLayout) -> Arrays:
        """Even parts of the classes, and no bound yet."""
        even = super().start(layout)
        return {**even, **_count_priors(layout, even["truth"]), "bound": np.array([_NO_BOUND]), "reports": np.zeros(1)}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Matrices that say nothing."""
        classes = len(layout.classes)
        return {"errors": np.full((workers, classes, classes), 1 / classes)}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Votes, or the logarithms of the rows of the labels that are said."""
        layout = reports.layout
        if step == "votes":
            return count_votes(layout, reports)
        classes = len(layout.classes)
        errors = state["errors"]
        logs = np.minimum(np.log(np.where(errors > 0, errors, 1.0)), -EVIDENCE).reshape(-1, classes)
        rows = reports.worker * classes + reports.label
        there = np.array([len(reports.task) / len(layout.tasks)])
        return {"logs": np.stack([reports.by_task(logs[rows, c]) for c in range(classes)], axis=1).ravel(), "reports": there}  # fmt: skip

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The E-step, and the parts of the classes; what was there, if the evidence lower bound has settled."""
        if step == "votes":
            return {**broadcast, **_expect_truth(step, layout, sums, broadcast)}
        bound = np.array([_NO_BOUND])
        if abs(float(sums["reports"][0] - broadcast["reports"][0])) < _SAME_REPORTS:
            bound = self._bound_evidence(layout, sums, broadcast)
            if self.tolerance > 0 and bound[0] - broadcast["bound"][0] < self.tolerance:
                return broadcast
        return {**_expect_truth(step, layout, sums, broadcast), "bound": bound, "reports": sums["reports"]}

    @staticmethod
    def _bound_evidence(layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Floats:
        """The evidence lower bound of the broadcast, a report: of the matrices that were learned from it. crowd-kit counts a prior for each report."""
        truth, each = broadcast["truth"], float(sums["reports"][0])
        said = float(truth @ sums["logs"]) + each * float(truth @ _prior_logs(layout, broadcast))
        known = np.maximum(truth, _RAREST)
        return np.array([(said - float(known @ np.log(known))) / max(each * len(layout.tasks), 1.0)])

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """The M-step: the matrix stays here."""
        layout = reports.layout
        classes, workers = len(layout.classes), len(reports.workers)
        truth = broadcast["truth"].reshape(-1, classes)
        rows, most = reports.worker * classes + reports.label, workers * classes
        counts = np.stack([np.bincount(rows, truth[reports.task, c], most) for c in range(classes)], axis=1)
        given = np.bincount(rows, minlength=most) > 0
        counts = np.where(given[:, None], np.maximum(counts, self.floor), 0.0).reshape(workers, classes, classes)
        whole = counts.sum(axis=1, keepdims=True)
        return {"errors": np.where(whole > 0, counts / np.where(whole > 0, whole, 1.0), state["errors"])}

    def confusions(self, layout: TaskLayout, state: Arrays) -> Floats:
        """Each worker's matrix, ``(workers, labels, classes)``."""
        return state["errors"]

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """The mean of the matrix's diagonal: how often a worker is right if all classes are equally frequent."""
        right: Floats = np.einsum("wcc->w", state["errors"])
        return right / len(layout.classes)


@dataclass(frozen=True, kw_only=True)
class OneCoin(TruthModel):
    """Every worker is right with one probability, and all its errors are equally likely (Zhang et al. 2016).

    ``p_i`` is the mean probability of what worker ``i`` said, within ``[delta, 1 - delta]``; a label adds ``ln p_i`` to its cell and ``ln((1 - p_i) / (m - 1))`` to the other ``m - 1`` cells of its task. Of classes, ``q`` are the parts, as
    in `DawidSkene`; claims have even priors. The opening step counts votes.

    Source: Zhang, Chen, Zhou and Jordan, "Spectral Methods Meet EM: A Provably Optimal Algorithm for Crowdsourcing", JMLR 17 (2016).

    Args:
        delta: probabilities stay so far from 0 and 1.
    """

    values: ClassVar[tuple[Values, ...]] = ("classes", "claims")
    opening: ClassVar[tuple[str, ...]] = ("votes",)
    steps: ClassVar[tuple[str, ...]] = ("likelihoods",)

    iterations: int = 100
    delta: float = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1e-12 <= self.delta < 0.5:
            raise ConfigError(f"delta={self.delta}", remedy="use a number from 1e-12, below 0.5")

    def terms(self, step: str, layout: TaskLayout) -> dict[str, Term]:
        """Votes, then the log-likelihoods of cells."""
        if step == "votes":
            return {"votes": Term((layout.cells,), 1.0, signed=False)}
        others = max(int(layout.widths.max()) - 1, 1)
        return {"logs": Term((layout.cells,), float(np.log(others / self.delta)))}

    def start(self, layout: TaskLayout) -> Arrays:
        """Even parts of the classes, and no bound yet."""
        even = super().start(layout)
        return {**even, **_count_priors(layout, even["truth"]), "bound": np.array([_NO_BOUND]), "reports": np.zeros(1)}

    def start_workers(self, layout: TaskLayout, workers: int) -> Arrays:
        """Workers who are nearly always right."""
        return {"skill": np.full(workers, 1 - self.delta)}

    def contribute(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """Votes, or the log-likelihoods of what is said."""
        layout = reports.layout
        if step == "votes":
            return count_votes(layout, reports)
        skill = state["skill"][reports.worker]
        others = np.maximum(layout.widths[reports.task] - 1, 1)
        return {"logs": add_coin_logs(reports, np.log(skill), np.log((1 - skill) / others))}

    def combine(self, step: str, layout: TaskLayout, sums: Arrays, broadcast: Arrays) -> Arrays:
        """The E-step, and the parts of the classes."""
        return _expect_truth(step, layout, sums, broadcast)

    def learn(self, step: str, state: Arrays, reports: CodedReports, broadcast: Arrays) -> Arrays:
        """The mean probability of what a worker said."""
        skill = reports.mean_by_worker(broadcast["truth"][reports.cell], state["skill"])
        return {"skill": np.clip(skill, self.delta, 1 - self.delta)}

    def confusions(self, layout: TaskLayout, state: Arrays) -> Floats:
        """Each worker's matrix: its skill on the diagonal, the rest in equal parts."""
        if not layout.classes:
            return super().confusions(layout, state)
        classes, skill = len(layout.classes), state["skill"][:, None, None]
        return np.where(np.eye(classes, dtype=bool), skill, (1 - skill) / (classes - 1))

    def skills(self, layout: TaskLayout, state: Arrays) -> Floats:
        """How often each worker is right."""
        return state["skill"]
