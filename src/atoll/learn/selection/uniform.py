"""Uniform selection, all clients, groups that take turns, and a fixed schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Capability, Need
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.requests.party import Parties
from atoll.core.validation import whole_rows

from ..capabilities import BLIND, SAMPLE, STATELESS
from .base import Candidates, Selection, places_found

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CyclicGroups", "Everyone", "Once", "Schedule", "Uniform"]


@dataclass(frozen=True)
class Uniform(Selection):
    """``count`` clients uniformly at random, without replacement (McMahan et al. 2017, Algorithm 1).

    Attributes:
        count: clients per round; a fraction in (0, 1) means ``ceil(fraction * population)``, and 0.0 means exactly one.

    The cost of a draw does not grow with the population.
    """

    count: int | float = 10

    def __post_init__(self) -> None:
        if isinstance(self.count, float) and not 0.0 <= self.count <= 1.0:
            raise ConfigError(
                f"count={self.count} is not a fraction", remedy="use a fraction in [0, 1] or a whole number"
            )
        if not isinstance(self.count, float) and self.count < 1:
            raise ConfigError(f"count={self.count} clients", remedy="use at least 1")

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, plus a uniform sample if the class draws as this one does."""
        return super().offers | {SAMPLE, BLIND} if self._draws else super().offers

    @property
    def _draws(self) -> bool:
        return type(self).invite is Uniform.invite and not self.picks

    def distinct(self, population: int) -> int | None:
        """Return the cohort's size, if the class draws as this one does."""
        return self.cohort_size(population) if self._draws else None

    def cohort_size(self, population: int) -> int:
        """Return ``count``, or the fraction of the population rounded up; at most the population."""
        if isinstance(self.count, float):
            return min(population, max(1, math.ceil(self.count * population - 1e-9)))
        return min(population, self.count)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Draw ``count`` distinct indices."""
        del state
        population = len(candidates.parties)
        return candidates.rng.generator().choice(population, size=min(count, population), replace=False, shuffle=True)


@dataclass(frozen=True)
class Everyone(Selection):
    """Invites all clients in every round, in order, as in cross-silo federations."""

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a blind selection if the class invites as this one does."""
        return super().offers | ({BLIND} if type(self).invite is Everyone.invite else frozenset())

    def distinct(self, population: int) -> int | None:
        """Return the population, if the class invites as this one does."""
        return population if type(self).invite is Everyone.invite else None

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return all candidates, whatever the count."""
        del count, state
        return np.arange(len(candidates.parties))


@dataclass(frozen=True)
class _Turns(Selection):
    """Base class of rules that let clients take turns in an order that is drawn once.

    Attributes:
        count: clients per round; a fraction in (0, 1) means ``ceil(fraction * population)``.
        seed: of the order.
    """

    count: int | float = 10
    seed: int = 0
    purpose: ClassVar[str] = ""
    """Names the stream of the order."""

    def __post_init__(self) -> None:
        Uniform(self.count)  # the same settings

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a blind selection."""
        return super().offers | {BLIND}

    def init(self, parties: Parties) -> Tree:
        """Remember how many clients there are, so that turns do not depend on who is available."""
        return {"population": int(parties.positions.max(initial=0)) + 1}

    def order(self, population: int) -> NDArray[Any]:
        """Return the clients' places in the order of their names, in the order of their turns."""
        key = Rng.of(self.seed).child(self.purpose).key
        return np.random.Generator(np.random.PCG64(key)).permutation(population)

    def present(self, candidates: Candidates, turn: NDArray[Any], remedy: str) -> NDArray[Any]:
        """Return the available ones among the clients whose turn it is, given by their places in the order of names.

        Raises:
            QuorumError: none of them is available.
        """
        parties = candidates.parties
        found = places_found(parties.roster.ranks(parties.positions), np.sort(turn))
        if not len(found):
            raise QuorumError(
                "none of the clients whose turn it is is available", where=f"round {candidates.round}", remedy=remedy
            )
        return found


@dataclass(frozen=True)
class CyclicGroups(_Turns):
    """Groups of ``count`` clients take turns: a client is invited every ``g = floor(population / count)`` rounds, and never before.

    The groups are drawn once, from ``seed``, and stay the same. If ``count`` does not divide the population, some groups have one or more clients too many. Clients that
    are not available at their turn are left out until the next, so a round may have fewer than ``count``.

    Attributes:
        count: clients per round; a fraction in (0, 1) means ``ceil(fraction * population)``.
        seed: of the groups.
    """

    purpose: ClassVar[str] = "cyclic"

    def groups(self, population: int) -> int:
        """Return the number of groups."""
        return max(1, population // Uniform(self.count).cohort_size(population))

    def turns(self, population: int, rounds: int) -> tuple[int, int]:
        """Return ``ceil(rounds / g)`` and ``g``."""
        groups = self.groups(population)
        return -(-rounds // groups), groups

    def cohort_size(self, population: int) -> int:
        """Return the size of the largest group."""
        return -(-population // self.groups(population))

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the available clients of the group whose turn it is.

        Raises:
            QuorumError: none of them is available.
        """
        del count
        population = int(state["population"])
        groups = self.groups(population)
        turn = self.order(population)[(candidates.round - 1) % groups :: groups]
        return self.present(candidates, turn, "use more clients per round, or devices that are available more often")


@dataclass(frozen=True)
class Once(_Turns):
    """``count`` clients at a time, each once in the whole training: devices that never return.

    The order is drawn from ``seed``. Algorithms whose clients keep private state are refused: nothing would ever read it. A client that is not available
    at its turn is left out, and when all have had their turn, the training cannot go on.

    Attributes:
        count: clients per round; a fraction in (0, 1) means ``ceil(fraction * population)``.
        seed: of the order.
    """

    purpose: ClassVar[str] = "once"

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and clients that keep nothing."""
        instead = "a selection whose clients return, such as Uniform()"
        return (*super().needs, Need(STATELESS, "invites every client once and never again", instead))

    def turns(self, population: int, rounds: int) -> tuple[int, int]:
        """Return one round for each client."""
        del population
        return 1, rounds

    def cohort_size(self, population: int) -> int:
        """Return ``count``, or the fraction of the population rounded up; at most the population."""
        return Uniform(self.count).cohort_size(population)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the available clients whose turn it is.

        Raises:
            QuorumError: none of them is available, or all clients have had their turn.
        """
        del count
        population = int(state["population"])
        size = self.cohort_size(population)
        turn = self.order(population)[(candidates.round - 1) * size : candidates.round * size]
        remedy = f"train for at most {-(-population // size)} rounds, or invite fewer clients in a round"
        if not len(turn):
            raise QuorumError(
                f"all {population} clients have had their turn", where=f"round {candidates.round}", remedy=remedy
            )
        return self.present(candidates, turn, remedy)


@dataclass(frozen=True)
class Schedule(Selection):
    """A fixed schedule, one list of clients per round; it starts again when it ends.

    Attributes:
        rounds: positions of each round's clients among all clients of the federation. A client that is not available when a round starts is left
            out, and an edge invites only its own clients.
    """

    rounds: Sequence[Sequence[int]]

    @property
    def offers(self) -> frozenset[Capability]:
        """The base's capabilities, and a blind selection."""
        return super().offers | {BLIND}

    def __post_init__(self) -> None:
        remedy = "give a list of positions for every round, such as [[0, 1], [2]]"
        rounds = whole_rows("Schedule", "rounds", self.rounds, remedy)
        if not rounds or not all(rounds):
            raise ConfigError("the schedule has an empty round", remedy="name at least one client in every round")
        for number, row in enumerate(rounds, 1):
            if len(set(row)) < len(row):
                raise ConfigError(
                    f"round {number} of the schedule names a client twice", remedy="name every client of a round once"
                )

    def turns(self, population: int, rounds: int) -> tuple[int, int]:
        """Return them as the schedule has them."""
        del population
        last, seen, separation = dict[int, int](), dict[int, int](), rounds
        for number in range(rounds):
            for client in self.rounds[number % len(self.rounds)]:
                separation = min(separation, number - last.get(client, number - rounds))
                last[client], seen[client] = number, seen.get(client, 0) + 1
        return max(seen.values(), default=1), max(1, separation)

    def cohort_size(self, population: int) -> int:
        """Return the size of the largest round, at most the population."""
        return min(population, self._largest)

    @cached_property
    def _largest(self) -> int:
        return max(len(row) for row in self.rounds)

    def check(self, groups: Sequence[NDArray[np.int64]]) -> None:
        """Refuse clients that do not exist, and rounds that leave a server without clients."""
        population = sum(map(len, groups))
        group_of = np.empty(population, dtype=np.int64)
        for number, group in enumerate(groups):
            group_of[group] = number
        for number, row in enumerate(self.rounds, 1):
            wrong = next((k for k in row if not 0 <= k < population), None)
            if wrong is not None:
                raise ConfigError(
                    f"round {number} of the schedule names client {wrong} of {population}",
                    where="Training.selection",
                    remedy=f"use positions from 0 to {population - 1}",
                )
            left = np.setdiff1d(np.arange(len(groups)), group_of[np.asarray(row)])
            if len(left):
                raise CompositionError(
                    f"round {number} of the schedule names no client of group {left[0]}, although its server has this round too",
                    where="Training.selection",
                    remedy="name at least one client of every group in every round, or use topology=Star()",
                )

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the available clients of this round, in the schedule's order.

        Raises:
            QuorumError: none of them is available.
        """
        del count, state
        row = np.asarray(self.rounds[(candidates.round - 1) % len(self.rounds)], dtype=np.int64)
        found = places_found(candidates.parties.positions, row)
        if not len(found):
            raise QuorumError(
                f"none of the {len(row)} clients that the schedule names is available",
                where=f"round {candidates.round}",
                remedy="name more clients per round, or use devices that are available more often",
            )
        return found
