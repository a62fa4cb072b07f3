"""The agreement of one masked sum: who takes part, who holds whose shares, and how numbers become words; every party gets it, and checks it."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from atoll.core import message as M
from atoll.core.algebra.tree import Tree
from atoll.core.errors import AtollError, ConfigError, PolicyError

from ..words import FixedPoint, WordLayout

if TYPE_CHECKING:
    from collections.abc import Callable

    from atoll.core.requests.island import Island

__all__ = ["Agreement", "in_one_piece", "known_form", "neighbours_of", "rings", "use_of"]


# ------------------------------------------------------------------ the graph of a masked sum
#
# The graph of a masked sum: whose masks cancel with whose, and who holds shares of whose seeds (Bell et al. 2020).
# In a complete graph every two parties share a mask (Bonawitz et al. 2017). In a sparse one a party has ``degree`` neighbours on a ring of random order, half of them on
# each side: a Harary graph, which stays in one piece under random loss. The order follows from a public number, so every party can check that
# the graph is the one that was announced.


@functools.lru_cache(maxsize=64)
def rings(parties: int, degree: int, order: int) -> tuple[tuple[int, ...], ...]:
    """The neighbours of each party, ascending.

    Args:
        parties: number of parties, which are named by their places.
        degree: neighbours of each, at least; an odd one counts as the next even one. With ``parties - 1`` or more the graph is complete.
        order: public number that the random order follows from.
    """
    if degree >= parties - 1:
        return tuple(tuple(j for j in range(parties) if j != i) for i in range(parties))

    def rank(i: int) -> bytes:
        return hashlib.sha256(b"atoll graph %d %d" % (order, i)).digest()

    ring = sorted(range(parties), key=rank)
    half = -(-degree // 2)
    found: list[tuple[int, ...]] = [()] * parties
    for place, i in enumerate(ring):
        near = {ring[(place + step) % parties] for step in range(-half, half + 1)} - {i}
        found[i] = tuple(sorted(near))
    return tuple(found)


def neighbours_of(i: int, parties: int, degree: int, order: int) -> tuple[int, ...]:
    """The neighbours of one party; see `rings`."""
    return rings(parties, degree, order)[i]


def in_one_piece(kept: frozenset[int], graph: tuple[tuple[int, ...], ...]) -> bool:
    """Whether every two parties that are kept are joined by a path of such parties: otherwise the sum of each piece can be told apart."""
    if not kept:
        return False
    reached, edge = set[int](), [next(iter(kept))]
    while edge:
        i = edge.pop()
        if i not in reached:
            reached.add(i)
            edge += [j for j in graph[i] if j in kept and j not in reached]
    return len(reached) == len(kept)


# ------------------------------------------------------------------ the agreement of one masked sum
#
# The agreement of one masked sum: who takes part, who holds whose shares, and how numbers become words; every party gets it, and checks it.


def use_of(part: int) -> str:
    """The name of the seed of a part of a party's noise."""
    return f"part {part}"


@dataclass(frozen=True)
class Agreement:
    """What all parties of one masked sum know.

    Attributes:
        names: the cohort, in order; parties are numbered by their places in it.
        degree: neighbours of each.
        order: public number that the graph follows from.
        threshold: shares that open a seed.
        least: smallest number of parties in the sum.
        active: whether the parties vote on who is in the sum before they open it.
        codec: how numbers become words.
        bound: largest magnitude of an update's values, as the uplink promises it.
        signs: whether votes are -1, 0 and 1; see `WordLayout`.
        parts: parts of noise that can be taken back, each with a seed that is shared too; see `atoll.secure.noise.ExcessNoise`.
        most: the replies up to which they are.
    """

    names: tuple[str, ...]
    degree: int
    order: int
    threshold: int
    least: int
    active: bool
    codec: FixedPoint
    bound: float | None = None
    signs: bool = True
    parts: int = 0
    most: int = 0

    def message(self) -> Tree:
        """The agreement as a message."""
        own = {
            name: getattr(self, name) for name in ("degree", "order", "threshold", "least", "active", "bound", "signs")
        }
        if self.parts:
            own |= {"parts": self.parts, "most": self.most}
        codec = {part.name: getattr(self.codec, part.name) for part in fields(self.codec)}
        return {**own, "names": list(self.names), "codec": codec}

    @classmethod
    def of(cls, message: Any) -> Agreement:
        """The inverse of `message`.

        Raises:
            PolicyError: it is not an agreement, or its numbers make no sense.
        """
        try:
            made = cls(**{**message, "names": tuple(message["names"]), "codec": FixedPoint(**message["codec"])})
            sound = (
                made.least >= 2
                and 0 <= made.parts <= max(0, made.most - 1)
                and 1 <= made.threshold <= made.degree + 1 <= len(set(made.names)) == len(made.names)
            )
        except (TypeError, KeyError, ValueError, AtollError) as error:
            raise PolicyError(f"an agreement that cannot be read: {error}", where="masked sum") from error
        if made.active and made.degree < len(made.names) - 1:
            # Whoever orders the names chooses each party's neighbours: a lying server makes all of them its own.
            raise PolicyError(
                f"{made.degree} neighbours of {len(made.names)} parties against a server that may lie",
                where="masked sum",
                remedy="let all parties be neighbours, or, in a simulation, assume server='honest'",
            )
        if not sound or (made.active and 3 * made.threshold <= 2 * (made.degree + 1)):
            raise PolicyError(
                f"a masked sum of {len(made.names)} parties, at least {made.least}, with {made.degree} neighbours and a threshold of {made.threshold}",
                where="masked sum",
                remedy="use a threshold of at most the holders of a seed, and of more than two thirds of them against an active server",
            )
        return made

    @property
    def uses(self) -> tuple[str, ...]:
        """The seeds that each party shares among its holders, in order: of its pairs' masks, of its own mask, and of parts of its noise."""
        return ("key", "own", *(use_of(part) for part in range(1, self.parts + 1)))

    def excess(self, kept: int) -> str | None:
        """The seed of each party's noise that a sum of so many parties does not need; ``None`` if it needs all of the noise."""
        first = max(1, self.most - kept + 1)
        return use_of(first) if first <= self.parts else None

    def layout(self, form: Tree) -> WordLayout:
        """The layout of totals of a form."""
        return WordLayout(form, self.codec, len(self.names), self.bound, signs=self.signs)

    def known_layout(self, form: bytes) -> WordLayout:
        """The layout of an encoded form; those of recent rounds are kept, for a simulation that has many short ones."""
        return _layout(form, self.codec, len(self.names), self.bound, self.signs)

    @property
    def graph(self) -> tuple[tuple[int, ...], ...]:
        """The neighbours of each party."""
        return rings(len(self.names), self.degree, self.order)

    def place(self, name: str) -> int:
        """A party's number.

        Raises:
            ConfigError: it is not in the cohort.
        """
        try:
            return self._places[name]
        except KeyError:
            raise ConfigError(f"{name!r} is not in the cohort of this masked sum") from None

    @functools.cached_property
    def _places(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def holders(self, i: int) -> tuple[int, ...]:
        """The parties that hold shares of party ``i``'s seeds, ascending: its neighbours and itself."""
        return tuple(sorted({*self.graph[i], i}))

    @functools.cached_property
    def fingerprint(self) -> bytes:
        """A hash of the agreement, 32 bytes."""
        return bytes.fromhex(M.fingerprint(self.message()))

    def context(self, asked: str, layout: bytes) -> bytes:
        """What masks are bound to: the agreement, the program's request (its task, message and round parameters) and the layout of the words.

        Parties that were sent different models, or another cohort, derive masks that do not cancel, so the server gets noise (against Pasquini et al. 2022).

        Args:
            asked: fingerprint of the program's request, see ``Island.asked``.
            layout: fingerprint of the layout.
        """
        return hashlib.sha256(b"atoll masks" + self.fingerprint + bytes.fromhex(asked) + layout).digest()

    def require_active(self, island: Island) -> None:
        """Refuse to trust the server on its own word: whoever says that it is honest may open two sets, without votes and with half of the shares.

        Raises:
            PolicyError: a server of another organisation says that the parties trust it.
        """
        if island.remote and not self.active:
            raise PolicyError(
                "a masked sum that trusts the server, between organisations",
                where="masked sum",
                remedy="use server='active', or leave it out",
            )

    def require_set(self, kept: set[int], lost: set[int], me: int, organisation: Callable[[str], str] = str) -> None:
        """Refuse to open a sum whose set of parties would reveal a sum of a few.

        Args:
            kept: places of the parties in the sum.
            lost: places of those that were lost.
            me: the place of the party that is asked.
            organisation: whose key a party has, see ``Island.organisation``: the least sum counts organisations.

        Raises:
            PolicyError: the sum has too few parties, is in several pieces, is not mine, or a party is both in it and lost.
        """
        places = set(range(len(self.names)))
        if kept & lost or me not in kept or not (kept | lost) <= places:
            raise PolicyError(
                f"a sum of {len(kept)} parties that has lost {len(lost)}, {len(kept & lost)} of them its own",
                where="masked sum",
                remedy="look at the server: it asks for seeds that no sum needs",
            )
        organisations = len({organisation(self.names[i]) for i in kept})
        if len(kept) < max(self.least, self.threshold) or organisations < self.least:
            shown = f" of {organisations} organisations" if organisations < len(kept) else ""
            raise PolicyError(
                f"a sum of {len(kept)} parties{shown}, fewer than {max(self.least, self.threshold)}",
                where="masked sum",
                remedy="invite more parties, or agree on a smaller least number",
            )
        if not in_one_piece(frozenset(kept), self.graph):
            raise PolicyError(
                f"the {len(kept)} parties of the sum are in several pieces of the graph, and the sum of each could be told",
                where="masked sum",
                remedy="use more neighbours",
            )


@functools.lru_cache(maxsize=64)
def _layout(form: bytes, codec: FixedPoint, parties: int, bound: float | None, signs: bool) -> WordLayout:
    return WordLayout(known_form(form), codec, parties, bound, signs=signs)


@functools.lru_cache(maxsize=64)
def known_form(encoded: bytes) -> Tree:
    """A form of totals from its encoding; those of recent rounds are kept."""
    return M.decode(encoded)
