"""DivFL: few clients with updates that represent all clients' updates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.requests.party import Parties
from atoll.learn.checks import require_count

from .among import among_some, require_pool
from .coverage import closeness, distances
from .members import members, places_of
from .seen import Candidates, Seen
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DivFL"]


@dataclass(frozen=True)
class DivFL(Uniform):
    """Invites clients with last updates close to those of all clients: ``max_{|S| = count} sum_i max_{j in S} (max d - d_ij)``, greedily.

    ``d_ij`` is the distance between two clients' last updates, from sketches of ``size`` numbers in their replies (`atoll.learn.local.sketches`): no survey,
    and only a few numbers more per reply. Clients that have not replied yet come first. Updates of different rounds are compared directly, as in the
    variant of the paper that asks for no gradients beforehand.

    R. Balakrishnan et al., "Diverse Client Selection for Federated Learning via Submodular Maximization", ICLR 2022, with sketches instead of gradients. The
    greedy set has at least ``1 - 1/e`` of the best value among the sets considered. Similarities take memory and time quadratic in the number of clients.

    Attributes:
        count: clients per round, as in ``Uniform``.
        size: numbers in a sketch; distances have a relative error of about ``sqrt(2 / size)``.
        pool: share of the clients, drawn anew each round, that the rule considers; 1 considers all clients.
    """

    citation: ClassVar[str] = "Balakrishnan et al. 2022, Diverse Client Selection for FL via Submodular Maximization"
    size: int = 64
    pool: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("DivFL", size=self.size)
        require_pool("DivFL", self.pool)

    @property
    def reports(self) -> Mapping[str, Any]:
        """The sketch."""
        return {"sketch": {"size": self.size}}

    def init(self, parties: Parties) -> Tree:
        """Start with no replies."""
        n = len(parties)
        return {"who": members(parties), "known": np.zeros(n, dtype=bool), "sketch": np.zeros((n, self.size))}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return clients that have not replied yet; then a greedy choice from a pool of those that have."""
        places = places_of(state["who"], candidates.parties.positions)
        known, rng = state["known"][places], candidates.rng.generator()
        fresh = rng.permutation(np.flatnonzero(~known))[:count]
        there, left = np.flatnonzero(known), count - len(fresh)
        if not left or not len(there):
            return fresh
        everybody = np.flatnonzero(state["known"])
        alike = closeness(distances(state["sketch"][everybody]))
        chosen = among_some(alike, None, places_of(everybody, places[there]), left, self.pool, rng)
        return np.concatenate([fresh, there[chosen]])

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Remember the sketches of clients with rows."""
        told, has = seen.reports.get("sketch", []), np.asarray(seen.examples) > 0
        if not len(told) or not has.any():
            return state
        places = places_of(state["who"], seen.replied.positions[has])
        known, sketch = state["known"].copy(), state["sketch"].copy()
        known[places] = True
        sketch[places] = np.asarray(told, dtype=np.float64)[has]
        return {**state, "known": known, "sketch": sketch}
