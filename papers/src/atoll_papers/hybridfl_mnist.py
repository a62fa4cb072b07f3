"""HybridFL, Task 2: rounds, time and energy of five hundred clients.

Source and protocol: `atoll_papers.hybridfl`. Round lengths are simulated without training, in full; energy is for
the rounds that the thesis needed. Training is smaller than the thesis's: see `atoll_papers.hybridfl.protocol`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from atoll.reproduce import Claim, Entry, Lab

from .hybridfl.grid import judge_estimators, timing
from .hybridfl.judges import judge_energy, judge_lengths, judge_limits, judge_table
from .hybridfl.protocol import LENET, SMALL, HybridProtocol
from .hybridfl.setting import DIGITS
from .hybridfl.tasks import cells
from .hybridfl.trained import judge_trained

__all__ = ["ENTRY"]

_LOWER, _ONE = "To accuracy 0.85", "One cell with LeNet-5"
_QUICK = replace(LENET, rounds=10, rows=2000, clients=50, goal=0.0)


def _run(lab: Lab, quick: bool) -> list[Claim]:
    found = timing(DIGITS, range(2 if quick else 10), rounds=150 if quick else None)
    by_estimator = judge_estimators(DIGITS, *((range(1), 20) if quick else (range(3), 200)))
    timed = (
        judge_limits(DIGITS) + judge_table(DIGITS) + judge_lengths(DIGITS, found) + by_estimator + judge_energy(found)
    )
    if quick:
        return timed + _trained(lab, [_QUICK])
    lower = _trained(lab, [replace(protocol, goal=0.85) for protocol in SMALL], _LOWER)
    again = [claim for claim in lower if "best accuracy" not in claim.claim]  # which does not depend on the target
    return timed + _trained(lab, SMALL) + again + _trained(lab, [LENET], _ONE)


def _trained(lab: Lab, protocols: Sequence[HybridProtocol], part: str = "") -> list[Claim]:
    found = {key: cell for protocol in protocols for key, cell in cells(lab, protocol).items()}
    first = protocols[0]
    rounds = {f"{protocol.rounds} at C = {share:g}" for protocol in protocols for share in protocol.shares}
    seeds = {f"{protocol.seeds} with E[dr] = {drop:g}" for protocol in protocols for drop in protocol.drops}
    told = f"{first.told}; rounds: {', '.join(sorted(rounds))}; seeds: {', '.join(sorted(seeds))}"
    if first.goal:
        told += f"; the thesis's numbers are to {DIGITS.target:g}"
    return [
        replace(claim, note=f"trained smaller: {told}; {claim.note}", part=part)
        for claim in judge_trained(first.setting, found)
    ]


ENTRY = Entry(
    name="hybridfl-mnist",
    title="HybridFL with 500 clients: round lengths and energy; trained with 100",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.4 and Figure 4.9",
    run=_run,
    needs="MNIST below ATOLL_DATA",
    data=("mnist",),
)
