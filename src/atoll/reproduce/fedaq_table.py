"""FedAQ's table: rounds, uplink bits and human time to a target accuracy. Protocol: `atoll.reproduce.fedaq`."""

from __future__ import annotations

from .entry import Claim, Entry, Lab
from .fedaq.table import claims_of, column, printed, stability
from .fedaq.tasks import CONVEX, IMAGES, MLP, QUICK

__all__ = ["ENTRY"]

_PAPER = ("FedAvg", "FedPAQ 8b", "FedCOMGATE 8b", "FedAC-I", "FedAQ-I 8b")
_CONTROLS = ("FedAvg, lr = gamma", "FedPAQ 8b, lr = gamma")
_VARIANTS = ("FedAQ-I 8b, QSGD up only", "FedAQ-I 8b, model is w_ag")
_CONVEX = (*_PAPER, "FedAQ-II 8b", *_CONTROLS, *_VARIANTS)
_DEEP = (*_PAPER, "FedAQ-I 4b", *_CONTROLS)


def _run(lab: Lab, quick: bool) -> list[Claim]:
    made = printed()
    for task, names in (
        ((QUICK, (*_PAPER, "FedAQ-II 8b", *_CONTROLS)),)
        if quick
        else ((CONVEX, _CONVEX), (MLP, _DEEP), (IMAGES, _DEEP))
    ):
        cells, rows = column(lab, task, names)
        made += rows + claims_of(cells)
        if task is CONVEX:
            made.append(stability(lab, task, after=30))
    return made


ENTRY = Entry(
    name="fedaq-table",
    title="FedAQ: rounds, uplink bits and human time to a target, beside plain averaging with the same step",
    source="Youn, Kumar, Abernethy, IEEE Data Engineering Bulletin 45(4), 2022, section 6",
    run=_run,
    needs="MNIST and the part of CIFAR-10 below ATOLL_DATA; nothing with --quick",
)
