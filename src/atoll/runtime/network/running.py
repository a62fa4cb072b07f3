"""A running sum that owns its memory: summands are added in place, in cohort order, and their sources are freed along the way."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Total, Totals
from atoll.core.requests.request import PartialSum
from atoll.core.requests.wire import unpack_folded

from .pieces import pieces
from .totals import require_fit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Running"]


class Running:
    """The sum of the replies so far.

    Adding in place gives the same bits as adding into new arrays. A sum takes the memory of one summand, however many
    you add.

    Args:
        positions: the cohort, which gives the order.
    """

    def __init__(self, positions: NDArray[np.int64]) -> None:
        self._whole = PartialSum({}, positions[:0], positions[:0])
        self._senders = [positions[:0]]
        self._sizes = [positions[:0]]

    def add(self, frame: Any) -> None:
        """Add the next reply of the cohort, as its site sent it and `require_reply` accepted it.

        Raises:
            MessageError: its form differs from those before it; the sum is unchanged.
        """
        whole = self._whole
        if frame["op"] == "lost":
            self.reject(int(frame["party"]), "the party was lost")
            return
        part = unpack_folded(frame["folded"])
        require_fit(whole.totals, part.totals)
        whole.totals = _added(whole.totals, part.totals)
        whole.rejected.update(part.rejected)
        whole.errors.update(part.errors)
        self._senders.append(part.senders)
        self._sizes.append(part.nbytes)

    def reject(self, position: int, why: str) -> None:
        """Note that a party's reply is not in the sum."""
        self._whole.rejected[position] = why

    def folded(self) -> PartialSum:
        """Return the sum and who is in it."""
        self._whole.senders, self._whole.nbytes = np.concatenate(self._senders), np.concatenate(self._sizes)
        return self._whole


def _added(sums: Totals, part: Mapping[str, Total]) -> Totals:
    if not sums:
        return {name: _own(total) for name, total in part.items()}
    for name, total in part.items():
        known = sums.get(name)
        sums[name] = _own(total) if known is None else _merged(known, total)
    return sums


def _own(total: Total) -> Total:
    """Return a total whose arrays belong to this sum alone."""
    if total.kind == "parts":
        return total
    return replace(total, value=T.map(_copied, total.value), owned=True)


def _merged(sum_: Total, part: Total) -> Total:
    if sum_.kind == "parts" or sum_.kind != part.kind or not _alike(sum_.value, part.value):
        return sum_.merge(part)
    for into, leaf in zip(T.leaves(sum_.value), T.leaves(part.value), strict=True):
        _add_into(into, leaf)
    return replace(sum_, weight=sum_.weight + part.weight, n=sum_.n + part.n)


def _alike(a: Any, b: Any) -> bool:
    """Tell whether two trees have the same arrays in the same places, so that one can be added into the other."""
    ours, theirs = list(T.items(a)), list(T.items(b))
    return len(ours) == len(theirs) and all(
        p == q and isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and x.dtype == y.dtype and x.shape == y.shape
        for (p, x), (q, y) in zip(ours, theirs, strict=True)
    )


def _copied(leaf: Any) -> Any:
    if not isinstance(leaf, np.ndarray) or leaf.ndim == 0:
        return leaf
    copy = np.empty_like(leaf, order="C")
    for into, of in pieces(copy, leaf):
        into[...] = of
    return copy


def _add_into(into: NDArray[Any], leaf: NDArray[Any]) -> None:
    for ours, theirs in pieces(into, leaf):
        np.add(ours, theirs, out=ours)
