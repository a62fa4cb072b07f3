"""Which rows of a pool have labels, for mini-batches of a block that must hold some of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.learn.local.own_loss import LABELLED
from atoll.learn.local.partial import share_of, topped_up

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from numpy.typing import NDArray

    from atoll.learn.algorithm import Algorithm

    from .pool import Pool

__all__ = ["LabelledRows", "labelled_rows"]


def labelled_rows(columns: Mapping[str, torch.Tensor]) -> NDArray[np.bool_] | None:
    """Return which rows have a label, ``(rows,)``; ``None`` if no column says it. A row with several entries needs one."""
    column = columns.get(LABELLED)
    return None if column is None else (column != 0).reshape(len(column), -1).any(1).cpu().numpy()


@dataclass(frozen=True)
class LabelledRows:
    """The labelled rows of a pool, and how many of them a mini-batch needs.

    Attributes:
        rows: which rows have a label, ``(rows of the pool,)``.
        offsets: the pool's offsets.
        share: of a mini-batch; see `atoll.learn.local.partial.topped_up`.
    """

    rows: NDArray[np.bool_]
    offsets: NDArray[np.int64]
    share: float

    @classmethod
    def of(cls, pool: Pool, algorithm: Algorithm) -> LabelledRows | None:
        """Return the labelled rows; ``None`` if the mini-batches stay as they are: none or all rows have labels, or the algorithm wants no share."""
        share = share_of(algorithm)
        rows = labelled_rows(pool.columns) if share else None
        return None if rows is None or rows.all() or not rows.any() else cls(rows, pool.offsets, share)

    def topped_up(self, orders: NDArray[Any], members: NDArray[np.int64], keys: NDArray[np.uint64]) -> NDArray[Any]:
        """Return the mini-batches of some clients, ``(clients, steps, size)``, with enough labelled rows."""
        if orders.shape[2] == self.offsets[members[0] + 1] - self.offsets[members[0]]:  # all rows at once
            return orders
        own = [self.rows[self.offsets[client] : self.offsets[client + 1]] for client in members.tolist()]
        made = [topped_up(o, r, self.share, k) for o, r, k in zip(orders, own, keys.tolist(), strict=True)]
        return np.stack(made)
