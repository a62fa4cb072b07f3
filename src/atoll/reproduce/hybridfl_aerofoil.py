"""HybridFL, Task 1: rounds, time, energy and slack factors on the aerofoil's fifteen clients.

Source and protocol: `atoll.reproduce.hybridfl`. Round lengths and slack factors are simulated without training.
"""

from __future__ import annotations

from .entry import Claim, Entry, Lab
from .hybridfl.grid import judge_slack, timing
from .hybridfl.judges import judge_lengths, judge_limits, judge_table
from .hybridfl.setting import AEROFOIL

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    del lab
    found = timing(AEROFOIL, range(10 if quick else 40), rounds=200 if quick else None)
    slack = judge_slack(range(10 if quick else 40))
    return judge_limits(AEROFOIL) + judge_table(AEROFOIL) + judge_lengths(AEROFOIL, found) + slack


ENTRY = Entry(
    name="hybridfl-aerofoil",
    title="HybridFL on the aerofoil's clients: round lengths and slack factors, without training",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.3 and Figure 4.4",
    run=_run,
)
