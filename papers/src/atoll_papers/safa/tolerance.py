"""The tolerance of task 1 in training: best loss of SAFA with other tolerances (Figs. 3.3 and 3.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from atoll.reproduce import Claim, Lab

from .cells import score, settings
from .grid import GridCost
from .judge import agrees
from .paper import STATEMENTS, STUDY
from .tasks import BOSTON

__all__ = ["CELLS", "LAGS", "SEEDS", "Losses", "judge_losses", "loss_claims"]

CELLS = ((0.1, 0.3), (0.1, 0.7))
"""``(C, cr)``: where the author's sheet has the least and the largest effect."""
LAGS = (1, 2, 3, 5, 7, 10)
SEEDS = 3
_SMALL, _LARGE = (1, 2, 3), (7, 10)

Losses = Mapping[tuple[float, float, int], Sequence[float]]
"""By ``(C, cr, tau)``: the best test loss over rounds, of each seed."""


def loss_claims(lab: Lab) -> list[Claim]:
    """Train the cells, or read them back, and judge them."""
    found = {
        (c, cr, lag): [score(lab, settings(BOSTON, "SAFA", cr, c, seed, lag=lag)).losses[-1] for seed in range(SEEDS)]
        for c, cr in CELLS
        for lag in LAGS
    }
    return judge_losses(found)


def judge_losses(found: Losses) -> list[Claim]:
    """Return a claim for each row of the author's sheet, and the statement; rows without trainings say that they were not run."""
    rows = dict.fromkeys(key[1:3] for key in STUDY if key[0] == "best loss")
    return [_row(found, c, cr) for c, cr in rows] + [_statement(found)]


def _row(found: Losses, c: float, cr: float) -> Claim:
    printed = [STUDY["best loss", c, cr, lag] for lag in LAGS]
    name = f"boston: best loss by tolerance, C = {c:g}, cr = {cr:g}"
    told = " ".join(f"{p:.4f}" for p in printed)
    note = f"tau = {', '.join(map(str, LAGS))}; the author's sheet"
    if (c, cr, LAGS[0]) not in found:
        return Claim(name, told, None, None, note)
    runs = [found[c, cr, lag] for lag in LAGS]
    costs = [GridCost(float(np.mean(each)), float(np.std(each, ddof=1))) for each in runs]
    met = [agrees(p, cost, 4, len(each)) for p, cost, each in zip(printed, costs, runs, strict=True)]
    ours = " ".join(f"{cost.mean:.4f}±{cost.spread:.4f}" for cost in costs)
    note += f"; {sum(met)} of {len(met)} within 3 standard deviations of a run, {len(runs[0])} seeds"
    return Claim(name, told, ours, all(met), note)


def _statement(found: Losses) -> Claim:
    """Judge whether the loss is lower with a small tolerance when many clients crash."""
    said = STATEMENTS["tolerance loss"]
    rule = f"line {said.line}; C = 0.1, cr = 0.7: mean over tau of {_SMALL} and of {_LARGE}, each seed; holds if lower with every seed"
    if not found:
        return Claim(said.text, said.number, None, None, rule)
    small, large = (np.mean([found[0.1, 0.7, lag] for lag in lags], axis=0) for lags in (_SMALL, _LARGE))
    ours = "; ".join(f"{a:.4f} : {b:.4f}" for a, b in zip(small, large, strict=True))
    return Claim(said.text, said.number, ours, bool((small < large).all()), rule)
