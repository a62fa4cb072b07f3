"""Rescaled partial aggregation: weights that sum to 1 in expectation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError
from atoll.core.requests.results import Combined
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.wrapped import dry_reply

from .base import Aggregation, population_weight, require_examples, scale_means

__all__ = ["Rescaled"]


@dataclass(frozen=True)
class Rescaled(Aggregation):
    """Partial aggregation with ``a_k = (n_k/n) |U|/|S|``, unbiased under uniform selection (Wu 2021, Eq. 2.47).

    The weights sum to ``A = sum_{k in S} a_k``, which is 1 only in expectation. On updates, the next model is
    ``w(t-1) + sum a_k (w_k - w(t-1))``. On models, as the equation says literally, it is ``sum a_k w_k``: this scales the whole model
    by ``A``, which is much noisier if clients' sizes differ. Both have the same expectation.

    Attributes:
        models: average models instead of updates; only for algorithms that reply with an ``update`` of the model.
    """

    models: bool = False
    weighs_population: ClassVar[bool] = True

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm that does not weight by examples; on models, one without an update of the model."""
        require_examples(self, base, params)
        if self.models and "update" not in dry_reply(base, params):
            raise CompositionError(
                f"{type(base).__name__} does not reply with an update of the model",
                where="aggregation",
                remedy="use Rescaled(models=False)",
            )

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return means over the population, divided by the share of clients that replied."""
        factor = info.population / (info.replied * population_weight(info))
        sums = scale_means(combined, factor)
        if self.models and combined.kinds.get("update") == "mean":
            excess = factor * combined.weight["update"] - 1.0
            sums["update"] = T.add(sums["update"], T.scale(params, excess))
        return sums, memory
