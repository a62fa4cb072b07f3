"""What a campaign can expect before it begins: how likely it ends although people vanish, and how large a committee must be.

`plan_truth` says how likely a campaign ends by shares and by masks, and a leader-board by groups and by its rival. It has each number twice: from a closed form, and
from campaigns that are played. `plan_committee` says how many users add up for all, so that enough of them stay and too few of them collude.

Each connection is lost with the same probability, and whoever is lost stays away. After ``m`` connections a user is there with ``(1 - loss)^m``, and of ``n`` users a
binomial number. The closed forms are those of FedTruthFinder's analysis (Theorems 4.1 and 5.3); where the paper's text and its numbers differ, a plan has both readings.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError

__all__ = ["CommitteePlan", "SimulatedCampaigns", "TruthPlan", "plan_committee", "plan_truth"]

Floats = NDArray[np.float64]

SHARES, MASKS = 1, 2
"""Connections of a user in an iteration: one if shares are relayed; two with double masks, which must be opened afterwards (Bonawitz et al. 2017)."""

SECRECY, RECOVERY = 2.0**-40, 2.0**-30
"""How likely the colluders of a committee learn what was shared, and how likely too few members stay: as for the neighbours of masks."""

_MOST_SIMULATED = 10**7
"""Campaigns that one plan plays at most: an array of them takes 80 MB."""


@dataclass(frozen=True)
class SimulatedCampaigns:
    """What happened in campaigns that were played: users vanish one connection after the other.

    Attributes:
        success: share of the campaigns in which ``threshold`` users were there after each iteration.
        success_masks: the same, with two connections in an iteration.
        ranking_failure: share of the leader-boards in which a group had nobody left.
        ranking_rival: share in which one of the ``2 t + 1`` representatives was lost.
        trials: campaigns. A share ``x`` has the standard error ``sqrt(x (1 - x) / trials)``.
    """

    success: float
    success_masks: float
    ranking_failure: float
    ranking_rival: float
    trials: int


@dataclass(frozen=True)
class TruthPlan:
    """How likely a campaign ends, and its leader-board.

    Attributes:
        success: probability that ``threshold`` users remain after all iterations, of one connection each.
        success_masks: the same, with the two connections of double masks.
        success_packed: the same by shares that stand for ``pack`` numbers each, and bear as many colluders: ``threshold + pack - 1`` users must remain.
        ranking_failure: probability that one of the ``2 t + 1`` groups has nobody left, with groups of real sizes.
        ranking_bound: the bound of Theorem 5.3, which counts every group as the smallest: never below ``ranking_failure``.
        ranking_unfloored: the formula of the theorem with groups of ``n / (2 t + 1)`` members, no whole number. The paper prints it, and it is below the truth.
        ranking_rival: probability that one of ``2 t + 1`` representatives without stand-ins is lost (Tang, Shi, Yao).
        ranking_rival_printed: the same with ``3 t + 1``, which is the number that the paper prints.
        simulated: the same by campaigns that are played.
    """

    success: float
    success_masks: float
    success_packed: float
    ranking_failure: float
    ranking_bound: float
    ranking_unfloored: float
    ranking_rival: float
    ranking_rival_printed: float
    simulated: SimulatedCampaigns

    def plain(self) -> dict[str, Any]:
        """The plan as plain values."""
        return asdict(self)


def plan_truth(
    users: int,
    threshold: int,
    loss: float,
    iterations: int,
    *,
    ranking_threshold: int,
    pack: int = 1,
    trials: int = 10_000,
    seed: int = 0,
) -> TruthPlan:
    """How likely a campaign ends although connections are lost, and its leader-board.

    ``P[Binomial(n, (1 - loss)^(c k)) >= t]`` for ``k`` iterations of ``c`` connections. A leader-board needs one member of each of ``2 t + 1`` groups, so it fails
    with ``1 - prod_g (1 - loss^(size of g))``; nobody is lost before.

    Args:
        users: ``n``.
        threshold: users whose sums give the result, ``t``.
        loss: probability that a connection is lost, in [0, 1).
        iterations: ``k``.
        ranking_threshold: colluders that a leader-board bears, also ``t`` in the paper: ``2 t + 1`` groups share the users among them.
        pack: numbers of a polynomial, for ``success_packed``.
        trials: campaigns to play.
        seed: of these campaigns.

    Raises:
        ConfigError: a number makes no sense.
    """
    _require(users >= 1, f"{users} users", "name 1 user or more")
    _require(1 <= threshold <= users, f"threshold={threshold} of {users} users", f"use a threshold of 1 to {users}")
    _require(0 <= loss < 1, f"loss={loss}", "give the share of the connections that are lost, from 0 to below 1")
    _require(iterations >= 1, f"{iterations} iterations", "make 1 iteration or more")
    _require(
        1 <= pack <= users - threshold + 1,
        f"pack={pack} with threshold={threshold} of {users} users",
        f"pack 1 to {users - threshold + 1} numbers: threshold + pack - 1 users must remain",
    )
    groups = 2 * ranking_threshold + 1
    _require(
        ranking_threshold >= 0 and groups <= users,
        f"ranking_threshold={ranking_threshold}, which needs {groups} groups of {users} users",
        f"use a ranking threshold of 0 to {(users - 1) // 2}: each group needs a user",
    )
    _require(
        1 <= trials <= _MOST_SIMULATED, f"{trials} simulated campaigns", f"simulate 1 to {_MOST_SIMULATED} campaigns"
    )
    small, larger = divmod(users, groups)
    sizes = [small + 1] * larger + [small] * (groups - larger)
    return TruthPlan(
        success=_most_stay(users, threshold, (1 - loss) ** (SHARES * iterations)),
        success_masks=_most_stay(users, threshold, (1 - loss) ** (MASKS * iterations)),
        success_packed=_most_stay(users, threshold + pack - 1, (1 - loss) ** (SHARES * iterations)),
        ranking_failure=_some_group_is_lost(loss, sizes),
        ranking_bound=_some_group_is_lost(loss, [small] * groups),
        ranking_unfloored=_some_group_is_lost(loss, [users / groups] * groups),
        ranking_rival=_some_group_is_lost(loss, [1] * groups),
        ranking_rival_printed=_some_group_is_lost(loss, [1] * (3 * ranking_threshold + 1)),
        simulated=_simulate_campaigns(users, threshold, loss, iterations, sizes, trials, np.random.default_rng(seed)),
    )


def _most_stay(users: int, threshold: int, stays: float) -> float:
    """``P[Binomial(users, stays) >= threshold]``."""
    if stays in (0.0, 1.0):
        return stays
    who = np.arange(threshold, users + 1)
    logs = _log_choose(users)[who] + who * math.log(stays) + (users - who) * math.log1p(-stays)
    return min(1.0, math.fsum(np.exp(logs)))


def _some_group_is_lost(loss: float, sizes: list[int] | list[float]) -> float:
    """``1 - prod_g (1 - loss^(size of g))``; differences from 1 as small as 1e-300 count."""
    return -math.expm1(math.fsum(math.log1p(-(loss**size)) for size in sizes))


@functools.lru_cache(maxsize=16)
def _log_choose(n: int) -> Floats:
    """The logarithms of ``n`` over ``0 .. n``."""
    logs = np.fromiter(map(math.lgamma, range(1, n + 2)), dtype=np.float64, count=n + 1)
    return np.asarray(logs[n] - logs - logs[::-1])


def _simulate_campaigns(
    users: int, threshold: int, loss: float, iterations: int, sizes: list[int], trials: int, rng: np.random.Generator
) -> SimulatedCampaigns:
    """Play campaigns, connection after connection, and leader-boards, group after group."""
    ended = {}
    for connections in (SHARES, MASKS):
        there, fine = np.full(trials, users), np.ones(trials, dtype=bool)
        for _ in range(iterations):
            for _ in range(connections):
                there = rng.binomial(there, 1 - loss)
            fine &= there >= threshold
        ended[connections] = float(fine.mean())
    lost, gone = np.zeros(trials, dtype=bool), np.zeros(trials, dtype=bool)
    for size in sizes:
        lost |= rng.binomial(size, 1 - loss, trials) == 0
        gone |= rng.random(trials) < loss  # the rival's representative of this group
    return SimulatedCampaigns(ended[SHARES], ended[MASKS], float(lost.mean()), float(gone.mean()), trials)


# ------------------------------------------------------------------ committees


@dataclass(frozen=True)
class CommitteePlan:
    """The least committee that has a threshold, and the least such threshold.

    Attributes:
        members: ``k``, drawn by lot.
        threshold: members whose sums give the result, ``t``.
        exposed: probability that ``t`` members collude: they see what the users share. With packed shares that is ``pack - 1`` below the threshold, and they see some of it.
        stuck: probability that fewer than ``t`` members stay: the iteration must be made again.
    """

    members: int
    threshold: int
    exposed: float
    stuck: float

    def plain(self) -> dict[str, Any]:
        """The plan as plain values."""
        return asdict(self)


@functools.lru_cache(maxsize=64)
def plan_committee(users: int, loss: float, colluders: float, products: bool = False, pack: int = 1) -> CommitteePlan:
    """Find the least ``k`` for which a ``t`` exists, and the least such ``t``.

    Of ``n`` users a lot draws ``k`` who add up for all. ``c = ceil(colluders n)`` users collude, and ``s = ceil(loss n)`` are lost before they have sent their sums:

    * secrecy: ``P[X >= t] <= 2^-40`` for ``X`` hypergeometric: ``k`` of ``n`` with ``c`` marked;
    * recovery: ``P[Y > k - t] <= 2^-30`` for ``Y`` hypergeometric: ``k`` of ``n`` with ``s`` marked.

    Each user then sends shares to ``k`` members in place of ``n``. The probabilities are those of one lot: a committee drawn anew in each iteration has them each time.
    ``t`` is at least 2: a single share would be the value.

    Args:
        users: ``n``, at least 2.
        loss: share of the users that are lost while a committee serves.
        colluders: share of the users that pool what they see.
        products: whether the committee multiplies on shares (`Shamir.min_reporters`): ``2 t - 1`` members must then stay.
        pack: numbers of a polynomial (`Shamir.pack`): ``t + pack - 1`` members must then stay, and the plan's threshold is that.

    Raises:
        ConfigError: a number makes no sense, or even all users together have no such threshold.
    """
    _require(users >= 2, f"{users} users", "name 2 users or more")
    for name, share in (("loss", loss), ("colluders", colluders)):
        _require(0 <= share < 1, f"{name}={share}", "give a share of the users, from 0 to below 1")
    marked, lost = math.ceil(colluders * users - 1e-9), math.ceil(loss * users - 1e-9)
    for members in range(2, users + 1):
        exposed = _tail(users, marked, members)
        threshold = max(2, int(np.argmax(exposed <= SECRECY)))  # the last entry is 0
        needed = 2 * threshold - 1 if products else threshold + pack - 1
        if needed > members:
            continue
        stuck = float(_tail(users, lost, members)[members - needed + 1])
        if stuck <= RECOVERY:
            return CommitteePlan(members, threshold + pack - 1, float(exposed[threshold]), stuck)
    raise ConfigError(
        f"{users} users, of whom {lost} are lost and {marked} collude, have no committee that both keeps secrets and recovers",
        where="plan_committee",
        remedy="invite more users, or expect less loss or fewer colluders",
    )


def _tail(users: int, marked: int, members: int) -> Floats:
    """``P[X >= i]`` for ``i`` from 0 to ``members + 1``: ``members`` drawn of ``users``, ``marked`` of whom count."""
    chances = np.zeros(members + 2)
    found = np.arange(max(0, members - (users - marked)), min(members, marked) + 1)
    logs = _log_choose(marked)[found] + _log_choose(users - marked)[members - found] - _log_choose(users)[members]
    chances[found] = np.exp(logs)
    return np.asarray(np.minimum(np.cumsum(chances[::-1])[::-1], 1.0))


def _require(fine: bool, what: str, remedy: str) -> None:
    if not fine:
        raise ConfigError(what, where="truth plan", remedy=remedy)
