"""Groups of clients: of an edge server, or of a cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError
from atoll.core.validation import whole_rows

from .graphs import Graph

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Grouped", "Groups", "check_groups", "members_of"]

Groups = int | tuple[tuple[int, ...], ...]
"""Number of groups of (nearly) equal size, in the order of the clients; or the positions of each group's members."""


def check_groups(groups: Groups, where: str) -> Groups:
    """Refuse impossible groups; return valid ones as plain tuples.

    Raises:
        ConfigError: ``groups`` is neither a number nor groups of positions, has no group, an empty one, or a client in two groups.
    """
    if isinstance(groups, int | np.integer):
        if groups < 1:
            raise ConfigError(f"groups={groups}", where=where, remedy="use at least 1")
        return int(groups)
    made = whole_rows(where, "groups", groups, "use a number, or lists of positions such as [[0, 1], [2]]")
    everyone = [i for group in made for i in group]
    if not made or not all(made) or len(set(everyone)) < len(everyone):
        raise ConfigError(f"groups={made}", where=where, remedy="put each client into one group, and leave none empty")
    return made


def members_of(groups: Groups, n: int, where: str) -> list[NDArray[np.int64]]:
    """Return the positions of each group's members, sorted.

    Raises:
        ConfigError: the groups do not match ``n`` clients.
    """
    if isinstance(groups, int):
        if groups > n:
            raise ConfigError(f"groups={groups} of {n} clients", where=where, remedy="use at most one group per client")
        return [np.sort(part) for part in np.array_split(np.arange(n), groups)]
    found = [np.array(sorted(group), dtype=np.int64) for group in groups]
    if sorted(int(i) for part in found for i in part) != list(range(n)):
        raise ConfigError(
            f"the groups have {sum(map(len, found))} clients, but the federation has {n}",
            where=where,
            remedy="put each of the federation's clients into one group",
        )
    return found


@dataclass(frozen=True)
class Grouped(Graph):
    """A graph inside each group, and no links between groups.

    Attributes:
        base: the graph of each group.
        groups: the groups.
        n: total number of nodes.
    """

    base: Graph
    groups: Groups
    n: int

    @property
    def changes(self) -> bool:
        """Whether the base changes."""
        return self.base.changes

    def edges(self, n: int, rng: Rng) -> NDArray[np.int64]:
        """Return the edges among all nodes."""
        return self.among(np.arange(n), rng)

    def among(self, members: NDArray[np.int64], rng: Rng) -> NDArray[np.int64]:
        """Return the edges inside each group."""
        found = [np.zeros((0, 2), dtype=np.int64)]
        for number, group in enumerate(members_of(self.groups, self.n, "topology.groups")):
            there = np.flatnonzero(np.isin(members, group))
            if len(there) > 1:
                found.append(there[self.base.edges(len(there), rng.child("group", number))])
        return np.concatenate(found)
