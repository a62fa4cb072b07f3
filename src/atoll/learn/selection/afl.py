"""Active federated learning: prefer clients whose data the model fits badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.learn.checks import require_share

from .base import Candidates, Seen, draw, members, places_of
from .uniform import Uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["AFL"]


@dataclass(frozen=True)
class AFL(Uniform):
    """Draws clients by a softmax of how much the model can learn from them.

    A client's valuation is ``v_k = sqrt(n_k) * (mean loss on its rows)``, kept until it replies again. Each round, the rule sets aside the
    ``alpha1 * N`` smallest valuations, draws ``(1 - alpha3) * count`` of the others with probability proportional to
    ``exp(alpha2 v_k)``, and draws the rest uniformly from all clients not drawn yet. J. Goetz et al., "Active Federated Learning", 2019,
    Algorithm 1, with the losses that replies report (means over the local steps). Ties for the clients to set aside are broken
    at random. A client that never replied has the mean valuation of those that did, which the paper leaves open.

    Attributes:
        count: clients per round, as in ``Uniform``.
        alpha1: share of the candidates set aside.
        alpha2: sharpness of the softmax; 0 draws uniformly among the clients not set aside.
        alpha3: share of a round drawn uniformly.
        first: whether the server asks every client for the loss of the initial model before the first round.
    """

    citation: ClassVar[str] = "Goetz et al. 2019, Active Federated Learning"
    alpha1: float = 0.75
    alpha2: float = 0.01
    alpha3: float = 0.1
    first: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        require_share("AFL", alpha1=self.alpha1)
        if not (self.alpha2 >= 0 and np.isfinite(self.alpha2)):
            raise ConfigError(f"alpha2={self.alpha2}", where="AFL", remedy="use a number of at least 0")
        if not 0 <= self.alpha3 <= 1:
            raise ConfigError(f"alpha3={self.alpha3}", where="AFL", remedy="use a number in [0, 1]")

    @property
    def reports(self) -> Mapping[str, Any]:
        """The loss."""
        return {"loss": None}

    def init(self, parties: Parties) -> Tree:
        """Start with no valuations."""
        return {"who": members(parties), "value": np.full(len(parties), np.nan)}

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return every client before the first round, if ``first`` is set."""
        del count
        if not self.first or not np.isnan(state["value"]).all():
            return None
        return np.arange(len(candidates.parties))

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Store the first valuations."""
        return self.accept(seen, state)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Set some clients aside, draw most by valuation and the rest uniformly."""
        known = state["value"][places_of(state["who"], candidates.parties.positions)]
        heard = known[~np.isnan(known)]
        value = np.where(np.isnan(known), heard.mean() if len(heard) else 0.0, known)
        order = np.lexsort((candidates.rng.child("ties").generator().random(len(value)), value))
        logits = self.alpha2 * value
        logits[order[: int(self.alpha1 * len(value))]] = -np.inf
        chosen = draw(candidates.rng.child("value"), logits, count - int(np.floor(self.alpha3 * count)))
        rest = np.zeros(len(value))
        rest[chosen] = -np.inf
        return np.concatenate([chosen, draw(candidates.rng.child("rest"), rest, count - len(chosen))])

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Update the valuations of the clients that replied."""
        told = np.asarray(seen.reports.get("loss", []), dtype=np.float64)
        if not len(told):
            return state
        value = state["value"].copy()
        value[places_of(state["who"], seen.replied.positions)] = np.sqrt(seen.examples) * told
        return {**state, "value": value}
