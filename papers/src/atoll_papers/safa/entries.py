"""SAFA's reproductions: the thesis's three tasks, and the study beyond it. Protocols: `atoll_papers.safa` and `atoll_papers.safa.study`."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import numpy as np

from atoll.reproduce import Claim, Entry, Lab

from .costs import bias_claims, cost_claims, study_claims
from .grid import GridCost, agrees
from .paper import STATEMENTS, STUDY
from .scores import PLANS, accuracy_claims, score, settings, train
from .study import judge_study
from .tasks import BOSTON, KDD, MNIST, SafaTask

__all__ = [
    "BOSTON_ENTRY",
    "CELLS",
    "KDD_ENTRY",
    "LAGS",
    "Losses",
    "MNIST_ENTRY",
    "SEEDS",
    "SOURCE",
    "STUDY_ENTRY",
    "claims",
    "entry",
    "judge_losses",
    "loss_claims",
]


# ------------------------------------------------------------------ the tolerance of task 1 in training (Figs. 3.3 and 3.4)

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


# ------------------------------------------------------------------ from a task to its entry

SOURCE = "Wu, Towards Efficient Horizontal Federated Learning, PhD thesis, Warwick 2021, chapter 3 and appendix A"


def claims(task: SafaTask, lab: Lab, quick: bool) -> list[Claim]:
    """Everything about a task.

    Args:
        task: one of the three.
        lab: runs and keeps the trainings.
        quick: the cost of rounds alone, which needs no data; the accuracies say that nothing was trained.
    """
    made = cost_claims(task)
    if task is BOSTON:
        made += study_claims() + bias_claims() + (judge_losses({}) if quick else loss_claims(lab))
    return made + accuracy_claims(task, {} if quick else train(lab, task, PLANS[task.name]))


def entry(task: SafaTask, data: str, source: str) -> Entry:
    """Return the reproduction of a task.

    Args:
        task: one of the three.
        data: what it needs, in words.
        source: the data set's name.
    """
    return Entry(
        name=f"safa-{task.name}",
        title=f"SAFA, task {task.number}: cost of rounds and accuracy against FedAvg, FedCS and local training",
        source=SOURCE,
        run=functools.partial(claims, task),
        needs=f"{data} below ATOLL_DATA; nothing with --quick, which trains nothing",
        data=(source,),
        quick_data=(),
    )


# ------------------------------------------------------------------ safa-boston, safa-mnist, safa-kdd

BOSTON_ENTRY = entry(BOSTON, "Boston housing", "boston_housing")


MNIST_ENTRY = entry(MNIST, "MNIST", "mnist")


KDD_ENTRY = entry(KDD, "KDD Cup 1999, filtered", "kddcup99_tcp")


# ------------------------------------------------------------------ safa-study

STUDY_ENTRY = Entry(
    name="safa-study",
    title="SAFA without foresight, its extensions and its rivals: the cost of rounds, and the time to the loss of FedAvg",
    source=f"Tasks of {SOURCE}; the study is ours",
    run=judge_study,
    needs="Boston housing and KDD Cup 1999, filtered, below ATOLL_DATA; nothing with --quick, which runs on bundled digits",
    data=("boston_housing", "kddcup99_tcp"),
    quick_data=(),
)
