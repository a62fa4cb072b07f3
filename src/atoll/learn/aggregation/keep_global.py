"""Keep-global full aggregation: the current global model replaces every absent client's model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra.tree import Tree
from atoll.core.requests.results import Combined
from atoll.learn.algorithm import Algorithm, RoundInfo

from .base import Aggregation, population_weight, require_examples, scale_means

__all__ = ["KeepGlobal"]


@dataclass(frozen=True)
class KeepGlobal(Aggregation):
    """``w(t) = sum_{k in S} (n_k/n) w_k + sum_{k not in S} (n_k/n) w(t-1) = w(t-1) + sum_{k in S} (n_k/n) (w_k - w(t-1))``.

    The step is scaled by the share of the examples that replied. Wu 2021, Eq. 2.46.
    """

    weighs_population: ClassVar[bool] = True

    def check(self, base: Algorithm, params: Tree) -> None:
        """Refuse an algorithm that does not weight by examples."""
        require_examples(self, base, params)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return means over the population, with nothing from absent clients."""
        del params
        return scale_means(combined, 1.0 / population_weight(info)), memory
