"""Training on soft targets, at the server or at a client: distributions over classes in place of labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SoftTargets", "softmax"]


@dataclass(frozen=True)
class SoftTargets:
    """Mini-batch descent of cross-entropy to given distributions: ``w <- w - lr grad CE(target, f_w(x))``.

    Attributes:
        lr: learning rate.
        epochs: passes over the rows.
        batch_size: rows of a mini-batch.
    """

    lr: float
    epochs: int
    batch_size: int

    def taught(self, learner: Any, params: Tree, x: NDArray[Any], target: NDArray[Any], rng: Rng) -> Tree:
        """Return a model after ``epochs`` passes over rows ``(n, ...)`` with targets ``(n, classes)``."""
        for epoch in range(self.epochs):
            order = rng.child("distil", epoch).generator().permutation(len(x))
            for start in range(0, len(x), self.batch_size):
                rows = order[start : start + self.batch_size]
                slope = (softmax(learner.scores(params, x[rows])) - target[rows]) / len(rows)
                made = learner.pullback(params, x[rows], slope)
                params = T.map(
                    lambda leaf, by: leaf - (self.lr * by).astype(leaf.dtype),
                    params,
                    {name: made[name] for name in params},
                )
        return params


def softmax(scores: Any) -> NDArray[Any]:
    """Return the distributions of scores ``(n, classes)``."""
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True))
