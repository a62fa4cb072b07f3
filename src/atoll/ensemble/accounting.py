"""What users of an ensemble lose of their privacy: parallel leaves count once; what the same user is in twice adds up."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.event import Event, NonPrivate
from atoll.learn.private.claim import Guarantee
from atoll.privacy import ORDERS, epsilon_of, parallel, renyi_curve

__all__ = ["EnsembleLoss", "EnsembleRelease", "account_ensemble", "add_losses", "share_epsilon"]

_ERROR = 1e-4
_CLOSE = 1e-3
"""By what share an ensemble may stay below its epsilon, so that few noises are tried."""


@dataclass(frozen=True)
class EnsembleRelease:
    """What one training releases of its users.

    Attributes:
        name: of the training.
        users: whom it is about.
        events: pairs of a release and how often a user is in it.
        delta: the probability with which the promise may fail.
        accountant: how epsilon is counted.
        adversary: from whom it protects.
        neighbours: which data sets are neighbours.
    """

    name: str
    users: tuple[str, ...] = field(repr=False)
    events: tuple[tuple[Event, int], ...]
    delta: float = 1e-5
    accountant: str = "pld"
    adversary: str = "server"
    neighbours: str = "add-remove"

    @classmethod
    def of(cls, name: str, users: Sequence[str], claim: Guarantee | None) -> EnsembleRelease:
        """Return the release of a training with this promise; without one it releases updates as they are."""
        if claim is None:
            return cls(name, tuple(users), ((NonPrivate(what="updates of a training"), 1),))
        events = tuple((event, claim.attendance.participations) for event in claim.events)
        return cls(name, tuple(users), events, claim.delta, claim.accountant, claim.adversary, claim.neighbours)

    @property
    def clear(self) -> bool:
        """Whether it has no noise."""
        return any(isinstance(event, NonPrivate) for event, _ in self.events)


@dataclass(frozen=True)
class EnsembleLoss:
    """Epsilon of an ensemble, after all trainings, for the user who loses most.

    Attributes:
        leaves: of the leaves alone.
        aggregator: of what joins them alone; 0 for all that looks at no further labels of users.
        total: of both, and of what was tried before.
        delta: the probability with which the promise may fail.
        releases: what it is counted of.
    """

    leaves: float
    aggregator: float
    total: float
    delta: float
    releases: tuple[EnsembleRelease, ...] = field(default=(), repr=False)

    def plain(self) -> dict[str, float | None]:
        """Return the epsilons by name; ``None`` where nothing is promised."""
        told = {"leaves": self.leaves, "aggregator": self.aggregator, "total": self.total}
        return {name: value if math.isfinite(value) else None for name, value in told.items()}


def account_ensemble(
    leaves: Sequence[EnsembleRelease],
    aggregator: EnsembleRelease | None = None,
    tried: Sequence[EnsembleLoss] = (),
    private: EnsembleRelease | None = None,
    again: Sequence[Sequence[EnsembleRelease]] = (),
) -> EnsembleLoss:
    """Return what an ensemble costs.

    Leaves are about users of whom nobody is in two, which `atoll.privacy.parallel` proves or refuses: they cost the largest of theirs. The aggregator's release adds
    to the leaf of the same user, and costs others only itself. Ensembles that were tried before, to choose the number of leaves, add up user by user.

    Args:
        leaves: one a leaf.
        aggregator: of an over-arch that federated learning has trained on users' labels; ``None`` for any other way to join.
        tried: the losses of ensembles whose results were looked at on the same users.
        private: of the leaf of private columns, which users of all leaves train beside their own.
        again: trainings of the leaves after the first, one release a leaf, and what users said between them. Within one, nobody is in two; a user who has moved is in one leaf's first
            release and in another's second, and both count.

    Raises:
        ConfigError: a user is in two leaves, or the trainings promise different things.
    """
    for group in (leaves, *again):
        _prove_disjoint(group)
    trained = [*leaves, *(one for group in again for one in group), *([] if private is None else [private])]
    own = [*trained, *([] if aggregator is None else [aggregator])]
    every = [*own, *(release for loss in tried for release in loss.releases)]
    _require_one_promise(every)
    return EnsembleLoss(
        leaves=_largest(trained),
        aggregator=0.0 if aggregator is None else _largest([aggregator]),
        total=_largest(every),
        delta=max((one.delta for one in own), default=0.0),
        releases=tuple(every),
    )


def add_losses(chosen: EnsembleLoss, tried: Sequence[EnsembleLoss]) -> EnsembleLoss:
    """Return the loss of an ensemble that was chosen among several, whose trainings looked at the same users: they add up, user by user.

    Args:
        chosen: of the ensemble that was chosen.
        tried: of the others.
    """
    every = tuple(release for loss in (chosen, *tried) for release in loss.releases)
    _require_one_promise(every)
    return replace(chosen, total=_largest(every), releases=every)


def share_epsilon(epsilon: float, trainings: int, total: Callable[[float], float], besides: float = 0.0) -> float:
    """Return the epsilon that each of several trainings on the same users may have, so that all together keep one: never above it, and at most 0.1 % below.

    By basic composition it is ``epsilon / trainings`` at least; composed releases cost less than their sum, so it is more. It is less where something else costs too, such as users' answers.

    Args:
        epsilon: of all together.
        trainings: how many a user is in at most.
        total: epsilon of each training -> epsilon of all together; it grows.
        besides: epsilon of what ``total`` counts besides the trainings.

    Raises:
        ConfigError: what counts besides the trainings leaves them next to nothing.
    """
    if trainings < 2 and not besides:
        return epsilon
    low, high = epsilon / trainings, epsilon
    under, over = total(low), total(high)
    if under > epsilon and not besides:  # the accountant's own rounding: the sum itself is exact
        return low * epsilon / under * (1 - _CLOSE)
    while under > epsilon:
        low, high, over = low / 2, low, under
        if low < epsilon / (64 * trainings):
            raise ConfigError(
                f"epsilon={epsilon:g} for {trainings} trainings, beside users' answers of epsilon {besides:g} together",
                where="Search.epsilon",
                remedy="give answers a smaller epsilon, use a smaller recluster, or a larger epsilon of the mechanism",
            )
        under = total(low)
    for _ in range(40):
        if under >= epsilon * (1 - _CLOSE):
            break
        target = epsilon * (1 - _CLOSE / 2)
        middle = low + (high - low) * min(0.95, max(0.05, (target - under) / (over - under)))
        found = total(middle)
        low, under, high, over = (middle, found, high, over) if found <= epsilon else (low, under, middle, found)
    return low


def _prove_disjoint(leaves: Sequence[EnsembleRelease]) -> None:
    def curve(one: EnsembleRelease) -> Any:
        parts = [n * event.count * renyi_curve(event, one.adversary, one.neighbours) for event, n in one.events]
        return np.sum(parts, axis=0)

    nothing = np.zeros(len(ORDERS))
    parallel([(nothing if one.clear else curve(one), one.users) for one in leaves])


def _require_one_promise(releases: Sequence[EnsembleRelease]) -> None:
    terms = {(one.delta, one.accountant, one.adversary, one.neighbours) for one in releases if not one.clear}
    if len(terms) > 1:
        raise ConfigError(
            f"the trainings promise different things: {', '.join(map(str, sorted(terms)))}",
            where="account_ensemble",
            remedy="train all of them with one mechanism, delta and accountant",
        )


def _largest(releases: Sequence[EnsembleRelease]) -> float:
    """Return the epsilon of the user who is in the costliest of these releases together."""
    places: dict[str, list[int]] = {}
    for place, one in enumerate(releases):
        for user in set(one.users):
            places.setdefault(user, []).append(place)
    found = 0.0
    for group in {tuple(own) for own in places.values()}:
        mine = [releases[place] for place in group]
        if any(one.clear for one in mine):
            return math.inf
        events: Counter[Event] = Counter()
        for one in mine:
            for event, count in one.events:
                events[event] += count
        first = mine[0]
        terms = (first.delta, first.accountant, first.adversary, first.neighbours)
        found = max(found, epsilon_of(tuple(events.items()), *terms, _ERROR))
    return found
