"""HybridFL, Task 1: the aerofoil's fifteen clients in three regions.

Source and protocol: `atoll_papers.hybridfl`; data and models: `atoll_papers.hybridfl.tasks`. Round lengths and slack factors are means over draws of the
clients, simulated without training; accuracy, rounds, time and energy to the target are medians of three trainings a cell, each with its own partition and devices.
"""

from __future__ import annotations

from atoll.reproduce import Claim, Entry, Lab

from .hybridfl.grid import judge_estimators, judge_slack, timing
from .hybridfl.judges import judge_half, judge_lengths, judge_limits, judge_table
from .hybridfl.protocol import HybridProtocol
from .hybridfl.setting import AEROFOIL
from .hybridfl.tasks import cells
from .hybridfl.trained import judge_trained

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    found = timing(AEROFOIL, range(10 if quick else 40), rounds=200 if quick else None)
    by_estimator = judge_estimators(AEROFOIL, *((range(2), 50) if quick else (range(10), 200)))
    slack = judge_slack(range(10 if quick else 40))
    less = HybridProtocol("aerofoil", rounds=100, drops=(0.6,), shares=(0.3,), seeds=1)
    protocol = less if quick else HybridProtocol("aerofoil")
    trained = judge_trained(AEROFOIL, cells(lab, protocol))
    return (
        judge_limits(AEROFOIL)
        + judge_table(AEROFOIL)
        + judge_lengths(AEROFOIL, found)
        + by_estimator
        + judge_half(found)
        + slack
        + trained
    )


ENTRY = Entry(
    name="hybridfl-aerofoil",
    title="HybridFL on the aerofoil's clients: rounds, accuracy, time, and slack factors by estimator",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.3 and Figure 4.4",
    run=_run,
    needs="the airfoil's self-noise below ATOLL_DATA",
    data=("airfoil",),
)
