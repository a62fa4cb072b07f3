"""HybridFL's reproductions: the aerofoil's fifteen clients in three regions, and five hundred clients with digits. Source: `atoll_papers.hybridfl`.

* **hybridfl-aerofoil** (Task 1): round lengths and slack factors are means over draws of the clients, simulated without training; accuracy,
  rounds, time and energy to the target are medians of three trainings a cell, each with its own partition and devices.
* **hybridfl-mnist** (Task 2): round lengths are simulated without training, in full; energy is for the rounds that the thesis needed. Training is
  smaller than the thesis's: see `atoll_papers.hybridfl.paper`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.learn.pacing.slack import (
    ChanceConstrained,
    Forgetting,
    LateCount,
    PaperLiteral,
    Ratio,
    SlackEstimator,
    UncensoredOnly,
)
from atoll.reproduce import Claim, Entry, Lab

from .judges import HybridFound, judge_energy, judge_estimator, judge_half, judge_lengths, judge_limits, judge_table
from .paper import AEROFOIL, DIGITS, DROPS, LENET, SHARES, SLACK, SMALL, HybridProtocol, HybridSetting, Key, table_of
from .reference import METHODS, draw, simulate, trace
from .trainings import cells, judge_trained

__all__ = ["AEROFOIL_ENTRY", "ESTIMATORS", "MNIST_ENTRY", "judge_estimators", "judge_slack", "timing"]


# ------------------------------------------------------------------ the grid without training

ESTIMATORS: dict[str, SlackEstimator] = {
    "paper_literal": PaperLiteral(),
    "paper_printed": PaperLiteral(symbol="selected"),
    "late_count": LateCount(),
    "uncensored_only": UncensoredOnly(),
    "ratio": Ratio(),
    "forgetting": Forgetting(memory=0.95),
    "chance_constrained": ChanceConstrained(delta=0.1),
}
"""The compared slack estimators; the first two are the published one, as derived and as printed."""


def timing(
    setting: HybridSetting,
    seeds: Sequence[int],
    *,
    estimator: SlackEstimator | None = None,
    methods: Sequence[str] = METHODS,
    rounds: int | None = None,
) -> dict[Key, HybridFound]:
    """Simulate the grid.

    Args:
        setting: the task.
        seeds: of the draws of clients to average over; every method has the same clients.
        estimator: HybridFL's.
        methods: the methods to run.
        rounds: of each run; ``t_max`` by default.

    Returns:
        Cells whose energy is for the rounds that the thesis needed to its target.
    """
    table, found = table_of(setting), {}
    for method in methods:
        for drop in DROPS:
            for share in SHARES:
                runs = []
                for seed in seeds:
                    devices = draw(setting, drop, np.random.default_rng([seed, 0]))
                    rng = np.random.default_rng([seed, 1])
                    runs.append(simulate(setting, devices, method, share, rng, rounds=rounds, estimator=estimator))
                key = (method, drop, share)
                found[key] = HybridFound(
                    length=float(np.mean([run.mean_length() for run in runs])),
                    watt_hours=float(np.mean([run.watt_hours(table[key].rounds) for run in runs])),
                )
    return found


def judge_estimators(setting: HybridSetting, seeds: Sequence[int], rounds: int = 200) -> list[Claim]:
    """Judge HybridFL's round lengths with every estimator, and the baselines' on the same clients.

    Args:
        setting: the task.
        seeds: of the draws of clients.
        rounds: of each run.
    """
    baselines = timing(setting, seeds, methods=[method for method in METHODS if method != "HybridFL"], rounds=rounds)
    claims = []
    for name, estimator in ESTIMATORS.items():
        found = timing(setting, seeds, estimator=estimator, methods=("HybridFL",), rounds=rounds)
        claim = judge_estimator(setting, name, found, baselines)
        claims.append(replace(claim, note=f"{claim.note}; means over {len(seeds)} draws of {rounds} rounds"))
    return claims


def judge_slack(seeds: Sequence[int] = range(10), rounds: int = 100) -> list[Claim]:
    """Judge Figure 4.4 with every estimator: where the factors settle, and whether ``|X_r| / N_r`` is near C = 0.3."""
    claims = []
    for name, estimator in ESTIMATORS.items():
        runs = [trace(estimator, seed, rounds) for seed in seeds]
        theta = np.mean([run.theta[-1] for run in runs], axis=0)
        truth = np.mean([run.truth for run in runs], axis=0)
        error = float(np.mean([np.abs(run.theta[-1] - run.truth) for run in runs]))
        reached = float(np.mean([run.survivors[rounds * 2 // 5 :] for run in runs]))
        claims.append(
            Claim(
                f"Figure 4.4, {name}: the factors settle near the regions' survival, and |X_r|/N_r near 0.3",
                f"theta {SLACK[0]:.2f}/{SLACK[1]:.2f}, about 0.3",
                f"theta {theta[0]:.2f}/{theta[1]:.2f} for survival {truth[0]:.2f}/{truth[1]:.2f}, {reached:.3f}",
                error < 0.05 and abs(reached - 0.3) < 0.03,
                f"mean of {len(runs)} draws; mean error of theta {error:.3f}; holds below 0.05, and within 0.03 of 0.3 from round 40 on",
            )
        )
    return claims


# ------------------------------------------------------------------ hybridfl-aerofoil


def _run_aerofoil(lab: Lab, quick: bool) -> list[Claim]:
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


AEROFOIL_ENTRY = Entry(
    name="hybridfl-aerofoil",
    title="HybridFL on the aerofoil's clients: rounds, accuracy, time, and slack factors by estimator",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.3 and Figure 4.4",
    run=_run_aerofoil,
    needs="the airfoil's self-noise below ATOLL_DATA",
    data=("airfoil",),
)


# ------------------------------------------------------------------ hybridfl-mnist

_LOWER, _ONE = "To accuracy 0.85", "One cell with LeNet-5"
_QUICK = replace(LENET, rounds=10, rows=2000, clients=50, goal=0.0)


def _run_mnist(lab: Lab, quick: bool) -> list[Claim]:
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


MNIST_ENTRY = Entry(
    name="hybridfl-mnist",
    title="HybridFL with 500 clients: round lengths and energy; trained with 100",
    source="W. Wu, Efficient Horizontal Federated Learning, Table 4.4 and Figure 4.9",
    run=_run_mnist,
    needs="MNIST below ATOLL_DATA",
    data=("mnist",),
)
