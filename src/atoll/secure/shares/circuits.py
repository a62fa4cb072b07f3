"""Circuits over shared bits, for whole arrays: rows are the bits of numbers, lowest first.

The same code serves bits that are packed in words, where addition is XOR, and bits that are numbers 0 and 1, where ``a XOR b = a + b - 2ab``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .shared_array import Computing, SharedArray, concatenated

if TYPE_CHECKING:
    from .domain import Array

__all__ = ["all_of", "borrow", "difference", "difference_shared", "one", "sum_of", "xor", "xor_public"]

_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)


def one(by: Computing, shape: tuple[int, ...]) -> Array:
    """Ones: the number 1, or a word of ones."""
    return np.full(shape, _ALL if by.domain.two_is_zero else np.uint64(1), dtype=np.uint64)


async def xor(a: SharedArray, b: SharedArray) -> SharedArray:
    """``a XOR b``; a product unless addition is XOR."""
    if a.by.domain.two_is_zero:
        return a + b
    return a + b - await a.by.mul(a, b) * 2


def xor_public(a: SharedArray, u: Array) -> SharedArray:
    """``a XOR u`` for public bits: no message."""
    if a.by.domain.two_is_zero:
        return a + u
    return a + u - a * u * 2


async def all_of(rows: SharedArray) -> SharedArray:
    """The product of all rows, as a tree."""
    while len(rows) > 1:
        half = len(rows) // 2
        made = await rows.by.mul(rows[:half], rows[half : 2 * half])
        rows = made if len(rows) % 2 == 0 else concatenated([made, rows[-1:]])
    return rows[0]


async def borrow(u: Array, r: SharedArray) -> SharedArray:
    """1 where ``u < r``: the borrow of ``u - r`` out of the top, for public ``u``.

    A bit position generates a borrow if ``u = 0, r = 1`` and passes one on if ``u = r``. Pairs of neighbours join to ``g = g_high + p_high g_low`` and
    ``p = p_high p_low``, level by level.
    """
    ones = r.by.constant(one(r.by, r.shape))
    g, p = r * r.by.arithmetic.sub(one(r.by, u.shape), u), ones - xor_public(r, u)
    while len(g) > 1:
        half = len(g) // 2
        low, high = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        made = await r.by.mul(concatenated([p[high], p[high]]), concatenated([g[low], p[low]]))
        joined, passed = g[high] + made[:half], made[half:]
        if len(g) % 2:
            joined, passed = concatenated([joined, g[-1:]]), concatenated([passed, p[-1:]])
        g, p = joined, passed
    return g[0]


async def _prefixes(g: SharedArray, p: SharedArray) -> SharedArray:
    """What each position hands on to the next one, given what each generates and passes on (Kogge, Stone 1973)."""
    distance = 1
    while distance < len(g):
        above, below = slice(distance, None), slice(0, len(g) - distance)
        made = await g.by.mul(concatenated([p[above], p[above]]), concatenated([g[below], p[below]]))
        half = len(g) - distance
        g = concatenated([g[:distance], g[above] + made[:half]])
        p = concatenated([p[:distance], made[half:]])
        distance *= 2
    return g


def _shifted(rows: SharedArray) -> SharedArray:
    """Rows moved up by one place; the lowest becomes 0."""
    nothing = rows.by.constant(np.zeros_like(rows.parts[0][:1]))
    return concatenated([nothing, rows[:-1]])


async def difference(u: Array, r: SharedArray) -> SharedArray:
    """The bits of ``u - r`` modulo ``2^rows``, for public ``u``."""
    ones = r.by.constant(one(r.by, r.shape))
    apart = xor_public(r, u)
    borrows = await _prefixes(r * r.by.arithmetic.sub(one(r.by, u.shape), u), ones - apart)
    return await xor(apart, _shifted(borrows))


async def difference_shared(u: SharedArray, r: SharedArray) -> SharedArray:
    """The bits of ``u - r`` modulo ``2^rows``, both shared."""
    both = await r.by.mul(u, r)
    apart = u + r if r.by.domain.two_is_zero else u + r - both * 2
    ones = r.by.constant(one(r.by, r.shape))
    borrows = await _prefixes(r - both, ones - apart)
    return await xor(apart, _shifted(borrows))


async def sum_of(a: SharedArray, b: SharedArray, c: SharedArray) -> SharedArray:
    """The bits of ``a + b + c`` modulo ``2^rows``, where addition is XOR: three become two (carry-save), then carries are looked ahead."""
    by = a.by
    half = a + b
    carry = _shifted(await by.mul(half, b + c) + b)
    total = half + c
    generated = await by.mul(total, carry)
    return total + carry + _shifted(await _prefixes(generated, total + carry))
