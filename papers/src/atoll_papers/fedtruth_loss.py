"""FedTruthFinder, Figures 3 to 5: how many reports are left, and how often a campaign and a leader-board fail, although connections are lost.

Source: "FedTruthFinder" (federated truth discovery and trust ranking), section 6.1: 100 users, each connection lost for good with probability .01, .05 or .1, threshold 50, up to 10 iterations; leader-boards with t from 10 to 25. Rivals: truth discovery over secure aggregation with double
masks (two connections an iteration), and the sequencing protocol of Tang, Shi and Yao (2011), which has no stand-ins. The figures print no numbers; statements are those of the text.

Every probability is there three times: by its closed form, by campaigns that are played, and, for leader-boards, by `atoll.secure.rank_parties` itself among few users.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from atoll.core import Community
from atoll.core.errors import QuorumError
from atoll.reproduce import Claim, Entry, keeping_nothing
from atoll.secure import rank_parties
from atoll.simulation import simulate
from atoll.testing import Timetable
from atoll.truth import TruthPlan, plan_truth

__all__ = ["ENTRY"]

USERS, THRESHOLD, ITERATIONS, LOSSES, RANKS = 100, 50, 10, (0.01, 0.05, 0.1), (10, 15, 20, 25)
_DATA, _CAMPAIGN, _RANKING, _PLAYED = (
    "Figure 3: reports that are left",
    "Figure 4: failing campaigns",
    "Figure 5: failing leader-boards",
    "Leader-boards, played",
)


def _plan(loss: float, iterations: int, rank: int = RANKS[0], trials: int = 1) -> TruthPlan:
    return plan_truth(USERS, THRESHOLD, loss, iterations, ranking_threshold=rank, trials=trials)


def _reports_left(trials: int) -> list[Claim]:
    """Of 100 users ``100 (1 - loss)^(c k)`` are there after ``k`` iterations of ``c`` connections."""
    rng, made, ratios = np.random.default_rng(0), [], []
    ahead = True
    for loss in LOSSES:
        left = {name: [USERS * (1 - loss) ** (c * k) for k in range(1, ITERATIONS + 1)] for name, c in (("shares", 1), ("masks", 2))}  # fmt: skip
        played = []
        for c in (1, 2):
            there = np.full(trials, USERS)
            for _ in range(c * ITERATIONS):
                there = rng.binomial(there, 1 - loss)
            played.append(f"{there.mean():.1f}")
        ahead &= all(a > b for a, b in zip(left["shares"], left["masks"], strict=True))
        ratios.append(left["shares"][-1] / left["masks"][-1])
        made.append(Claim.figure(f"loss {loss:g}: of 100 users after 10 iterations, by shares and by masks", f"{left['shares'][-1]:.1f}, {left['masks'][-1]:.1f}", f"{', '.join(played)} in {trials:,} campaigns that are played", _DATA))  # fmt: skip
    made.append(Claim("shares always leave more reports than masks", "in all iterations", "in all iterations" if ahead else "not", ahead, "one connection an iteration against two", _DATA))  # fmt: skip
    more = ratios == sorted(ratios)
    made.append(Claim("the lead is larger the more connections are lost", "most at .1", ", ".join(f"{x:.2f}" for x in ratios) + " times", more, "after 10 iterations, at losses of .01, .05 and .1", _DATA))  # fmt: skip
    return made


def _failing_campaigns(trials: int) -> list[Claim]:
    moderate = _plan(0.05, ITERATIONS, trials=trials)
    shown = moderate.simulated
    made = [
        Claim("loss .05, 10 iterations: campaigns by shares that end, in %", "about 99", f"{100 * moderate.success:.2f}", abs(moderate.success - 0.99) < 0.015, f"within 1.5 points; played: {100 * shown.success:.2f}", _CAMPAIGN),
        Claim("loss .05, 10 iterations: campaigns by masks that end, in %", "about 1", f"{100 * moderate.success_masks:.2f}", abs(moderate.success_masks - 0.01) < 0.015, f"within 1.5 points; played: {100 * shown.success_masks:.2f}", _CAMPAIGN),
    ]  # fmt: skip
    bad = [_plan(0.1, k) for k in range(1, ITERATIONS + 1)]
    masks, shares = [1 - one.success_masks for one in bad], [1 - one.success for one in bad]
    first = next(k for k, chance in enumerate(masks, 1) if chance > 0.2)
    made.append(Claim("loss .1: campaigns by masks fail with more than 20 % from iteration", 3, first, first == 3, f"{100 * masks[1]:.2f} % in iteration 2, {100 * masks[2]:.1f} % in 3", _CAMPAIGN))  # fmt: skip
    works = next(k for k, chance in enumerate(shares, 1) if chance > 0.2)
    made.append(Claim("loss .1: campaigns by shares work well until iteration", 6, works, works == 6, f"the first that fails with more than 20 %: {100 * shares[4]:.1f} % in 5, {100 * shares[5]:.1f} % in 6", _CAMPAIGN))  # fmt: skip
    good = _plan(0.01, ITERATIONS)
    worst = 1 - min(good.success, good.success_masks)
    made.append(Claim("loss .01: both nearly always end", "nearly always", f"at most {worst:.1e} fail", worst < 1e-3, "10 iterations", _CAMPAIGN))  # fmt: skip
    for k in (2, 4, 6, 8, 10):
        cells = [f"{1 - one:.4f}" for loss in (0.05, 0.1) for plan in (_plan(loss, k),) for one in (plan.success, plan.success_masks)]  # fmt: skip
        made.append(Claim.figure(f"iteration {k}: failures by shares and masks at .05, and at .1", ", ".join(cells), "", _CAMPAIGN))  # fmt: skip
    return made


def _failing_rankings(trials: int) -> list[Claim]:
    plan = _plan(0.1, ITERATIONS, trials=trials)
    ours = 100 * plan.ranking_failure
    made = [
        Claim("loss .1, t = 10: leader-boards by groups that fail, in %", 0.04, f"{ours:.3f}", abs(ours - 0.04) < 0.005, f"groups of 4 and 5 users; the paper's number follows from groups of 100 / 21 users: {100 * plan.ranking_unfloored:.3f}; played: {100 * plan.simulated.ranking_failure:.3f}", _RANKING),
        Claim("the same by Tang, Shi and Yao, in %", 96.18, f"{100 * plan.ranking_rival:.2f}", abs(100 * plan.ranking_rival - 96.18) < 0.5, f"21 representatives; the paper's number follows from 31, which is 3 t + 1: {100 * plan.ranking_rival_printed:.2f}; played: {100 * plan.simulated.ranking_rival:.2f}", _RANKING),
        Claim("0.04 % is 1 - (1 - .1^(100/21))^21", 0.04, f"{100 * plan.ranking_unfloored:.3f}", round(100 * plan.ranking_unfloored, 2) == 0.04, "a group has no 4.76 users", _RANKING, "derived"),
        Claim("96.18 % is 1 - .9^31", 96.18, f"{100 * plan.ranking_rival_printed:.2f}", round(100 * plan.ranking_rival_printed, 2) == 96.18, "the protocol has 2 t + 1 representatives, not 3 t + 1", _RANKING, "derived"),
    ]  # fmt: skip
    for loss in (0.05, 0.1):
        plans = [_plan(loss, ITERATIONS, rank) for rank in RANKS]
        failures = [one.ranking_failure for one in plans]
        made.append(Claim(f"loss {loss:g}: a larger t fails more often", "t from 10 to 25", ", ".join(f"{x:.5f}" for x in failures), failures == sorted(failures), f"bound of Theorem 5.3: {', '.join(f'{one.ranking_bound:.4f}' for one in plans)}", _RANKING))  # fmt: skip
        rivals = [one.ranking_rival for one in plans]
        made.append(Claim(f"loss {loss:g}: groups fail less often than single representatives", "for each t", ", ".join(f"{x:.4f}" for x in rivals), all(a < b for a, b in zip(failures, rivals, strict=True)), "failures of the rival", _RANKING))  # fmt: skip
        bounded = all(one.ranking_failure <= one.ranking_bound for one in plans)
        made.append(Claim(f"loss {loss:g}: Theorem 5.3 bounds the failures", "for each t", "holds" if bounded else "broken", bounded, "with the smallest group's size in place of each group's", _RANKING))  # fmt: skip
    return made


def _played(trials: int) -> list[Claim]:
    """The protocol itself: who is lost is drawn, and stands still before it mixes."""
    users, threshold, loss = 7, 1, 0.3
    names = [f"client-{i}" for i in range(users)]
    scores = np.random.default_rng(1).permutation(users) + 1.0
    best = tuple(names[i] for i in np.argsort(-scores))
    rng, failed, sorted_all = np.random.default_rng(0), {True: 0, False: 0}, True
    for _ in range(trials):
        lost = {"mix_powers": [name for name in names if rng.random() < loss]}
        for stand_ins in failed:
            try:
                sorted_all &= _order(scores.tolist(), threshold, stand_ins, lost) == best
            except QuorumError:
                failed[stand_ins] += 1
    plan = plan_truth(users, threshold + 1, loss, 1, ranking_threshold=threshold, trials=1)
    made = []
    for name, count, chance in (("by groups", failed[True], plan.ranking_failure), ("without stand-ins", failed[False], plan.ranking_rival)):  # fmt: skip
        error = math.sqrt(chance * (1 - chance) / trials)
        made.append(Claim(f"7 users, 3 groups, loss .3: leader-boards {name} that fail", f"{chance:.3f}", f"{count / trials:.3f}", abs(count / trials - chance) < 3 * error, f"the closed form; within three standard errors of {trials} runs", _PLAYED))  # fmt: skip
    made.append(Claim("Theorem 5.2: each leader-board that ends is in order", "in order", "in order" if sorted_all else "not", sorted_all, "whoever is lost", _PLAYED))  # fmt: skip
    return made


def _order(scores: list[float], threshold: int, stand_ins: bool, lost: dict[str, list[str]]) -> tuple[str, ...]:
    async def program(fed: Any) -> tuple[str, ...]:
        board = await rank_parties(fed, fed.parties, threshold, at=0, most=max(scores), stand_ins=stand_ins)
        return board.order

    return simulate(program, Community(scores), engine="inline", devices=Timetable(lost=lost), progress=False)


@keeping_nothing("fedtruth-loss")
def _run(quick: bool) -> list[Claim]:
    trials = 10_000 if quick else 1_000_000
    return [*_reports_left(trials), *_failing_campaigns(trials), *_failing_rankings(trials), *_played(30 if quick else 300)]  # fmt: skip


ENTRY = Entry(
    name="fedtruth-loss",
    title="FedTruthFinder: campaigns and leader-boards whose users vanish",
    source="FedTruthFinder, Figures 3 to 5; Tang, Shi and Yao 2011",
    run=_run,
)
