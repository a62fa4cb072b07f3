"""Replies that stand far outside their cohort: by the norm of their update, or by their loss.

A reply may have the right form and still be a model of nothing: a party divides by the wrong number, has its columns in other units, or means harm. The server
sees this where it sees single replies. Far outside is more than `FAR` times the median of the cohort, and more than `FAR` times the median's usual distance
from it: ``x > FAR * m`` and ``x - m > FAR * 1.4826 * MAD``, with the median absolute deviation scaled to a normal standard deviation (Hampel, 1974, "The
Influence Curve and its Role in Robust Estimation"). Only what is too large is named: a small update changes little.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Total, Totals

__all__ = ["FAR", "measures", "outlying"]

FAR = 10.0
LEAST = 3
"""Replies of a cohort from which on there is a middle."""


def measures(totals: Totals) -> dict[str, float]:
    """Return what is compared of one reply: the norm of its update, and its losses, by the words for them."""
    updates = [_value(total) for total in totals.values() if total.role == "update"]
    found = {}
    if updates:
        found["an update of norm"] = math.sqrt(sum(_square(value) for value in updates))
    for name, total in totals.items():
        if total.role == "metric" and "loss" in name:
            value = _value(total)
            if np.shape(value) == ():
                found[f"the metric {name!r}"] = abs(float(value))
    return found


def outlying(cohort: Mapping[int, Mapping[str, float]]) -> dict[int, str]:
    """Return the parties that stand far outside, and how far, in words.

    Args:
        cohort: position -> `measures` of its reply.
    """
    found: dict[int, list[str]] = {}
    for what in dict.fromkeys(name for row in cohort.values() for name in row):
        rows = {position: row[what] for position, row in cohort.items() if what in row}
        if len(rows) < LEAST:
            continue
        values = np.array(list(rows.values()))
        middle = float(np.median(values))
        spread = 1.4826 * float(np.median(np.abs(values - middle)))
        for position, value in rows.items():
            if middle > 0 and value > FAR * middle and value - middle > FAR * spread:
                found.setdefault(position, []).append(f"{what} {value:.3g}, {value / middle:,.0f} times the median")
    return {position: "; ".join(words) for position, words in found.items()}


def _value(total: Total) -> Any:
    """Return the value of one reply itself: a mean's summand has the weight in it."""
    if total.kind == "parts":
        part = total.value[0]
        return part.value if part.of in ("parts", "sum", "vote") else _divide_leaves(part.value, part.weight)
    return _divide_leaves(total.value, total.weight) if total.kind == "mean" else total.value


def _divide_leaves(value: Any, weight: Any) -> Any:
    return T.map(lambda leaf: np.asarray(leaf) / float(weight), value) if float(weight) > 0 else value


def _square(value: Any) -> float:
    total = 0.0
    for leaf in T.leaves(value):
        flat = np.asarray(leaf).reshape(-1)
        if flat.dtype.kind in "fiub":
            wide = flat if flat.dtype == np.float64 else flat.astype(np.float64)
            with np.errstate(over="ignore"):
                total += float(wide @ wide)
    return total
