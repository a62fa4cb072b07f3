"""Selection by who has labels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability, Need
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.requests.party import Parties, among

from ..capabilities import BLIND, DRAW_ODDS, SAMPLE
from .base import Candidates, Seen, Selection

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .base import Inquiry

__all__ = ["WithLabels"]


_CHANGED = frozenset({SAMPLE, DRAW_ODDS, BLIND})


@dataclass(frozen=True)
class WithLabels(Selection):
    """Another rule, whose every cohort has clients with labels: if it invites too few, the last of the others give their places to random clients with labels.

    With ``least=1`` and a base that draws ``m`` of ``n`` clients uniformly, of which ``l`` have labels, a client with labels is invited with probability ``m/n + p0/l``, where
    ``p0`` is the chance of a cohort without any. The cohort is thus no uniform sample, and privacy is not amplified by it.

    Attributes:
        base: the rule.
        labelled: positions of the clients with labels among all clients; ``label_map(islands).positions``.
        least: clients with labels in a cohort.
    """

    base: Selection
    labelled: Sequence[int]
    least: int = 1

    def __post_init__(self) -> None:
        if not hasattr(self.base, "invite"):
            raise ConfigError(
                f"base={self.base!r}", where="WithLabels", remedy="give a rule, as in WithLabels(Uniform(10), [0, 3])"
            )
        if self.base.picks or self.base.random_size or self.base.repeats or self.base.drawn(1) is not None:
            raise ConfigError(
                f"{type(self.base).__name__} decides by chance or by replies who is in a round, so that no cohort can be completed",
                where="WithLabels",
                remedy="wrap a rule that invites a cohort, such as Uniform(10)",
            )
        if not len(self.labelled) or self.least < 1 or self.least > len(set(self.labelled)):
            raise ConfigError(
                f"least={self.least} of {len(set(self.labelled))} clients with labels",
                where="WithLabels",
                remedy="name the clients with labels, at least as many as a cohort must have",
            )

    @property
    def reports(self) -> Mapping[str, Any]:
        """Those of the base."""
        return self.base.reports

    @property
    def inquiry(self) -> Inquiry | None:
        """That of the base."""
        return self.base.inquiry

    @property
    def needs(self) -> tuple[Need, ...]:
        """Those of the base."""
        return self.base.needs

    @property
    def offers(self) -> frozenset[Capability]:
        """What the base offers, but for draws of known odds."""
        return self.base.offers - _CHANGED

    def distinct(self, population: int) -> int | None:
        """Return what the base says: places change hands, their number stays."""
        return self.base.distinct(population)

    def init(self, parties: Parties) -> Tree:
        """Return the base's memory."""
        return self.base.init(parties)

    def check(self, groups: Sequence[NDArray[np.int64]]) -> None:
        """Refuse clients that do not exist, and servers that have too few clients with labels."""
        self.base.check(groups)
        known = np.unique(np.asarray(self.labelled, dtype=np.int64))
        population = sum(map(len, groups))
        if known[0] < 0 or known[-1] >= population:
            raise ConfigError(
                f"client {int(known[-1] if known[0] >= 0 else known[0])} of {population} has labels",
                where="WithLabels.labelled",
                remedy=f"use positions from 0 to {population - 1}",
            )
        for number, group in enumerate(groups):
            held = int(among(group, known).sum())
            if held < self.least:
                raise CompositionError(
                    f"group {number} has {held} clients with labels, and every cohort must have {self.least}",
                    where="WithLabels",
                    remedy="give every server clients with labels, lower least, or use topology=Star()",
                )

    def cohort_size(self, population: int) -> int:
        """Return that of the base, or ``least`` if that is more."""
        return max(self.base.cohort_size(population), min(self.least, population))

    @property
    def most_asked(self) -> int | None:
        """Return that of the base."""
        return self.base.most_asked

    def turns(self, population: int, rounds: int) -> tuple[int, int]:
        """A client with labels may be invited in every round."""
        del population
        return rounds, 1

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return whom the base asks."""
        return self.base.survey(candidates, count, state)

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Let the base learn."""
        return self.base.heard(seen, state)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the base's cohort, completed.

        Raises:
            QuorumError: too few clients with labels are available.
        """
        chosen = np.asarray(self.base.invite(candidates, count, state), dtype=np.int64)
        known = among(candidates.parties.positions, np.asarray(self.labelled, dtype=np.int64))
        lacking = self.least - int(known[chosen].sum())
        if lacking <= 0:
            return chosen
        free = np.setdiff1d(np.flatnonzero(known), chosen)
        if len(free) < lacking:
            raise QuorumError(
                f"{int(known.sum())} clients with labels are available, and a cohort must have {self.least}",
                where=f"round {candidates.round}",
                remedy="lower least, or use devices that are available more often",
            )
        drawn = candidates.rng.child("labelled").generator().choice(free, size=lacking, replace=False)
        others = np.flatnonzero(~known[chosen])
        left = np.delete(chosen, others[max(0, len(others) - lacking) :])
        return np.concatenate([left, drawn])

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Let the base learn."""
        return self.base.accept(seen, state)
