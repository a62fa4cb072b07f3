"""FedAQ's table: rounds, uplink bits and human time to a target accuracy. Protocol: `atoll.reproduce.fedaq`."""

from __future__ import annotations

from dataclasses import replace

from .entry import Claim, Entry, Lab
from .fedaq.table import claims_of, column, printed, stability
from .fedaq.tasks import CONVEX, IMAGES, MLP, QUICK

__all__ = ["ENTRY"]

_PAPER = ("FedAvg", "FedPAQ 8b", "FedCOMGATE 8b", "FedAC-I", "FedAQ-I 8b")
_CONTROLS = ("FedAvg, lr = gamma", "FedPAQ 8b, lr = gamma")
_VARIANTS = ("FedAQ-I 8b, QSGD up only", "FedAQ-I 8b, model is w_ag")
_CONVEX = (*_PAPER, "FedAQ-II 8b", *_CONTROLS, *_VARIANTS)
_DEEP = (*_PAPER, "FedAQ-I 4b", *_CONTROLS)


_COLUMNS = (
    (CONVEX, _CONVEX, "Convex: logistic regression on MNIST, to 90.28 %"),
    (MLP, _DEEP, "MLP: two layers of 200 units on MNIST, to 97.6 %"),
    (IMAGES, _DEEP, "CNN: a part of CIFAR-10, to what FedAvg has after 15 rounds"),
)
_SMALL = ((QUICK, (*_PAPER, "FedAQ-II 8b", *_CONTROLS), "Small digits"),)


def _run(lab: Lab, quick: bool) -> list[Claim]:
    made = [replace(claim, part="The paper's arithmetic") for claim in printed()]
    for task, names, part in _SMALL if quick else _COLUMNS:
        cells, rows = column(lab, task, names)
        found = rows + claims_of(cells) + ([stability(lab, task, after=30)] if task is CONVEX else [])
        made += [replace(claim, part=part) for claim in found]
    return made


ENTRY = Entry(
    name="fedaq-table",
    title="FedAQ: rounds, uplink bits and human time to a target, against plain averaging with the same step",
    source="Youn, Kumar, Abernethy, IEEE Data Engineering Bulletin 45(4), 2022, section 6",
    run=_run,
    needs="MNIST and the part of CIFAR-10 below ATOLL_DATA; nothing with --quick",
    data=("mnist", "cifar10_subset"),
    quick_data=(),
)
