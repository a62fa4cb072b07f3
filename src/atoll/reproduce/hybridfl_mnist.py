"""HybridFL, Task 2: rounds, time and energy of five hundred clients.

Source and protocol: `atoll.reproduce.hybridfl`. Round lengths are simulated without training; energy is that of the rounds which the thesis needed.
"""

from __future__ import annotations

from .entry import Claim, Entry, Lab
from .hybridfl.grid import timing
from .hybridfl.judges import judge_energy, judge_lengths, judge_limits, judge_table
from .hybridfl.setting import DIGITS

__all__ = ["ENTRY"]


def _run(lab: Lab, quick: bool) -> list[Claim]:
    del lab
    found = timing(DIGITS, range(2 if quick else 10), rounds=150 if quick else None)
    return judge_limits(DIGITS) + judge_table(DIGITS) + judge_lengths(DIGITS, found) + judge_energy(found)


ENTRY = Entry(
    name="hybridfl-mnist",
    title="HybridFL with 500 clients: round lengths and energy, without training",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.4 and Figure 4.9",
    run=_run,
)
