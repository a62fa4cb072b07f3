"""`TruthResult`: what a campaign has found, and how it compares with all reports in one place."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from atoll.core.errors import DataError

from .choosing import hold_out
from .models.model import Arrays, TruthFit, TruthModel, blend_broadcast
from .noise import ContributionNoise
from .parties import own_reports
from .reporters import ReporterTest
from .reports import Reports, TaskLayout, pool_sites

__all__ = ["PlainComparison", "TruthResult", "TruthStep", "are_here", "replay_steps"]


@dataclass(frozen=True)
class TruthStep:
    """One sum of a campaign.

    Attributes:
        iteration: its iteration, 0 for the opening.
        step: its name.
        senders: the parties whose contributions are in it.
    """

    iteration: int
    step: str
    senders: tuple[str, ...]


@dataclass(frozen=True)
class PlainComparison:
    """How a result compares with all reports in one place, with the same losses.

    Attributes:
        agreement: the part of the tasks with the same truth; of numbers, those within a millionth of the range.
        max_difference: the largest difference of a probability, or of a number as a part of the range.
        truth: task -> its truth, with all reports in one place.
    """

    agreement: float
    max_difference: float
    truth: Mapping[str, Any] = field(repr=False)


@dataclass(frozen=True)
class TruthResult:
    """What a campaign has found.

    Attributes:
        fit: the model with its last broadcast; without states of workers, which stay at their parties.
        steps: who was in each sum.
        parties: the parties that began.
        lost: those that were missing in a sum.
        bytes_up: bytes that the busiest party sent in an iteration.
        bytes_down: bytes that it received.
        holders: how many parties held shares, and the threshold.
        wrong: holders that sent wrong sums, which were corrected, or accused a party falsely.
        cheats: parties whose shares lay on no polynomial; their contributions were left out.
        repeated: reports that were left out because their worker had reported on their task before.
        reports: how many reports there are.
        workers: how many workers.
        alpha: the exponent of the weights of steps with losses.
        data: the reports by party, where the result was made from them.
        ranking: the parties by how reliable their workers are, the best first, where the job makes a leader-board; those that were lost are not in it.
        unranked: why there is no leader-board, although the job makes one; too many were lost at its end.
        withheld: the tasks that never had ``min_reporters`` reporters at once: they have no truth here.
        min_reporters: how many those are.
        noise: the noise of each sum, where there is some.
        score: the mean log-probability of the reports that were held out, each at least -7; ``None`` if none were.
        held: how many those are.
        held_out: the part of the reports that the job held out.
    """

    fit: TruthFit
    steps: tuple[TruthStep, ...]
    parties: tuple[str, ...]
    lost: tuple[str, ...]
    bytes_up: int
    bytes_down: int
    holders: tuple[int, int]
    wrong: tuple[str, ...]
    cheats: tuple[str, ...]
    repeated: int
    reports: int
    workers: Mapping[str, int]
    alpha: float
    data: Any = field(default=None, repr=False)
    ranking: tuple[str, ...] = ()
    unranked: str = ""
    withheld: tuple[str, ...] = ()
    min_reporters: int = 0
    noise: ContributionNoise | None = None
    score: float | None = None
    held: int = 0
    held_out: float = 0.0

    @cached_property
    def truth(self) -> dict[str, Any]:
        """Task -> its label, or its number. Of labels that tie, the first. Tasks that are withheld are not in it."""
        return self._shown(self.fit.truth)

    def _shown(self, found: dict[str, Any]) -> dict[str, Any]:
        """Without the tasks that are withheld."""
        hidden = set(self.withheld)
        return {task: value for task, value in found.items() if task not in hidden}

    @cached_property
    def confidence(self) -> dict[str, float]:
        """Task -> the probability of its label.

        Raises:
            CompositionError: the truth is numbers.
        """
        return self._shown(self.fit.confidence)

    @property
    def iterations(self) -> int:
        """Iterations made."""
        return self.fit.iterations

    def plain(self) -> dict[str, Any]:
        """The result as plain values, without the truth of each task."""
        return {
            "tasks": len(self.fit.layout.tasks), "workers": sum(self.workers.values()), "parties": len(self.parties),
            "reports": self.reports, "repeated": self.repeated, "iterations": self.iterations, "lost": len(self.lost),
            "wrong": list(self.wrong), "cheats": list(self.cheats), "holders": self.holders[0], "threshold": self.holders[1],
            "bytes_up": self.bytes_up, "bytes_down": self.bytes_down, **({"ranking": list(self.ranking)} if self.ranking else {}), **({"unranked": self.unranked} if self.unranked else {}),
            **({"withheld": len(self.withheld)} if self.min_reporters else {}),
            **({} if self.score is None else {"score": self.score, "held": self.held}),
            **({} if self.noise is None else {"epsilon": self.noise.epsilon, "delta": self.noise.delta, "deviation": self.noise.deviation()}),
        }  # fmt: skip

    def csv(self) -> str:
        """The truth as CSV: ``task,truth,confidence``; of numbers the confidence is empty, and of tasks that are withheld both."""
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["task", "truth", "confidence"])
        sure = {} if self.fit.layout.values == "numbers" else self.confidence
        known = self.truth
        writer.writerows([task, known.get(task, ""), f"{sure[task]:.6f}" if task in sure else ""] for task in self.fit.layout.tasks)  # fmt: skip
        return file.getvalue()

    def compare_plain(self) -> PlainComparison:
        """Make the same steps with all reports in one place, in floating point, without those who were lost, and compare.

        Raises:
            DataError: the reports are at their sites.
        """
        if self.data is None or not are_here(self.data):
            raise DataError("the reports are at their sites", where="compare_plain", remedy="simulate the job with all reports on one machine: atoll.simulate(job, atoll.truth.split_by_worker(table))")  # fmt: skip
        parts = {str(name): own_reports(self.data.shard(place)) for place, name in enumerate(self.data.names)}
        found = replay_steps(
            self.fit.model,
            self.fit.layout,
            parts,
            self.steps,
            self.workers,
            self.alpha,
            self.min_reporters,
            self.held_out,
        )
        plain = replace(self.fit, broadcast=found)
        numbers = self.fit.layout.values == "numbers"
        width = max(self.fit.layout.high - self.fit.layout.low, 1e-300) if numbers else 1.0
        far = np.abs(plain.shares - self.fit.shares) / width
        truth = self._shown(plain.truth)
        if numbers and self.withheld:
            far = far[[task in self.truth for task in self.fit.layout.tasks]]
        same = far < 1e-6 if numbers else np.array([truth[task] == said for task, said in self.truth.items()])
        return PlainComparison(float(np.mean(same)), float(far.max(initial=0.0)), truth)


def replay_steps(
    model: TruthModel,
    layout: TaskLayout,
    parts: Mapping[str, Reports],
    steps: Sequence[TruthStep],
    workers: Mapping[str, int],
    alpha: float,
    min_reporters: int = 0,
    held_out: float = 0.0,
) -> Arrays:
    """Return the last broadcast of some steps with all reports in one place: the reports of all who were in a step are one table.

    Args:
        model: the model.
        layout: the tasks.
        parts: the reports of each party.
        steps: who was in each sum.
        workers: how many workers each party has.
        alpha: the exponent of the weights.
        min_reporters: workers that must be in a sum and report on a task, or the sum says nothing of it. Reports on tasks of which no sum said anything do not count.
        held_out: the part of the reports that the campaign went without.
    """
    whole = layout.code(pool_sites(parts))
    if held_out:
        whole, _ = hold_out(whole, held_out)
    homes = {worker: name for name, part in parts.items() for worker in part.workers}
    home = np.array([homes[worker] for worker in whole.workers])
    state, broadcast, learn = model.start_workers(layout, len(whole.workers)), model.start(layout), ""
    total, never = sum(workers.values()), np.full(len(layout.tasks), bool(min_reporters))
    for one in steps:
        there = np.isin(home, list(one.senders))
        everything, own = whole.of_workers(there), {name: value[there] for name, value in state.items()}
        part = everything.choose(~never[everything.task]) if learn and never.any() else everything
        if learn:
            own = model.learn(learn, own, part, broadcast)
            for name, value in own.items():
                known = state.get(name, np.zeros((len(home), *value.shape[1:]))).copy()
                known[there] = value
                state = {**state, name: known}
        sums = model.contribute(one.step, own, part, broadcast)
        if min_reporters:
            few = everything.reporters < min_reporters
            shown = ReporterTest.of(min_reporters, model.terms(one.step, layout), layout).find_open(few)
            sums = _hide(sums, shown)
            never = never & few
        new = model.combine(one.step, layout, sums, broadcast)
        weight = (sum(workers[name] for name in one.senders) / total) ** alpha
        broadcast, learn = blend_broadcast(new, broadcast, weight), one.step
    return broadcast


def _hide(sums: Arrays, shown: np.ndarray[Any, Any]) -> Arrays:
    """Zeros in place of the entries that are not shown, which lie as in `ReporterTest.owners`."""
    found, at = {}, 0
    for name, value in sorted(sums.items()):
        found[name] = np.where(shown[at : at + value.size].reshape(value.shape), value, 0.0)
        at += value.size
    return found


def are_here(data: Any) -> bool:
    """Whether the reports are on this machine; between organisations only names and sizes of the parties are known."""
    return not hasattr(data, "outline") and len(data) > 0 and data.shard(0) is not None
