"""Active federated learning: clients on whose data the model does badly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.learn.checks import require_share

from .draw import draw
from .members import members, places_of
from .seen import Candidates, Seen
from .uniform import Uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["AFL"]


@dataclass(frozen=True)
class AFL(Uniform):
    """Draws clients by a softmax of how much there is to learn from them.

    A client's valuation is ``v_k = sqrt(n_k) * (mean loss on its rows)``, kept until it replies again. Each round: those of the
    ``alpha1 * N`` smallest valuations are set aside, ``(1 - alpha3) * count`` of the others are drawn with probability proportional to
    ``exp(alpha2 v_k)``, and the rest uniformly from everybody who was not drawn. J. Goetz et al., "Active Federated Learning", 2019,
    Algorithm 1, with the losses that replies report (means over the local steps). Of equal valuations, those to set aside are chosen
    at random; a client that never replied has the mean valuation of those that did, which the paper leaves open.

    Attributes:
        count: clients a round, as in ``Uniform``.
        alpha1: share of the candidates set aside.
        alpha2: how sharply valuations count; 0 draws uniformly among those not set aside.
        alpha3: share of a round drawn uniformly.
        first: whether everyone is asked for the loss of the first model before the first round.
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
        """No valuations."""
        return {"who": members(parties), "value": np.full(len(parties), np.nan)}

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Everyone, once, if that is wanted."""
        del count
        if not self.first or not np.isnan(state["value"]).all():
            return None
        return np.arange(len(candidates.parties))

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """First valuations."""
        return self.accept(seen, state)

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Set some aside, draw most by valuation and the rest uniformly."""
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
        """Valuations of those who replied."""
        told = np.asarray(seen.reports.get("loss", []), dtype=np.float64)
        if not len(told):
            return state
        value = state["value"].copy()
        value[places_of(state["who"], seen.replied.positions)] = np.sqrt(seen.examples) * told
        return {**state, "value": value}
