"""Beyond the thesis: SAFA without foresight, its extensions and its rivals under one clock, by the time until all of them are as far as FedAvg.

A server with `published=True` knows who will end before ``T_lim`` although the round closed long before, and every client begins afresh in every round. The
study asks what is left without that, what the extensions bring, and what rivals do with the same devices. Rules, set before the runs: learning rates and
epochs of Table 3.2 for everyone, every other setting at its default, nothing tuned; the measure is the objective itself, the loss over all clients'
training rows; the target of a cell and a seed is the lowest settled loss (mean of 5 rounds) that FedAvg has in its first rounds, so that everyone can reach it
and no method chooses it; whoever needs more than `CAP` times as many rounds has not reached it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from ..entry import Claim, Lab
from .study_runs import COMPAT_TIME, METHODS, Run, settled, trained

__all__ = [
    "CAP",
    "PLANS",
    "PUBLISHED",
    "QUICK",
    "Cell",
    "Plan",
    "Verdict",
    "claims",
    "compared",
    "ratios",
    "study",
    "target_of",
]

CAP = 20
"""Times as many rounds as FedAvg had."""
PUBLISHED = "SAFA as published, strict"
_BETTER = 0.95
"""All seeds on one side of 1, and their mean ratio beyond this: better; beyond its inverse: worse."""


class Cell(NamedTuple):
    """A task, a probability of crash ``cr`` and a fraction ``C``, and by what the learning rate of Table 3.2 is multiplied."""

    task: str
    crash: float
    fraction: float
    rate: float = 1.0

    def __str__(self) -> str:
        return f"{self.task} cr {self.crash:g} C {self.fraction:g}" + (
            "" if self.rate == 1 else f" rate x {self.rate:g}"
        )


@dataclass(frozen=True)
class Plan:
    """What is run of a task.

    Attributes:
        task: its name.
        rounds: of FedAvg, which set the target.
        crashes: probabilities of a crash.
        fractions: ``C``.
        seeds: runs a cell.
        rate: by what the learning rate of Table 3.2 is multiplied.
    """

    task: str
    rounds: int
    crashes: Sequence[float] = (0.1, 0.3, 0.7)
    fractions: Sequence[float] = (0.1, 0.5)
    seeds: int = 3
    rate: float = 1.0

    @property
    def cells(self) -> list[Cell]:
        """All of them."""
        return [Cell(self.task, crash, fraction, self.rate) for crash in self.crashes for fraction in self.fractions]


PLANS = (
    Plan("boston", 50),
    Plan("kdd-fifth", 30),
    Plan("boston", 50, (0.3,), rate=10.0),
    Plan("kdd-fifth", 30, (0.3,), rate=10.0),
)
"""With the rates of Table 3.2, which are small, every further step is a gain, however stale its base; so a part again with ten times the rate."""
QUICK = (Plan("digits", 10, (0.3,), (0.3,), 1),)
"""For ``--quick``: bundled digits."""

Found = Mapping[tuple[Cell, str], Sequence[tuple[Run, float]]]
"""By cell and method: each seed's run, and its target."""


def target_of(run: Run, rounds: int) -> float:
    """The lowest settled loss of the first rounds, rounded up in the sixth digit."""
    return math.ceil(float(settled(run.losses)[:rounds].min()) * 1e6) / 1e6


def study(lab: Lab, plans: Iterable[Plan]) -> Found:
    """Run everything that was not yet, and read back what was."""
    found: dict[tuple[Cell, str], list[tuple[Run, float]]] = {}
    for plan in plans:
        for cell in plan.cells:
            for seed in range(plan.seeds):
                first = trained(lab, *_first(cell), seed, plan.rounds, rate=cell.rate)
                target = target_of(first, plan.rounds)
                for method in METHODS:
                    of = (cell.task, method, cell.crash, cell.fraction)
                    run = trained(lab, *of, seed, CAP * plan.rounds, target, cell.rate)
                    found.setdefault((cell, method), []).append((run, target))
    return found


def _first(cell: Cell) -> tuple[str, str, float, float]:
    return cell.task, "FedAvg", cell.crash, cell.fraction


def ratios(found: Found, cell: Cell, method: str, base: str, quantity: str) -> list[float]:
    """What a method needed until the target, over what the base needed, of each seed; infinite if it alone never came, NaN if neither did."""
    pairs = zip(found[cell, method], found[cell, base], strict=True)
    with np.errstate(invalid="ignore"):
        return [float(np.divide(a.until(t)[quantity], b.until(t)[quantity])) for (a, t), (b, _) in pairs]


@dataclass(frozen=True)
class Verdict:
    """How a method fared against another.

    Attributes:
        better: cells in which all seeds need less, by 5 % or more on average.
        worse: cells in which all need more.
        open: the others.
        ratios: of each cell, geometric mean over seeds; infinite if one never came, NaN if neither did.
    """

    better: tuple[Cell, ...]
    worse: tuple[Cell, ...]
    open: tuple[Cell, ...]
    ratios: Mapping[Cell, float]

    @property
    def holds(self) -> bool:
        """Better in most cells and worse in none."""
        return not self.worse and len(self.better) > len(self.ratios) / 2

    def told(self) -> str:
        """In words."""
        return f"better in {len(self.better)}, worse in {len(self.worse)}, undecided in {len(self.open)} of {len(self.ratios)} cells"

    def where(self) -> str:
        """The ratio of each cell."""
        return "; ".join(f"{c}: {_number(r)}" for c, r in self.ratios.items())


def compared(found: Found, method: str, base: str, quantity: str = "seconds") -> Verdict:
    """Cell by cell, over the seeds."""
    sides: dict[str, list[Cell]] = {"better": [], "worse": [], "open": []}
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


def claims(lab: Lab, quick: bool) -> list[Claim]:
    """Every method in every cell, then each against SAFA as published, and what explains the differences."""
    plans = QUICK if quick else PLANS
    found = study(lab, plans)
    rounds = {plan.task: plan.rounds for plan in plans}
    made = [_cell(found, *key, rounds[key[0].task]) for key in found]
    for rate in sorted({plan.rate for plan in plans}):
        part = {key: runs for key, runs in found.items() if key[0].rate == rate}
        suffix = "" if rate == 1 else f" (rate x {rate:g})"
        made += [replace(claim, claim=claim.claim + suffix) for claim in _against(part) + _why(part)]
    return made


def _cell(found: Found, cell: Cell, method: str, rounds: int) -> Claim:
    runs = found[cell, method]
    costs = {name: np.mean([run.costs()[name] for run, _ in runs]) for name in runs[0][0].costs()}
    ends = [run.until(target) for run, target in runs]
    came = sum(np.isfinite(end["rounds"]) for end in ends)

    def mean(name: str) -> str:
        return _number(float(np.mean([end[name] for end in ends])))

    told = ", ".join(f"{name} {value:.4g}" for name, value in costs.items())
    return Claim(
        f"{cell}: {method}",
        None,
        f"{mean('seconds')} s, {mean('rounds')} rounds, {mean('down')} models down, {mean('up')} up, {mean('work')} updates; a round: {told}",
        came == len(runs),
        f"until it is where FedAvg is in {rounds} rounds, within {CAP * rounds}; {came} of {len(runs)} seeds came there; {METHODS[method]}",
    )


def _against(found: Found) -> list[Claim]:
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
                verdict.holds,
                f"ratio of seconds: {verdict.where()}; better: all seeds, and 5 % in the mean; holds if better in most cells and worse in none",
            )
        )
    return made


def _why(found: Found) -> list[Claim]:
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
        note = f"ratio of {quantity} until the target, {method} : {base}: {verdict.where()}; holds if better in most cells and worse in none"
        made.append(Claim(text, None, verdict.told(), verdict.holds, note))
    return made


def _number(value: float) -> str:
    return "never" if math.isinf(value) and value > 0 else "neither" if math.isnan(value) else f"{value:.4g}"
