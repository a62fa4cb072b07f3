"""The sparsest unbiased vector of a given second moment."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Estimated

from .packed import Packed, index_width, pack, unpack
from .rows import Groups, uniforms

__all__ = ["OptimalSparse", "probabilities"]


def probabilities(rows: Any, eps: float) -> tuple[Any, Any]:
    """The probabilities that send the fewest entries: ``min_p sum_j p_j`` so that ``sum_j g_j^2 / p_j <= (1 + eps) ||g||^2``.

    ``p_j = min(1, c |g_j|)``: the ``k`` largest are always sent, with the smallest ``k`` for which ``c |g_(k+1)| <= 1``, where
    ``c = sum_{j>k} |g_(j)| / ((1 + eps) ||g||^2 - sum_{j<=k} g_(j)^2)``. The constraint is tight. Wangni, Wang, Liu, Zhang 2018, "Gradient
    Sparsification for Communication-Efficient Distributed Optimization", algorithm 2.

    Args:
        rows: one vector a client, shape ``(clients, entries)``.
        eps: how much the second moment may grow, relative to ``||g||^2``.

    Returns:
        ``p``, shape ``(clients, entries)``, and ``c``, shape ``(clients,)`` (0 for a vector of zeros).
    """
    size = np.abs(rows).astype(np.float64)
    peak = size.max(axis=1, initial=0.0, keepdims=True)
    size /= np.where(peak > 0, peak, 1.0)  # so that squares neither overflow nor underflow
    order = -np.sort(-size, axis=1)
    square = order * order
    above = np.cumsum(square, axis=1) - square
    below = np.cumsum(order[:, ::-1], axis=1)[:, ::-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = below / ((1.0 + eps) * square.sum(axis=1, keepdims=True) - above)
        first = np.argmax(factor * order <= 1.0, axis=1)
    c = np.take_along_axis(factor, first[:, None], axis=1)
    c = np.where(peak > 0, c, 0.0)
    return np.minimum(1.0, c * size), (c / np.where(peak > 0, peak, 1.0))[:, 0]


@dataclass(frozen=True)
class OptimalSparse(Packed, Estimated):
    """Send entry ``j`` as ``g_j / p_j`` with probability ``p_j``, else as 0, with the probabilities of ``probabilities``.

    Unbiased, with ``E ||Q(g) - g||^2 <= eps ||g||^2``. Entries that are drawn (``p_j = c |g_j| < 1``) all decode to ``1/c``, so only their index
    and sign are sent.

    On the wire: 64 bits for ``c``; index and value of each entry that is always sent; index and sign of each entry that was drawn.

    Attributes:
        eps: how much the second moment may grow.
    """

    eps: float = 1.0

    def __post_init__(self) -> None:
        if not (self.eps > 0 and math.isfinite(self.eps)):
            raise ConfigError(f"eps={self.eps}", where="OptimalSparse", remedy="use a finite number above 0")

    def pack(self, rows: Any, groups: Groups, public: Tree, keys: Any) -> dict[str, Any]:
        """Return ``1/c``, the entries that are always sent, and the drawn entries."""
        del public
        width = index_width(groups.size)
        chance, c = probabilities(rows, self.eps)
        drawn = (uniforms(keys, groups.size, np.float64) < chance) & (chance < 1.0)
        sure = [np.flatnonzero(row) for row in chance >= 1.0]
        rest = [np.flatnonzero(row) for row in drawn]
        with np.errstate(divide="ignore"):
            return {
                "size": np.where(c > 0, 1.0 / c, 0.0)[:, None],
                "sure": T.Ragged([pack(index, width) for index in sure]),
                "values": T.Ragged([row[index] for row, index in zip(rows, sure, strict=True)]),
                "rest": T.Ragged([pack(index, width) for index in rest]),
                "signs": T.Ragged([(row[index] < 0) for row, index in zip(rows, rest, strict=True)]),
            }

    def unpack(self, parts: Mapping[str, Any], groups: Groups, dtype: Any, public: Tree) -> Any:
        """Put all entries at their indices."""
        del public
        width = index_width(groups.size)
        found = np.zeros((len(parts["size"]), groups.size), dtype=dtype)
        for i, row in enumerate(found):
            values, signs, size = parts["values"][i], parts["signs"][i], parts["size"][i][0]
            row[unpack(parts["sure"][i], width, len(values)).astype(np.int64)] = values
            row[unpack(parts["rest"][i], width, len(signs)).astype(np.int64)] = np.where(signs, -size, size)
        return found

    def wire_bits(self, value: Tree) -> None:
        """Unknown: it depends on the draw."""
        del value

    def omega(self, value: Tree) -> float:
        """``eps``."""
        del value
        return self.eps
