"""Where clusters begin: centres that parties propose, or draws around the common mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.fitting.rows import PartyRows

__all__ = ["distances", "drawn", "local_centres", "merged", "plus_plus", "spread_out"]

Points = NDArray[np.float64]
_LOCAL_ROUNDS = 100


def distances(x: Points, centres: Points) -> Points:
    """Squared distances, ``(rows, centres)``."""
    found = (x * x).sum(axis=1)[:, None] - 2 * x @ centres.T + (centres * centres).sum(axis=1)
    return np.asarray(np.maximum(found, 0.0))


def plus_plus(x: Points, weights: Points, k: int, draw: np.random.Generator) -> Points:
    """Seeds by k-means++ (Arthur and Vassilvitskii 2007): each with a chance proportional to weight times squared distance."""
    chosen = [x[draw.choice(len(x), p=weights / weights.sum())]]
    while len(chosen) < k:
        near = distances(x, np.array(chosen)).min(axis=1) * weights
        if near.sum() <= 0:
            near = weights
        chosen.append(x[draw.choice(len(x), p=near / near.sum())])
    return np.array(chosen)


def merged(x: Points, weights: Points, centres: Points) -> Points:
    """The centres after Lloyd's iterations over weighted points."""
    for _ in range(_LOCAL_ROUNDS):
        member = (distances(x, centres).argmin(axis=1)[:, None] == np.arange(len(centres))) * weights[:, None]
        counts = member.sum(axis=0)
        moved = np.where(counts[:, None] > 0, member.T @ x / np.maximum(counts, 1e-300)[:, None], centres)
        if np.array_equal(moved, centres):
            break
        centres = moved
    return centres


def local_centres(rows: PartyRows, k: int, draw: np.random.Generator) -> dict[str, NDArray[Any]]:
    """A party's own clusters: centres of at least ``min_count`` rows each, and their sizes. Smaller ones are not told."""
    x = rows.x
    k = min(k, len(x) // max(1, rows.least))
    if k < 1:
        return {"centres": np.zeros((0, x.shape[1])), "sizes": np.zeros(0)}
    centres = merged(x, np.ones(len(x)), plus_plus(x, np.ones(len(x)), k, draw))
    sizes = np.bincount(distances(x, centres).argmin(axis=1), minlength=k).astype(np.float64)
    keep = sizes >= max(1, rows.least)
    return {"centres": centres[keep], "sizes": sizes[keep]}


def _together(told: Sequence[Mapping[str, NDArray[Any]]], k: int, where: str) -> tuple[Points, Points]:
    points = np.concatenate([np.asarray(one["centres"], dtype=np.float64) for one in told])
    sizes = np.concatenate([np.asarray(one["sizes"], dtype=np.float64) for one in told])
    if len(points) < k:
        raise DataError(
            f"the parties propose {len(points)} centres for {k} clusters",
            where=where,
            remedy="use fewer clusters, a smaller min_count, or start_from='moments'",
        )
    return points, sizes


def drawn(told: Sequence[Mapping[str, NDArray[Any]]], k: int, draw: np.random.Generator, where: str) -> Points:
    """Seeds from proposals: k-means of the proposed centres, each weighted by its rows.

    Raises:
        DataError: there are fewer proposals than clusters.
    """
    points, sizes = _together(told, k, where)
    return merged(points, sizes, plus_plus(points, sizes, k, draw))


def spread_out(told: Sequence[Mapping[str, NDArray[Any]]], k: int, where: str) -> Points:
    """The server's half of k-FED (Dennis, Li and Smith 2021, algorithm 2): seeds far from each other among the proposals, then one step of Lloyd's.

    The first seeds are the centres of the party that proposes most; each further one is the proposal farthest from those before. The paper averages the proposals of a
    cluster without weights, and so do we.

    Raises:
        DataError: there are fewer proposals than clusters.
    """
    points, _ = _together(told, k, where)
    seeds = max((np.asarray(one["centres"], dtype=np.float64) for one in told), key=len)[:k]
    while len(seeds) < k:
        far = distances(points, seeds).min(axis=1).argmax()
        seeds = np.concatenate([seeds, points[far : far + 1]])
    nearest = distances(points, seeds).argmin(axis=1)
    return np.array([points[nearest == c].mean(axis=0) if (nearest == c).any() else seeds[c] for c in range(k)])
