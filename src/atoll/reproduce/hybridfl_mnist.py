"""HybridFL, Task 2: rounds, time and energy of five hundred clients.

Source and protocol: `atoll.reproduce.hybridfl`. Round lengths are simulated without training, in full; energy is that of the rounds which the thesis needed.
What is trained is smaller than the thesis's: see `atoll.reproduce.hybridfl.tasks.SMALL`.
"""

from __future__ import annotations

from dataclasses import replace

from .entry import Claim, Entry, Lab
from .hybridfl.grid import timing
from .hybridfl.judges import judge_energy, judge_lengths, judge_limits, judge_table
from .hybridfl.setting import DIGITS
from .hybridfl.tasks import SMALL, cells
from .hybridfl.trained import judge_trained

__all__ = ["ENTRY"]

_SMALLER = (
    f"trained smaller: {SMALL.clients} clients with {SMALL.rows // SMALL.clients} digits each, {SMALL.rounds} rounds"
)


def _run(lab: Lab, quick: bool) -> list[Claim]:
    found = timing(DIGITS, range(2 if quick else 10), rounds=150 if quick else None)
    timed = judge_limits(DIGITS) + judge_table(DIGITS) + judge_lengths(DIGITS, found) + judge_energy(found)
    protocol = replace(SMALL, rounds=10, rows=2000, clients=50, seeds=1) if quick else SMALL
    return timed + [
        replace(claim, note=f"{_SMALLER}; {claim.note}") for claim in judge_trained(DIGITS, cells(lab, protocol))
    ]


ENTRY = Entry(
    name="hybridfl-mnist",
    title="HybridFL with 500 clients: round lengths and energy; trained with 100",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.4 and Figure 4.9",
    run=_run,
    needs="MNIST below ATOLL_DATA",
)
