"""A cohort: many islands as columns, for tasks that work on all of them at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .errors import ConfigError
from .shelf import Shelf
from .tree import Tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from .party import Parties

__all__ = ["Cohort", "Community", "Population"]


class Population(Protocol):
    """Where the islands' data is: a federated data set. ``atoll.data.Islands`` is one."""

    def __len__(self) -> int: ...

    @property
    def names(self) -> Sequence[str]:
        """The clients' names."""
        ...

    def shard(self, i: int) -> Any:
        """The data of client ``i``."""
        ...


class Community:
    """A population given as a plain list of data, one item a client.

    Args:
        data: the clients' data, or a dict name -> data.
        others: data of further parties, by name.
    """

    def __init__(self, data: Sequence[Any] | dict[str, Any], others: dict[str, Any] | None = None) -> None:
        self.names: Sequence[str] = list(data) if isinstance(data, dict) else [f"client-{i}" for i in range(len(data))]
        self._data = list(data.values()) if isinstance(data, dict) else list(data)
        self.others = others or {}

    def __len__(self) -> int:
        return len(self._data)

    def shard(self, i: int) -> Any:
        """The data of client ``i``."""
        return self._data[i]


class Cohort:
    """The islands of one request, as columns.

    Attributes:
        parties: who, in cohort order.
        keys: one random key each, shape ``(clients,)``; equals ``island.rng.key``.
        population: the federated data set, for gathering many shards at once.
    """

    def __init__(
        self,
        parties: Parties,
        keys: NDArray[np.uint64],
        population: Population,
        shelf: Shelf | None = None,
    ) -> None:
        if len(keys) != len(parties):
            raise ConfigError(f"{len(keys)} keys for {len(parties)} parties", remedy="give one key a party")
        self.parties = parties
        self.keys = keys
        self.population = population
        self._shelf = shelf

    def __len__(self) -> int:
        return len(self.parties)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions in the population, shape ``(clients,)``."""
        return self.parties.positions

    def part(self, places: NDArray[np.int64]) -> Cohort:
        """Some of its clients, by their places in it."""
        return Cohort(self.parties[places], self.keys[places], self.population, self._shelf)

    def shard(self, i: int) -> Any:
        """The data of the ``i``-th client of the cohort."""
        return self.population.shard(int(self.positions[i]))

    def state(self, i: int) -> Tree:
        """The private state of the ``i``-th client, ``None`` before its first."""
        return None if self._shelf is None else self._shelf.get(int(self.positions[i]))

    @property
    def stateless(self) -> bool:
        """Whether none of the clients has a private state yet."""
        return self._shelf is None or not self._shelf.knows(self.positions)

    def states(self, places: NDArray[np.int64] | None = None, *, fresh: Tree = None) -> Tree:
        """The private states of a block of clients, stacked: leaves with a leading client axis, gathered by one indexing operation each.

        Args:
            places: which clients of the cohort; by default all.
            fresh: the state of a client before its first; of the same form (structure, dtypes, shapes) as a kept one.

        Returns:
            The stacked states, copies. ``None`` when they cannot be stacked, because they differ in form or a client has none and there is no
            ``fresh``: then ask for each by ``state``.
        """
        positions = self.positions if places is None else self.positions[places]
        return (Shelf() if self._shelf is None else self._shelf).gather(positions, fresh)
