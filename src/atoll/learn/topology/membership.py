"""Nodes that join and leave."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.validation import pairs

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Membership"]


@dataclass(frozen=True)
class Membership:
    """A schedule of members. The graph of a round has its members, in the order of their positions.

    A node that joins starts from the state that a neighbour sends; it keeps nothing from earlier.

    Attributes:
        joins: ``(node, round)``: the node is absent before this round.
        leaves: ``(node, round)``: the node is absent from this round on.
    """

    joins: tuple[tuple[int, int], ...] = ()
    leaves: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("joins", "leaves"):
            found = pairs("Membership", name, getattr(self, name))
            object.__setattr__(self, name, found)
            if any(node < 0 or number < 1 for node, number in found):
                raise ConfigError(
                    f"{name}={found}", where="Membership", remedy="give (node, round) with nodes from 0, rounds from 1"
                )
        for node in {node for node, _ in (*self.joins, *self.leaves)}:
            moves = self._moves(node)
            if any(a[0] == b[0] or a[1] == b[1] for a, b in pairwise(moves)):
                raise ConfigError(
                    f"node {node} moves at {moves}", where="Membership", remedy="let it join and leave alternately"
                )

    def _moves(self, node: int) -> list[tuple[int, bool]]:
        """Return ``(round, whether the node is present from then on)``, in order."""
        came = [(number, True) for i, number in self.joins if i == node]
        return sorted(came + [(number, False) for i, number in self.leaves if i == node])

    def at(self, number: int, n: int) -> NDArray[np.int64]:
        """Return the positions of the members of a round, sorted."""
        return np.array([i for i in range(n) if self._there(i, number)], dtype=np.int64)

    def joined(self, number: int, n: int) -> NDArray[np.int64]:
        """Return the positions of nodes in their first round after an absence; empty in round 1."""
        if number == 1:
            return np.zeros(0, dtype=np.int64)
        return np.setdiff1d(self.at(number, n), self.at(number - 1, n))

    def changes(self) -> list[int]:
        """Return the rounds in which a node joins or leaves, and round 1."""
        return sorted({1, *(r for _, r in (*self.joins, *self.leaves))})

    def check(self, n: int) -> None:
        """Refuse a schedule of unknown nodes, or one with a round in which no member of the round before stays to welcome others.

        Raises:
            ConfigError: the schedule is impossible.
        """
        strange = [node for node, _ in (*self.joins, *self.leaves) if node >= n]
        if strange:
            raise ConfigError(f"node {strange[0]} of {n}", where="Membership", remedy=f"use nodes 0 to {n - 1}")
        for number in self.changes():
            staying = np.setdiff1d(self.at(number, n), self.joined(number, n))
            if not len(staying):
                raise ConfigError(
                    f"in round {number}, no node from the round before is present",
                    where="Membership",
                    remedy="let some node stay",
                )

    def _there(self, node: int, number: int) -> bool:
        moves = self._moves(node)
        before = [there for r, there in moves if r <= number]
        return before[-1] if before else not moves or not moves[0][1]
