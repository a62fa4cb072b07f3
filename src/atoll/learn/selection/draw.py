"""Weighted draws that work with tiny weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.rng import Rng

__all__ = ["draw", "top"]


def draw(rng: Rng, logits: NDArray[np.float64], count: int, *, replace: bool = False) -> NDArray[np.int64]:
    """Draw ``count`` indices, each with probability proportional to ``exp(logits)`` among the remaining ones.

    Without replacement, it takes the ``count`` largest of ``logits + Gumbel noise``, which has the distribution of successive draws (Yellott 1977)
    and needs no normalised probability, so that scores far below the smallest float still have an order.

    Args:
        rng: the random stream of this draw.
        logits: logarithms of the weights, ``(n,)``; ``-inf`` is never drawn.
        count: number of draws; without replacement, limited to the indices that can be drawn.
        replace: whether an index may be drawn again.

    Returns:
        Indices in the order of the draw; empty if nothing can be drawn.
    """
    able = int(np.isfinite(logits).sum())
    if able == 0 or count == 0:
        return np.zeros(0, dtype=np.int64)
    numbers = rng.generator()
    if replace:
        weights = np.exp(logits - logits.max())
        return np.asarray(numbers.choice(len(logits), size=count, p=weights / weights.sum()), dtype=np.int64)
    noisy = logits + numbers.gumbel(size=len(logits))
    return np.argsort(-noisy, kind="stable")[: min(count, able)].astype(np.int64)


def top(rng: Rng, values: NDArray[np.float64], count: int) -> NDArray[np.int64]:
    """Return indices of the ``count`` largest values, the largest first; ties in random order; ``-inf`` never."""
    able = int((values > -np.inf).sum())
    order = np.lexsort((rng.generator().random(len(values)), -values))
    return order[: min(count, able)].astype(np.int64)
