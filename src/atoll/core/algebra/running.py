"""Totals added up in memory of their own: the same bits as `atoll.core.algebra.aggregate.merge_totals` gives, in the memory of one summand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from . import tree as T
from .aggregate import Total, Totals
from .pieces import pieces

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["add_into"]


def add_into(sums: Totals, part: Mapping[str, Total]) -> None:
    """Add totals to those that are there already; the first of a name is copied.

    Raises:
        CompositionError: two totals of one name have different kinds.
    """
    for name, total in part.items():
        known = sums.get(name)
        sums[name] = _own(total) if known is None else _merged(known, total)


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
    if not isinstance(leaf, np.ndarray):
        return leaf
    if leaf.ndim == 0:
        return leaf.copy()
    copy = np.empty_like(leaf, order="C")
    for into, of in pieces(copy, leaf):
        into[...] = of
    return copy


def _add_into(into: NDArray[Any], leaf: NDArray[Any]) -> None:
    for ours, theirs in pieces(into, leaf):
        np.add(ours, theirs, out=ours)
