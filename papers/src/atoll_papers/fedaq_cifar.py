"""FedAQ with half of its CNN on a part of CIFAR-10: the third column of its table. Protocol: `atoll_papers.fedaq`."""

from __future__ import annotations

from atoll.reproduce import Claim, Entry, Lab

from .fedaq.table import DEEP, claims_of, column
from .fedaq.tasks import IMAGES, IMAGES_QUICK

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    names = DEEP[:5] if quick else DEEP
    cells, rows = column(lab, IMAGES_QUICK if quick else IMAGES, names)
    return rows + claims_of(cells)


ENTRY = Entry(
    name="fedaq-cifar",
    title="FedAQ with a CNN on a part of CIFAR-10, against plain averaging with the same step",
    source="Youn, Kumar, Abernethy, IEEE Data Engineering Bulletin 45(4), 2022, section 6",
    run=_run,
    needs="the part of CIFAR-10 below ATOLL_DATA",
    data=("cifar10_subset",),
)
