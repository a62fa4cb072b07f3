"""FedAQ's table: rounds, uplink bits and human time to a target accuracy on MNIST. Protocol: `atoll_papers.fedaq`; its third column: `fedaq-cifar`."""

from __future__ import annotations

from dataclasses import replace

from atoll.reproduce import Claim, Entry, Lab

from .fedaq.table import DEEP, claims_of, column, printed, stability
from .fedaq.tasks import CONVEX, MLP, QUICK

__all__ = ["ENTRY"]

_PAPER, _CONTROLS = DEEP[:5], DEEP[6:]
_VARIANTS = ("FedAQ-I 8b, QSGD up only", "FedAQ-I 8b, model is w_ag")
_CONVEX = (*_PAPER, "FedAQ-II 8b", *_CONTROLS, *_VARIANTS)


_COLUMNS = (
    (CONVEX, _CONVEX, "Convex: logistic regression on MNIST, to 90.28 %"),
    (MLP, DEEP, "MLP: two layers of 200 units on MNIST, to 97.6 %"),
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
    needs="MNIST below ATOLL_DATA; nothing with --quick",
    data=("mnist",),
    quick_data=(),
)
