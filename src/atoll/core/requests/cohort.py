"""A cohort: many islands as columns, for tasks that work on all of them at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..algebra import tree as T
from ..algebra.tree import Tree
from ..errors import ConfigError
from ..persistence.state_table import StateTable

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from ..algebra.aggregate import Totals
    from .island import Island
    from .party import Parties

__all__ = ["Cohort", "Community", "Population", "TotalsBlock"]


class Population(Protocol):
    """The location of the islands' data: a federated data set. ``atoll.data.Islands`` is one."""

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
        data: the clients' data, or a dict of them by name.
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

    def subset(self, clients: Sequence[int]) -> Community:
        """The population of some clients, by position, beside the same further parties."""
        return Community({str(self.names[int(i)]): self._data[int(i)] for i in clients}, self.others)


@dataclass(frozen=True)
class TotalsBlock:
    """The totals of some clients in the wrapped request.

    Attributes:
        positions: places in the cohort, ``(clients,)``.
        totals: named totals, encoded by the uplink's stages; values and weights have a leading client axis.
    """

    positions: NDArray[np.int64]
    totals: Totals

    def row(self, i: int) -> Totals:
        """The totals of one client."""
        return {
            name: replace(total, value=T.map(lambda leaf: leaf[i], total.value), weight=float(total.weight[i]))
            for name, total in self.totals.items()
        }


class Cohort:
    """The islands of one request, as columns.

    Attributes:
        parties: the parties, in cohort order.
        keys: one random key each, shape ``(clients,)``; equals ``island.rng.key``.
        population: the federated data set, for gathering many shards at once.
    """

    def __init__(
        self,
        parties: Parties,
        keys: NDArray[np.uint64],
        population: Population,
        table: StateTable | None = None,
    ) -> None:
        if len(keys) != len(parties):
            raise ConfigError(f"{len(keys)} keys for {len(parties)} parties", remedy="give one key a party")
        self.parties = parties
        self.keys = keys
        self.population = population
        self._table = table

    def __len__(self) -> int:
        return len(self.parties)

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions in the population, shape ``(clients,)``."""
        return self.parties.positions

    def part(self, places: NDArray[np.int64]) -> Cohort:
        """Some clients of the cohort, by their places in it."""
        return Cohort(self.parties[places], self.keys[places], self.population, self._table)

    def shard(self, i: int) -> Any:
        """The data of the ``i``-th party of the cohort: a client's, or those of a further party."""
        position = int(self.positions[i])
        if position < len(self.population):
            return self.population.shard(position)
        return getattr(self.population, "others", {}).get(self.parties.roster.name(position))

    def totals(self, among: int | None = None) -> Iterator[TotalsBlock]:
        """Run the program's own task in blocks, and yield what ``Island.totals`` returns for each client, with a leading client axis.

        Use it in the ``many`` of a reducer's half. A client whose reply is not finite is in no block, and the federation keeps it out of the sum.

        Args:
            among: see ``Island.totals``: the least number that holds for all of them.

        Raises:
            ConfigError: this request wraps no other, or its totals were requested before.
        """
        raise ConfigError(
            "this request wraps no other",
            remedy="send the half with `reduction.fold(half)` or `reduction.exchange(..., wraps=True)`",
        )

    def island(self, i: int) -> Island:
        """The view of the ``i``-th client, for a ``many`` that declares it (``Task.islands``) or is of a reducer's half: its letters, secret, private state and ledger.

        Raises:
            ConfigError: the task does not declare it.
        """
        raise ConfigError(
            "only the half of a reducer, or a task with islands=True, sees islands in its `many`",
            remedy="use `shard`, `state`, `keys`",
        )

    def state(self, i: int) -> Tree:
        """The private state of the ``i``-th client, ``None`` before it has one."""
        return None if self._table is None else self._table.get(int(self.positions[i]))

    @property
    def stateless(self) -> bool:
        """Whether none of the clients has a private state yet."""
        return self._table is None or not self._table.knows(self.positions)

    def states(self, places: NDArray[np.int64] | None = None, *, fresh: Tree = None) -> Tree:
        """The private states of a block of clients, stacked: leaves with a leading client axis, each gathered by one indexing operation.

        Args:
            places: clients of the cohort; by default all.
            fresh: the state of a client that has none yet, in the form (structure, dtypes, shapes) of a kept one.

        Returns:
            The stacked states, copied. ``None`` if they cannot be stacked, because their forms differ, or because a client has no state and there is no
            ``fresh``: then get each with ``state``.
        """
        positions = self.positions if places is None else self.positions[places]
        return (StateTable() if self._table is None else self._table).gather(positions, fresh)
