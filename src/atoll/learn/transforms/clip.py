"""Clipping of a direction by its norm."""

from __future__ import annotations

from dataclasses import dataclass

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

from ..checks import require_positive
from .base import Transform

__all__ = ["ClipNorm"]


@dataclass(frozen=True)
class ClipNorm(Transform):
    """``v = g min(1, bound / ||g||)`` with the Euclidean norm over all leaves. Pascanu, Mikolov, Bengio, ICML 2013.

    It bounds the step of one mini-batch. It is not a privacy guarantee for an example, which needs the gradients of single examples.

    Attributes:
        bound: the largest norm.
    """

    bound: float = 10.0

    def __post_init__(self) -> None:
        require_positive("ClipNorm", bound=self.bound)

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return the direction after one step, and the memory."""
        del y, x
        length = T.norm(v)
        # bound / max(length, bound), without a division by zero
        factor = self.bound / (self.bound + (length - self.bound) * (length > self.bound))
        return T.map(lambda leaf: leaf * _as(factor, leaf), v), memory


def _as(factor: object, leaf: object) -> object:
    """Return the factor in the leaf's dtype: the norm has the widest dtype of all leaves."""
    dtype = getattr(leaf, "dtype", None)
    if hasattr(factor, "to"):
        return factor.to(dtype)
    return factor.astype(dtype) if hasattr(factor, "astype") else factor
