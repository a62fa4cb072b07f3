"""Tiers of equally fast clients, and their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["cross_tier", "tiers_of"]


def tiers_of(seconds: ArrayLike, tiers: int) -> NDArray[np.int64]:
    """Return the tier of each client, 0 the fastest: ranks by seconds, ties by position, cut into ``tiers`` parts that differ by one client at most."""
    took = np.asarray(seconds, dtype=np.float64)
    tier = np.zeros(len(took), dtype=np.int64)
    for m, members in enumerate(np.array_split(np.argsort(took, kind="stable"), tiers)):
        tier[members] = m
    return tier


def cross_tier(updates: ArrayLike) -> NDArray[np.float64]:
    """Return FedAT's weights of the tiers' models, ``T_{M+1-m} / T`` for tier ``m = 1..M``: the slowest tier's weight is the fastest tier's number of updates.

    Args:
        updates: ``T_m``, number of updates of each tier, fastest first; at least one is positive.
    """
    counts = np.asarray(updates, dtype=np.float64)
    return np.asarray(counts[::-1] / counts.sum())
