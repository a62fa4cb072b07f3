"""Columns in other units: each site says how large the numbers of a column are, to a power of ten, and the server names a site that is far off.

A site that has grams where the others have tonnes sends updates of the right form, and the model never recovers. What leaves is one whole number for a
column: ``round(log10(RMS))`` with the root mean square of its values. A site keeps it to itself with ``scales: false``, and it does not leave for a job that
promises privacy, because its ledger would not count it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import MessageError

if TYPE_CHECKING:
    from atoll.core.job import Job

__all__ = ["FAR", "other_units", "promises_privacy", "scales_in", "scales_of"]

FAR = 2
"""Powers of ten that a column may lie from the median of the sites."""
MOST_COLUMNS = 100_000
_CLIENTS, _ROWS = 1000, 10_000  # looked at
EMPTY = -1000
"""The scale of a column of zeros, which is not compared."""


def scales_of(data: Any) -> tuple[int, ...]:
    """Return the scale of each feature of a site's data, from its first rows; nothing for data other than tables of numbers."""
    parts = [data] if hasattr(data, "row_bytes") else [data.shard(i) for i in range(min(len(data), _CLIENTS))]
    squares: Any = 0.0
    rows: Any = 0
    for part in parts:
        x: Any = np.asarray(part["x"][:_ROWS]) if "x" in part else np.zeros(0)
        if x.ndim != 2 or x.dtype.kind not in "fiub" or x.shape[1] > MOST_COLUMNS:
            return ()
        known = ~np.isnan(x) if x.dtype.kind == "f" else np.ones(x.shape, np.bool_)
        rows, x = rows + known.sum(axis=0), np.where(known, x, 0)
        squares = squares + np.einsum("ij,ij->j", x, x, dtype=np.float64, casting="unsafe")
    means = np.sqrt(np.atleast_1d(squares) / np.maximum(1, rows))
    return tuple(
        EMPTY if not mean > 0 or not math.isfinite(mean) else round(math.log10(mean)) for mean in means.tolist()
    )


def promises_privacy(job: Job) -> bool:
    """Tell whether a job has a mechanism, or its algorithm or stages promise privacy."""
    if getattr(job, "privacy", None) is not None:
        return True
    algorithm = getattr(job, "algorithm", None)
    if algorithm is None:
        return False
    from atoll.learn.local.release import is_private

    up = getattr(job, "up", None)
    stages = () if up is None else tuple(up(phase).events for phase in algorithm.phases)
    return is_private(algorithm) or any(stages)


def scales_in(tree: Any, where: str) -> tuple[int, ...]:
    """Read what a site says of its scales.

    Raises:
        MessageError: they are not small whole numbers.
    """
    given = [] if tree is None else tree
    whole = isinstance(given, list) and len(given) <= MOST_COLUMNS and all(type(n) is int for n in given)
    if not whole or not all(EMPTY <= n <= 400 for n in given):
        raise MessageError("no scales of columns", where=where, remedy="use the same version of Atoll everywhere")
    return tuple(given)


def other_units(scales: Mapping[str, Sequence[int]], names: Sequence[str] = ()) -> list[str]:
    """Return in words which site is far off in which column; of two sites nobody can say which one it is.

    Args:
        scales: site -> its scales; nothing for a site that does not tell them.
        names: of the features.
    """
    told = {site: each for site, each in scales.items() if each}
    widths = {len(each) for each in told.values()}
    if len(told) < 2 or len(widths) != 1:
        return []
    found = []
    for at in range(widths.pop()):
        rows = {site: each[at] for site, each in told.items() if each[at] != EMPTY}
        name = f"column {names[at]!r}" if at < len(names) else f"feature {at + 1}"
        found += _off(rows, name)
    return found


def _off(rows: Mapping[str, int], column: str) -> list[str]:
    if len(rows) == 2 and max(rows.values()) - min(rows.values()) > FAR:
        (one, low), (other, high) = sorted(rows.items(), key=lambda item: item[1])
        return [f"{column} is about 10^{high - low} times larger at site {other!r} than at site {one!r}"]
    if len(rows) < 3:
        return []
    middle = _median(list(rows.values()))
    return [
        f"{column} of site {site!r} is about 10^{abs(scale - middle):g} times {'larger' if scale > middle else 'smaller'} than the median of the sites'"
        for site, scale in rows.items()
        if abs(scale - middle) > FAR
    ]


def _median(values: Sequence[int]) -> float:
    return float(np.median(values))
