"""From a task to its reproduction: the cost of rounds, and the trained results."""

from __future__ import annotations

import functools

from atoll.reproduce import Claim, Entry, Lab

from .bias_claims import bias_claims
from .costs import cost_claims, study_claims
from .scores import PLANS, accuracy_claims, train
from .tasks import BOSTON, SafaTask
from .tolerance import judge_losses, loss_claims

__all__ = ["SOURCE", "claims", "entry"]

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
