"""The whole grid without training: round lengths and energy of every method, drop-out rate and share, averaged over draws of the clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from atoll.learn.pacing.regions.slack import (
    ChanceConstrained,
    Forgetting,
    LateCount,
    PaperLiteral,
    Ratio,
    SlackEstimator,
    UncensoredOnly,
)
from atoll.reproduce import Claim

from .judges import HybridFound, judge_estimator
from .paper import SLACK, Key, table_of
from .reference import METHODS, draw, simulate
from .setting import DROPS, SHARES, HybridSetting
from .toy import trace

__all__ = ["ESTIMATORS", "judge_estimators", "judge_slack", "timing"]

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
