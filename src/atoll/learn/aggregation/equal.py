"""Equal weights: for clients drawn in proportion to their examples."""

from __future__ import annotations

from dataclasses import dataclass, replace

from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, LocalWork
from atoll.learn.wrapped import Wrapped

from .base import Aggregation

__all__ = ["EqualWeights"]


@dataclass(frozen=True)
class EqualWeights(Aggregation):
    """Partial aggregation with ``a_k = 1/|S|``.

    If clients are drawn with replacement with probability ``n_k / n`` (``SizeProportional``), it is unbiased for
    ``sum_k (n_k / n) w_k``. Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithms 1 and 2.
    """

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with every mean weighted by 1."""
        return _Equal(base=base)


@dataclass(frozen=True, kw_only=True)
class _Equal(Wrapped):
    """Replies with weight 1, also of a pass of another kind, such as a full gradient."""

    def _keeps(self, part: Algorithm, last: bool) -> bool:
        """Keep the last pass too: what it sends has weight 1, whatever it is."""
        return last or super()._keeps(part, last)

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Return the base's reply with equal weights, also if it weights sums and single replies by examples."""
        reply, state = self.base.finish(local, broadcast, client, replace(work, examples=work.examples * 0.0 + 1.0))
        return {name: replace(a, examples=1.0) if isinstance(a, Mean) else a for name, a in reply.items()}, state
