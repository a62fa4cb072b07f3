"""Beyond the thesis: SAFA without foresight, its extensions and its rivals under one clock, by the time until each of them is as far as FedAvg.

A server with `published=True` knows which clients will end before ``T_lim`` although the round closed long before, and
every client starts afresh in every round. The study measures what remains without that, what the extensions gain, and
what rivals reach with the same devices. Rules, set before the runs: learning rates and epochs of Table 3.2 for all
methods, every other setting at its default, nothing tuned; the measure is the objective itself, the loss over all
clients' training rows; the target of a cell and a seed is the lowest settled loss (mean of 5 rounds) that FedAvg has in
its first rounds, so every method can reach it and none chooses it; a method that needs more than `CAP` times as many
rounds has not reached it.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from atoll.reproduce import Claim, Lab, NotKept

from .study_trainings import COMPAT_TIME, METHODS, PUBLISHED, Run, settled, trained

__all__ = [
    "CAP",
    "Found",
    "PLANS",
    "QUICK",
    "SafaCell",
    "StudyPlan",
    "Verdict",
    "compared",
    "judge_study",
    "number",
    "ratios",
    "study",
    "target_of",
]


# ------------------------------------------------------------------ cells: seconds until each method is as far as FedAvg

CAP = 20
"""Times as many rounds as FedAvg had."""
_BETTER = 0.95
"""All seeds on one side of 1, and their mean ratio beyond this: better; beyond its inverse: worse."""


class SafaCell(NamedTuple):
    """A task, a probability of crash ``cr`` and a fraction ``C``, and the factor on the learning rate of Table 3.2."""

    task: str
    crash: float
    fraction: float
    rate: float = 1.0

    def __str__(self) -> str:
        return f"{self.task} cr {self.crash:g} C {self.fraction:g}" + (
            "" if self.rate == 1 else f" rate x {self.rate:g}"
        )


@dataclass(frozen=True)
class StudyPlan:
    """The runs of a task.

    Attributes:
        task: its name.
        rounds: of FedAvg, which set the target.
        crashes: probabilities of a crash.
        fractions: ``C``.
        seeds: runs per cell.
        rate: the factor on the learning rate of Table 3.2.
    """

    task: str
    rounds: int
    crashes: Sequence[float] = (0.1, 0.3, 0.7)
    fractions: Sequence[float] = (0.1, 0.5)
    seeds: int = 3
    rate: float = 1.0

    @property
    def cells(self) -> list[SafaCell]:
        """Return all cells."""
        return [
            SafaCell(self.task, crash, fraction, self.rate) for crash in self.crashes for fraction in self.fractions
        ]


PLANS = (
    StudyPlan("boston", 50),
    StudyPlan("kdd-fifth", 30),
    StudyPlan("boston", 50, (0.3,), rate=10.0),
    StudyPlan("kdd-fifth", 30, (0.3,), rate=10.0),
)
"""With the rates of Table 3.2, which are small, every further step is a gain, however stale its base; so a part again with ten times the rate."""
QUICK = (StudyPlan("digits", 10, (0.3,), (0.3,), 1),)
"""For ``--quick``: bundled digits."""

Found = Mapping[tuple[SafaCell, str], Sequence[tuple[Run, float]]]
"""By cell and method: each seed's run, and its target."""


def target_of(run: Run, rounds: int) -> float:
    """Return the lowest settled loss of the first rounds, rounded up in the sixth digit."""
    return math.ceil(float(settled(run.losses)[:rounds].min()) * 1e6) / 1e6


def study(lab: Lab, plans: Iterable[StudyPlan]) -> Found:
    """Run everything that is missing, and read back the rest. If nothing may be trained, cells of which a run is not kept are left out."""
    found: dict[tuple[SafaCell, str], list[tuple[Run, float]]] = {}
    for plan in plans:
        for cell in plan.cells:
            with contextlib.suppress(NotKept):
                found |= _runs_of(lab, plan, cell)
    return found


def _runs_of(lab: Lab, plan: StudyPlan, cell: SafaCell) -> dict[tuple[SafaCell, str], list[tuple[Run, float]]]:
    made: dict[tuple[SafaCell, str], list[tuple[Run, float]]] = {(cell, method): [] for method in METHODS}
    for seed in range(plan.seeds):
        first = trained(lab, *_first(cell), seed, plan.rounds, rate=cell.rate)
        target = target_of(first, plan.rounds)
        for method in METHODS:
            of = (cell.task, method, cell.crash, cell.fraction)
            made[cell, method].append((trained(lab, *of, seed, CAP * plan.rounds, target, cell.rate), target))
    return made


def _first(cell: SafaCell) -> tuple[str, str, float, float]:
    return cell.task, "FedAvg", cell.crash, cell.fraction


def ratios(found: Found, cell: SafaCell, method: str, base: str, quantity: str) -> list[float]:
    """Return what a method needed until the target, over what the base needed, for each seed; infinite if only the method never reached it, NaN if neither did."""
    pairs = zip(found[cell, method], found[cell, base], strict=True)
    with np.errstate(invalid="ignore"):
        return [float(np.divide(a.until(t)[quantity], b.until(t)[quantity])) for (a, t), (b, _) in pairs]


@dataclass(frozen=True)
class Verdict:
    """The result of one method against another.

    Attributes:
        better: cells in which all seeds need less, by 5 % or more on average.
        worse: cells in which all need more.
        open: the others.
        ratios: of each cell, geometric mean over seeds; infinite if one never reached it, NaN if neither did.
    """

    better: tuple[SafaCell, ...]
    worse: tuple[SafaCell, ...]
    open: tuple[SafaCell, ...]
    ratios: Mapping[SafaCell, float]

    def holds(self, missing: int = 0) -> bool | None:
        """Tell whether it is better in most cells and worse in none; ``None`` if cells that were not run could still decide it."""
        if self.worse:
            return False
        least, most = len(self.better), len(self.better) + missing
        half = (len(self.ratios) + missing) / 2
        return None if missing and most > half else least > half

    def told(self) -> str:
        """Describe it in words."""
        return f"better in {len(self.better)}, worse in {len(self.worse)}, undecided in {len(self.open)} of {len(self.ratios)} cells"

    def where(self) -> str:
        """Return the ratio of each cell."""
        return "; ".join(f"{c}: {number(r)}" for c, r in self.ratios.items())


def compared(found: Found, method: str, base: str, quantity: str = "seconds") -> Verdict:
    """Compare cell by cell, over the seeds."""
    sides: dict[str, list[SafaCell]] = {"better": [], "worse": [], "open": []}
    means = {}
    for cell in dict.fromkeys(key[0] for key in found):
        each = np.array(ratios(found, cell, method, base, quantity))
        with np.errstate(divide="ignore"):
            means[cell] = mean = float(np.exp(np.log(each).mean()))
        if (each < 1).all() and mean <= _BETTER:
            sides["better"].append(cell)
        elif (each > 1).all() and mean >= 1 / _BETTER:
            sides["worse"].append(cell)
        else:
            sides["open"].append(cell)
    return Verdict(tuple(sides["better"]), tuple(sides["worse"]), tuple(sides["open"]), means)


def number(value: float) -> str:
    """Return four digits, or that it never reached the target."""
    return "never" if math.isinf(value) and value > 0 else "neither" if math.isnan(value) else f"{value:.4g}"


# ------------------------------------------------------------------ claims


def judge_study(lab: Lab, quick: bool) -> list[Claim]:
    """Every method in every cell, then each against SAFA as published, and what explains the differences."""
    plans = QUICK if quick else PLANS
    found = study(lab, plans)
    rounds = {plan.task: plan.rounds for plan in plans}
    made = [_cell(found, *key, rounds[key[0].task]) for key in found]
    ran = {cell for cell, _ in found}
    absent = [cell for plan in plans for cell in plan.cells if cell not in ran]
    made += [Claim(f"{cell}: all methods", None, None, None, "a run of it is not kept") for cell in absent]
    for rate in sorted({plan.rate for plan in plans}):
        part = {key: runs for key, runs in found.items() if key[0].rate == rate}
        missing = sum(cell.rate == rate for cell in absent)
        suffix = "" if rate == 1 else f" (rate x {rate:g})"
        judged = _against(part, missing) + _why(part, missing) if part else []
        made += [replace(claim, claim=claim.claim + suffix) for claim in judged]
    return made


def _cell(found: Found, cell: SafaCell, method: str, rounds: int) -> Claim:
    runs = found[cell, method]
    costs = {name: np.mean([run.costs()[name] for run, _ in runs]) for name in runs[0][0].costs()}
    ends = [run.until(target) for run, target in runs]
    came = sum(np.isfinite(end["rounds"]) for end in ends)

    def mean(name: str) -> str:
        return number(float(np.mean([end[name] for end in ends])))

    told = ", ".join(f"{name} {value:.4g}" for name, value in costs.items())
    return Claim(
        f"{cell}: {method}",
        None,
        f"{mean('seconds')} s, {mean('rounds')} rounds, {mean('down')} models down, {mean('up')} up, {mean('work')} updates; a round: {told}",
        came == len(runs),
        f"until it is where FedAvg is in {rounds} rounds, within {CAP * rounds}; {came} of {len(runs)} seeds came there; {METHODS[method]}",
    )


def _against(found: Found, missing: int) -> list[Claim]:
    made = []
    for method in METHODS:
        if method == PUBLISHED:
            continue
        verdict = compared(found, method, PUBLISHED)
        made.append(
            Claim(
                f"{method}: sooner at the target than SAFA as published under the clock",
                None,
                verdict.told(),
                verdict.holds(missing),
                f"ratio of seconds: {verdict.where()}; better: all seeds, and 5 % in the mean; holds if better in most cells and worse in none{_left(missing)}",
            )
        )
    return made


def _why(found: Found, missing: int) -> list[Claim]:
    pairs = (
        (PUBLISHED, "FedAvg, absent keep global", "seconds", "SAFA as published is sooner there than the thesis' FedAvg"),
        (PUBLISHED, "FedAvg", "seconds", "SAFA as published is sooner there than FedAvg that averages whoever answered"),
        (PUBLISHED, "FedAvg", "rounds", "SAFA as published needs fewer rounds than FedAvg that averages whoever answered"),
        (PUBLISHED, "FedAvg", "up", "SAFA as published uploads fewer models than FedAvg that averages whoever answered"),
        ("FedAvg", "FedAvg, absent keep global", "rounds", "FedAvg needs fewer rounds if absent clients do not stand in with the old model"),
        ("SAFA, bounded", PUBLISHED, "up", "bounded: fewer models uploaded"),
        ("SAFA", PUBLISHED, "up", "SAFA whose slow clients work on: fewer models uploaded"),
        ("SAFA", PUBLISHED, "work", "SAFA whose slow clients work on: less computed by clients"),
        ("SAFA, adaptive lag", "SAFA", "seconds", "adaptive lag against a tolerance of 5, both without foresight"),
        ("SAFA, by age", "SAFA", "seconds", "weights by age against equal ones, both without foresight"),
        ("SAFA, bounded", "SAFA", "seconds", "calling off against working on, both without foresight"),
        (COMPAT_TIME, PUBLISHED, "seconds", "the tables' accounting makes the same rounds shorter"),
        ("FedBuff", "SAFA", "seconds", "FedBuff is sooner there than SAFA, both without foresight"),
        ("FedBuff", PUBLISHED, "up", "FedBuff uploads fewer models than SAFA as published"),
    )  # fmt: skip
    made = []
    for method, base, quantity, text in pairs:
        verdict = compared(found, method, base, quantity)
        note = f"ratio of {quantity} until the target, {method} : {base}: {verdict.where()}; holds if better in most cells and worse in none{_left(missing)}"
        made.append(Claim(text, None, verdict.told(), verdict.holds(missing), note))
    return made


def _left(missing: int) -> str:
    return f"; {missing} cells are not run" if missing else ""
