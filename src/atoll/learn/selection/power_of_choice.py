"""Power of choice: the clients with the highest loss among a few candidates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties
from atoll.learn.checks import require_count

from .base import Candidates, Seen, draw, members, places_of, top
from .uniform import Uniform

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["PowerOfChoice"]


@dataclass(frozen=True)
class PowerOfChoice(Uniform):
    """Draws ``d`` candidates by size, and invites the ``count`` candidates with the highest loss.

    Candidates are drawn without replacement with probability ``p_k = n_k / n``. Y. J. Cho, J. Wang and G. Joshi, "Client Selection in Federated
    Learning: Convergence Analysis and Power-of-Choice Selection Strategies", 2020. The paper averages with equal weights (``EqualWeights``). The
    larger ``d``, the faster and the more biased towards clients of high loss; ``d = count`` is ``SizeProportional(replace=False)``.

    ========  ==========================================================================  ================================
    variant   loss that counts                                                            cost
    ========  ==========================================================================  ================================
    ``pow``   of the current model on all of a candidate's rows, by a survey              ``d`` models down, d evaluations
    ``cpow``  the same on ``rows`` of a candidate's rows, drawn anew without replacement  ``d`` models down, d mini-batches
    ``rpow``  mean training loss of the candidate's last reply; never replied: infinite   none
    ========  ==========================================================================  ================================

    The estimate of ``cpow`` is unbiased; at clients with at most ``rows`` rows it is exact.

    Attributes:
        count: clients per round, as in ``Uniform``.
        d: number of candidates, at least ``count``.
        variant: which losses the rule uses.
        rows: number of rows in the mini-batch of ``cpow``.
    """

    citation: ClassVar[str] = "Cho, Wang and Joshi 2020, Power-of-Choice Selection Strategies"
    d: int = 20
    variant: Literal["pow", "cpow", "rpow"] = "pow"
    rows: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("PowerOfChoice", d=self.d, rows=self.rows)
        if not isinstance(self.count, float) and self.d < self.count:
            raise ConfigError(
                f"d={self.d} candidates for count={self.count}", where="PowerOfChoice", remedy="use d >= count"
            )

    @property
    def reports(self) -> Mapping[str, Any]:
        """The loss."""
        return {"loss": {"rows": self.rows} if self.variant == "cpow" else None}

    def init(self, parties: Parties) -> Tree:
        """Start with no losses."""
        return {"who": members(parties), "loss": np.full(len(parties), np.inf)}

    def survey(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any] | None:
        """Return the candidates, if the variant measures their losses."""
        del state
        return None if self.variant == "rpow" else self._candidates(candidates, count)

    def heard(self, seen: Seen, state: Tree) -> Tree:
        """Store the losses of the candidates; a candidate that did not answer is not invited."""
        loss = np.full(len(state["loss"]), -np.inf)
        told = np.asarray(seen.reports.get("loss", []), dtype=np.float64)
        loss[places_of(state["who"], seen.replied.positions)] = np.where(seen.examples > 0, told, -np.inf)
        return {**state, "loss": loss}

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Return the candidates with the highest loss; ties in random order."""
        loss = state["loss"][places_of(state["who"], candidates.parties.positions)]
        if self.variant == "rpow":
            apart = np.full(len(loss), -np.inf)
            among = self._candidates(candidates, count)
            apart[among] = loss[among]
            loss = apart
        return top(candidates.rng.child("ties"), loss, count)

    def accept(self, seen: Seen, state: Tree) -> Tree:
        """Remember the reported losses, if the variant uses them."""
        told = np.asarray(seen.reports.get("loss", []), dtype=np.float64)
        if self.variant != "rpow" or not len(told):
            return state
        loss = state["loss"].copy()
        loss[places_of(state["who"], seen.replied.positions)] = told
        return {**state, "loss": loss}

    def _candidates(self, candidates: Candidates, count: int) -> NDArray[np.int64]:
        """Return the indices of the candidates, drawn by size."""
        sizes = candidates.sizes()
        if sizes is None:
            raise ConfigError(
                "the clients' sizes are unknown", where="PowerOfChoice", remedy="use data with `sizes`, or AFL"
            )
        with np.errstate(divide="ignore"):
            logits = np.log(np.asarray(sizes, dtype=np.float64))
        return draw(candidates.rng.child("candidates"), logits, max(self.d, count))
