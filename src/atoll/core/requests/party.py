"""Parties: the participants, by name, role and position.

A ``Roster`` lists all parties; a ``Parties`` is a view of some of them: an array of positions, so that a million registered clients take a
few megabytes and a cohort of a thousand is a thousand integers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra.rng import hash_names, name_order
from ..errors import ConfigError, nearest

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Names", "Parties", "Party", "Roster", "among"]


def among(positions: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which positions are in ``others``: ``numpy.isin``, at a third of its cost for a round's few hundred."""
    if not len(others):
        return np.zeros(len(positions), dtype=bool)
    known = np.sort(others)
    places = np.searchsorted(known, positions)
    places[places == len(known)] = 0
    return np.asarray(known[places] == positions)


@dataclass(frozen=True)
class Party:
    """One participant.

    Attributes:
        name: a name that is unique in the federation.
        role: client, edge, guest, host, key-holder, second-server, enclave, ...
        position: index in the roster.
    """

    name: str
    role: str
    position: int


class Names(Sequence[str]):
    """Names ``prefix-0 ... prefix-(n-1)``, made on access."""

    def __init__(self, n: int, prefix: str = "client") -> None:
        self.n = n
        self.prefix = prefix

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[j] for j in range(*i.indices(self.n))]
        if not -self.n <= i < self.n:
            raise IndexError(i)
        return f"{self.prefix}-{int(i) % self.n}"

    def at(self, positions: NDArray[np.int64]) -> list[str]:
        """The names at these positions, of which none is negative."""
        return [f"{self.prefix}-{i}" for i in positions.tolist()]

    def order(self) -> NDArray[np.int64]:
        """The positions in the order of the names: that of their numbers."""
        return np.arange(self.n, dtype=np.int64)

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """The position of a name."""
        tail = str(value).removeprefix(f"{self.prefix}-")
        found = int(tail) if tail.isascii() and tail.isdecimal() and len(tail) < 20 else self.n
        if start <= found < min(self.n, self.n if stop is None else stop) and self[found] == value:
            return found
        raise ValueError(f"{value!r} is not a name")


class _Listed(list[str]):
    """Given names, with a table of their positions."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(str(name) for name in names)
        self._at = {name: i for i, name in enumerate(self)}
        if len(self._at) < len(self):
            twice = next(name for i, name in enumerate(self) if self._at[name] != i)
            raise ConfigError(f"two parties are named {twice!r}", remedy="give each party a unique name")

    def at(self, positions: NDArray[np.int64]) -> list[str]:
        """The names at these positions."""
        return [self[i] for i in positions.tolist()]

    def index(self, value: Any, start: Any = 0, stop: Any = None) -> int:
        """The position of a name."""
        if value not in self._at:
            raise ValueError(f"{value!r} is not a name")
        return self._at[value]


class Roster:
    """All parties of a federation.

    Args:
        names: the population's names, in order; an integer makes ``client-0 ...``. A sequence with a method ``at(positions)`` gives many names at once.
        role: the population's role.
        others: further parties, a dict of roles by name, placed after the population.
    """

    def __init__(
        self, names: Sequence[str] | int, role: str = "client", others: Mapping[str, str] | None = None
    ) -> None:
        self.names: Sequence[str] = Names(names) if isinstance(names, int) else names
        if isinstance(self.names, list | tuple):
            self.names = _Listed(self.names)
        self.role = role
        self.others = dict(others or {})
        self._other_names = list(self.others)
        for other in self._other_names:
            if self._find(other) is not None:
                raise ConfigError(
                    f"a client and another party are both named {other!r}", remedy="give each party a unique name"
                )
        self._keys = np.zeros(0, dtype=np.uint64)
        self._known = np.zeros(0, dtype=bool)
        self._order: NDArray[np.int64] | None = None
        self._listed = True
        self._ranks = np.zeros(0, dtype=np.int64)

    def __getstate__(self) -> dict[str, Any]:
        """Drop the cached hashes and the order: each process caches its own."""
        none = np.zeros(0, dtype=np.int64)
        own = {"_keys": np.zeros(0, dtype=np.uint64), "_known": np.zeros(0, dtype=bool), "_order": None, "_ranks": none}
        return {**self.__dict__, **own}

    def __len__(self) -> int:
        return len(self.names) + len(self._other_names)

    def name(self, position: int) -> str:
        """The name at a position."""
        n = len(self.names)
        return str(self.names[position]) if position < n else self._other_names[position - n]

    def names_of(self, positions: NDArray[np.int64]) -> list[str]:
        """The names at these positions."""
        n, names = len(self.names), self.names
        many: Callable[[NDArray[np.int64]], list[str]] | None = getattr(names, "at", None)
        if many is not None and (not len(positions) or (positions.min() >= 0 and positions.max() < n)):
            return many(positions)
        return [self.name(i) for i in positions.tolist()]

    def party(self, position: int) -> Party:
        """The party at a position."""
        position = int(position)
        n = len(self.names)
        role = self.role if position < n else self.others[self._other_names[position - n]]
        return Party(self.name(position), role, position)

    def position(self, name: str) -> int:
        """The position of a name.

        Raises:
            ConfigError: no party has this name.
        """
        if name in self.others:
            return len(self.names) + self._other_names.index(name)
        found = self._find(name)
        if found is not None:
            return found
        known = [*self._other_names, *[str(n) for n in self.names[:1000]]]
        raise ConfigError(
            f"no party is named {name!r}.{nearest(name, known)}", remedy="use a name of the federation's roster"
        )

    def _find(self, name: str) -> int | None:
        try:
            return int(self.names.index(name))
        except ValueError:
            return None

    def keys(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        """The 64-bit hash of each name, cached; the last step of a random path."""
        if len(self._keys) < len(self):
            self._keys = np.zeros(len(self), dtype=np.uint64)
            self._known = np.zeros(len(self), dtype=bool)
        missing = positions[~self._known[positions]]
        if len(missing):
            self._keys[missing] = hash_names(self.names_of(missing))
            self._known[missing] = True
        return self._keys[positions]

    def order(self) -> NDArray[np.int64]:
        """The population's positions in the order of the names, see `name_order`; sorted once."""
        if self._order is None:
            self._order = name_order(self.names)
            self._listed = bool((self._order[1:] > self._order[:-1]).all())
        return self._order

    def ranks(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The place of each of these parties in the order of the names. What is drawn follows it, so that it does not matter in which order somebody listed clients."""
        order = self.order()
        if self._listed:
            return positions
        if not len(self._ranks):
            self._ranks = np.arange(len(self), dtype=np.int64)
            self._ranks[order] = np.arange(len(order))
        return self._ranks[positions]

    def all(self) -> Parties:
        """The whole population, without the other parties."""
        return Parties(self, np.arange(len(self.names), dtype=np.int64))

    def where(self, role: str) -> Parties:
        """All parties with a role."""
        n = len(self.names)
        rest = [n + i for i, name in enumerate(self._other_names) if self.others[name] == role]
        own = np.arange(n if role == self.role else 0, dtype=np.int64)
        return Parties(self, np.concatenate([own, np.array(rest, dtype=np.int64)]))


class Parties(Sequence[Party]):
    """Some parties of a roster, in an order.

    Args:
        roster: the roster.
        positions: positions of the parties, shape ``(n,)``.
    """

    __slots__ = ("positions", "roster")

    def __init__(self, roster: Roster, positions: NDArray[np.int64]) -> None:
        self.roster = roster
        self.positions = positions

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, int | np.integer):
            return self.roster.party(int(self.positions[i]))
        return Parties(self.roster, self.positions[i])

    def __iter__(self) -> Iterator[Party]:
        return (self.roster.party(int(p)) for p in self.positions)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Parties) and np.array_equal(self.positions, other.positions)

    def __hash__(self) -> int:
        return hash(self.positions.tobytes())

    def __repr__(self) -> str:
        shown = ", ".join(self.names[:3])
        return f"Parties({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"

    @property
    def names(self) -> list[str]:
        """The names, in order."""
        return self.roster.names_of(self.positions)

    def keys(self) -> NDArray[np.uint64]:
        """The hash of each name, shape ``(n,)``."""
        return self.roster.keys(self.positions)

    def without(self, others: Parties) -> Parties:
        """The parties that are not in ``others``, in their order."""
        if np.array_equal(self.positions, others.positions):  # the common case: all parties replied
            return Parties(self.roster, self.positions[:0])
        return Parties(self.roster, self.positions[~among(self.positions, others.positions)])

    def by_name(self) -> Parties:
        """The same parties in the order of their names; those beside the population come last. Rules that draw among parties draw among these."""
        ranks = self.roster.ranks(self.positions)
        if bool((ranks[1:] > ranks[:-1]).all()):
            return self
        return Parties(self.roster, self.positions[np.argsort(ranks, kind="stable")])

    def named(self, *names: str) -> Parties:
        """The parties with these names."""
        return Parties(self.roster, np.array([self.roster.position(n) for n in names], dtype=np.int64))
