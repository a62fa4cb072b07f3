"""Submodular selection: few clients that represent all, by their profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.core.requests.party import Parties
from atoll.learn.checks import require_count

from .among import among_some, require_pool
from .coverage import closeness, divergences
from .members import places_among
from .seen import Candidates, Seen
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Submodular"]


@dataclass(frozen=True)
class Submodular(Uniform):
    """Invites clients with profiles close to those of all clients: ``max_{|S| = count} sum_i v_i max_{j in S} s_ij``, greedily.

    ``s_ij`` is the largest divergence between two profiles minus that of i and j, and ``v_i`` the client's examples. The greedy set has at least
    ``1 - 1/e`` of the best value of all sets of clients considered (Nemhauser, Wolsey and Fisher 1978); see `lazy_greedy`. Submodular
    selection of clients follows R. Balakrishnan et al., "Diverse Client Selection for Federated Learning via Submodular Maximization", ICLR 2022,
    with profiles instead of gradients: ``2 q`` numbers per client and no gradients.

    Profiles are comparable only if one model made them. So the rule asks all available clients again every ``every`` rounds, before the round.
    Similarities take memory and time quadratic in the number of clients.

    Attributes:
        count: clients per round, as in ``Uniform``.
        layer: the layer to profile; see ``FedProf``.
        every: rounds between surveys.
        pool: share of the clients, drawn anew each round, that the rule considers; 1 chooses the same clients until the next survey.
        weighted: whether clients count by their examples, or equally.
    """

    surveys_only: ClassVar[bool] = True
    citation: ClassVar[str] = "Balakrishnan et al. 2022, Diverse Client Selection for FL via Submodular Maximization"
    layer: str = "auto"
    every: int = 10
    pool: float = 0.5
    weighted: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("Submodular", every=self.every)
        require_pool("Submodular", self.pool)

    @property
    def reports(self) -> Mapping[str, Any]:
        """The profile."""
        return {"profile": {"layer": self.layer}}

    def init(self, parties: Parties) -> Tree:
        """Start with no profiles."""
        del parties
        return {"round": 0, "who": np.zeros(0, dtype=np.int64)}

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return all available clients, every ``every`` rounds."""
        del count
        due = state["round"] == 0 or candidates.round - state["round"] >= self.every
        return np.arange(len(candidates.parties)) if due else None

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Store the similarities of clients with rows.

        Raises:
            DataError: no client has rows.
        """
        told = [(p, n) for p, n in zip(seen.reports.get("profile", []), seen.examples, strict=True) if n > 0]
        if not told:
            raise DataError(
                "no client sent a profile",
                where=f"Submodular, round {seen.round}",
                remedy="check the partition and the deadline",
            )
        means, variances = (np.array([p[name] for p, _ in told], dtype=np.float64) for name in ("mean", "var"))
        who = seen.replied.positions[seen.examples > 0]
        alike = closeness(divergences(means, variances))
        return {"round": seen.round, "who": who, "examples": np.array([n for _, n in told]), "alike": alike}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the greedy choice from a pool of available clients."""
        where = candidates.parties.positions
        there = np.flatnonzero(np.isin(state["who"], where))
        weights = state["examples"] if self.weighted else None
        chosen = there[among_some(state["alike"], weights, there, count, self.pool, candidates.rng.generator())]
        return places_among(where, state["who"][chosen])
