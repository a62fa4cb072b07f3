"""Mini-batches with enough labelled rows: where few of a client's rows have a label, most mini-batches would hold none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng, shuffles
from atoll.core.facets import facet

from ..algorithm import Labelled

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..algorithm import Algorithm

__all__ = ["labelled_batches", "share_of", "topped_up"]


def share_of(algorithm: Algorithm) -> float:
    """Return the share of labelled rows that mini-batches need; 0 for those that are drawn for privacy's sake, or are the same in every round."""
    return 0.0 if algorithm.cyclic or algorithm.example_steps is not None else facet(algorithm, Labelled).labelled_share


def topped_up(orders: NDArray[Any], labelled: NDArray[np.bool_], share: float, key: int) -> NDArray[Any]:
    """Replace unlabelled rows of one client's mini-batches by labelled ones where these are too few.

    A mini-batch of ``m`` rows then holds at least ``min(ceil(share m), L)`` of the client's ``L`` labelled rows, none of them twice. Its size stays, and the
    rows that leave are its last unlabelled ones. Labelled rows take turns, in an order of the client's key.

    Args:
        orders: row numbers, ``(steps, size)``; -1 fills a partial batch.
        labelled: which of the client's rows have a label, ``(rows,)``.
        share: between 0 and 1.
        key: the client's random key.
    """
    known = np.flatnonzero(labelled)
    if not len(known) or len(known) == len(labelled) or share <= 0.0:
        return orders
    real = orders >= 0
    marked = labelled[orders] & real
    # The small number keeps a product such as .1 * 30 from a row too many.
    wanted = np.minimum(np.ceil(share * real.sum(1) - 1e-9), len(known)).astype(np.int64)
    missing = wanted - marked.sum(1)
    if (missing <= 0).all():
        return orders
    made = np.array(orders)
    turns = known[shuffles(np.array([Rng(int(key)).child("labelled").key], np.uint64), 1, len(known))[0, 0]]
    most = int(np.ceil(share * orders.shape[1] - 1e-9))
    for step in np.flatnonzero(missing > 0).tolist():
        own = np.roll(turns, -step * most)
        own = own[~np.isin(own, orders[step])][: missing[step]]
        made[step, np.flatnonzero(real[step] & ~marked[step])[-len(own) :]] = own
    return made


def labelled_batches(
    batches: Sequence[NDArray[Any]], labelled: NDArray[np.bool_], share: float, key: int
) -> list[NDArray[Any]]:
    """Do as `topped_up` with a list of one client's mini-batches; the first is the largest."""
    if not len(batches) or len(batches[0]) == len(labelled):
        return list(batches)
    orders = np.full((len(batches), len(batches[0])), -1, dtype=np.int64)
    for step, rows in enumerate(batches):
        orders[step, : len(rows)] = rows
    return [rows[rows >= 0] for rows in topped_up(orders, labelled, share, key)]
