"""Selection in proportion to the clients' examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError

from .base import Candidates
from .uniform import Uniform

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SizeProportional"]


@dataclass(frozen=True)
class SizeProportional(Uniform):
    """Draws client k with probability ``n_k / n``, its share of the examples.

    With replacement, a client may be drawn several times: it replies the same each time, and counts each time. With
    ``EqualWeights``, the mean over the draws is then unbiased for ``sum_k (n_k/n) w_k`` (Li et al. 2020, "On the Convergence of FedAvg on
    Non-IID Data", scheme I). Without replacement, each draw is proportional among the remaining clients, which is slightly biased.

    Attributes:
        count: draws per round, as in ``Uniform``.
        replace: whether a client may be drawn again.
    """

    replace: bool = True

    @property
    def repeats(self) -> bool:
        """Whether the draw is with replacement."""
        return self.replace

    @property
    def tells_odds(self) -> bool:
        """Whether the draw is with replacement."""
        return self.replace

    def odds(self, candidates: Candidates, state: Tree) -> NDArray[np.float64]:
        """Return ``n_k / n``."""
        del state
        sizes = self._sizes(candidates)
        return np.asarray(sizes / sizes.sum())

    def invite(self, candidates: Candidates, count: int, state: Tree) -> NDArray[Any]:
        """Draw ``count`` indices.

        Raises:
            ConfigError: the sizes are unknown.
            DataError: no client has an example.
        """
        del state
        sizes = self._sizes(candidates)
        count = count if self.replace else min(count, int((sizes > 0).sum()))
        return candidates.rng.generator().choice(len(sizes), size=count, replace=self.replace, p=sizes / sizes.sum())

    def _sizes(self, candidates: Candidates) -> NDArray[np.float64]:
        found = candidates.sizes()
        if found is None:
            raise ConfigError(
                "the clients' sizes are unknown", where="SizeProportional", remedy="use data with `sizes`, or Uniform"
            )
        sizes = np.asarray(found, dtype=np.float64)
        if not (sizes > 0).any():
            raise DataError("no client has an example", where="SizeProportional", remedy="check the partition")
        return sizes
