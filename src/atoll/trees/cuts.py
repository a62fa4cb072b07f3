"""Common bins: values of features as whole numbers that have their order, and how many of them lie in which intervals.

A single-precision number with its sign bit turned is a whole number of 32 bits that has the same order. Parties count how many of their values begin with which bits: all values
by the first 12, then those in the intervals that the server asks for, by 5 more at a time. The server sees counts, which a secure reducer can add up, and finds with them
the values that become cuts (`atoll.trees.search`). It learns these values, and how many rows lie near them; features that are missing are not counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .kernel import place_in_bins

__all__ = ["BITS", "FIRST", "STEP", "binned", "count_parts", "ordered", "value_of"]

BITS, FIRST, STEP = 32, 12, 5
"""Bits of a number, those of the first contact, and those that each later one adds."""


def ordered(x: NDArray[Any]) -> NDArray[np.uint32]:
    """Whole numbers in the order of single-precision ``x``; zeros of both signs are one."""
    bits = (x.astype(np.float32) + np.float32(0.0)).view(np.uint32)
    return np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31))


def value_of(key: NDArray[np.uint32]) -> NDArray[np.float32]:
    """The number whose place in the order is ``key``."""
    bits = np.where(key >> 31, key & np.uint32(0x7FFFFFFF), ~key)
    return bits.astype(np.uint32).view(np.float32)


def count_parts(x: NDArray[Any], starts: NDArray[np.uint32], bits: NDArray[np.uint32]) -> NDArray[np.int64]:
    """How many values of each feature lie in which parts of intervals.

    Args:
        x: ``(rows, features)``.
        starts: the lowest number of each interval, ``(features, intervals)``.
        bits: how many bits the numbers of an interval share; 0 for no interval. If none is given, all numbers are counted by their first 12 bits.

    Returns:
        ``(features, 4096)``, or ``(features, intervals * 32)``.
    """
    known = (ordered(column[~np.isnan(column)]) for column in x.astype(np.float32, copy=False).T)
    if not bits.any():
        return np.stack([np.bincount(column >> (BITS - FIRST), minlength=1 << FIRST) for column in known]).astype(
            np.int64
        )
    made = np.zeros((x.shape[1], starts.shape[1], 1 << STEP), np.int64)
    parts = np.arange(1 << STEP, dtype=np.uint32)
    for f, column in enumerate(known):
        column.sort()
        asked = np.flatnonzero(bits[f])
        width = np.uint32(BITS) - bits[f, asked]
        edges = starts[f, asked, None] + (parts << (width - np.uint32(STEP))[:, None])
        last = starts[f, asked] + np.uint32((1 << width.astype(np.uint64)) - np.uint64(1))
        places = np.column_stack((np.searchsorted(column, edges), np.searchsorted(column, last, side="right")))
        made[f, asked] = np.diff(places, axis=1)
    return made.reshape(x.shape[1], -1)


def binned(x: NDArray[Any], cuts: list[NDArray[np.float32]], missing: int = -1) -> Any:
    """The bin of each value, ``(rows, features)``: the number of cuts that are not above it, or ``missing`` for NaN."""
    made = np.empty(x.shape, np.uint8 if missing < 256 else np.uint16)
    for f, mine in enumerate(cuts):
        place_in_bins(x[:, f].astype(np.float32), mine, made, f, missing)
    return made
