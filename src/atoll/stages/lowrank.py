"""Matrices as the product of two thin matrices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated, Stage, StageContext

from .rows import numpy_leaf, template_of

__all__ = ["LowRank"]


@dataclass(frozen=True)
class LowRank(Stage, Estimated):
    """The best approximation of rank ``k`` of each matrix, ``U_k diag(s_k) V_k^T`` (Eckart, Young 1936); other leaves are sent unchanged.

    A contraction: ``||C(x) - x||^2 <= (1 - k / min(m, n)) ||x||^2`` for a matrix ``(m, n)``. On the wire: ``U_k diag(s_k)`` and ``V_k``, together
    ``k (m + n)`` floats, if that is less than ``m n``. Use it on the downlink of a low-rank model, or inside ``ErrorFeedback``.

    Attributes:
        rank: ``k``, at least 1.
    """

    rank: int = 1
    summable: ClassVar[bool] = False
    linear: ClassVar[bool] = False
    unbiased: ClassVar[bool] = False
    packs: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ConfigError(f"rank={self.rank}", where="LowRank", remedy="use a rank of at least 1")

    def _factors(self, shape: tuple[int, ...]) -> bool:
        return len(shape) == 2 and self.rank * sum(shape) < shape[0] * shape[1]

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a block of one."""
        block = T.map(lambda leaf: numpy_leaf(leaf)[None], value)
        return T.map(lambda leaf: leaf[0], self.encode_block(block, context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Return each client's factors, and its other leaves."""
        del context
        arrays = [numpy_leaf(leaf) for leaf in T.leaves(block)]
        like = T.map(lambda leaf: np.zeros((len(leaf), 0, *leaf.shape[1:]), dtype=numpy_leaf(leaf).dtype), block)
        return {"like": like, "parts": [self._split(leaf) for leaf in arrays]}

    def _split(self, leaf: Any) -> list[Any]:
        if not self._factors(leaf.shape[1:]):
            return [leaf]
        if not np.isfinite(leaf).all():  # a non-finite value stays so, and the check of replies rejects it
            leaf = np.full_like(leaf, np.nan)
            return [leaf[:, :, : self.rank], leaf[:, : self.rank, :]]
        left, values, right = np.linalg.svd(leaf, full_matrices=False)
        k = self.rank
        return [left[:, :, :k] * values[:, None, :k], right[:, :k, :]]

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Multiply the factors, and put the matrices back."""
        del public, n
        leaves = [parts[0] if len(parts) == 1 else parts[0] @ parts[1] for parts in total["parts"]]
        like = T.leaves(total["like"])
        return T.rebuild(total["like"], [np.asarray(x, dtype=t.dtype) for x, t in zip(leaves, like, strict=True)])

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Multiply the factors with a leading client axis."""
        del memory
        return self.decode(block, public, 1)

    def wire_bits(self, value: Tree) -> int:
        """``k (m + n)`` floats a matrix, and the other leaves whole."""
        sizes = [
            (self.rank * sum(leaf.shape[1:]) if self._factors(leaf.shape[1:]) else math.prod(leaf.shape[1:]))
            * leaf.itemsize
            for leaf in T.leaves(template_of(value))
        ]
        return 8 * int(sum(sizes))

    def delta(self, value: Tree) -> float:
        """``k / min(m, n)``, the smallest over all matrices."""
        shapes = [leaf.shape[1:] for leaf in T.leaves(template_of(value))]
        return float(min([1.0, *[self.rank / min(shape) for shape in shapes if self._factors(shape)]]))
