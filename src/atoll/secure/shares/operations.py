"""What follows from sums and products of shares: products, truncation, comparisons, choices, and numbers as bits.

``await less(x, y)`` and the like take arrays of one computation and return shared arrays of it, with 0 for no and 1 for yes. Comparisons mask the difference with
a random number whose bits are shared, open the masked number, and subtract the mask from it bit by bit (Damgård et al. 2006): ``log2 k + 3`` rounds of
messages, for whole arrays at once.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

from . import word_circuits
from .authenticated import AuthenticatedComputation
from .computation import AdditiveComputation, Computing, SharedArray, concatenated
from .domain import Field, WordRing
from .replicated import ReplicatedComputation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from .domain import Array

__all__ = [
    "all_of",
    "bits_of",
    "borrow",
    "difference",
    "difference_shared",
    "dot",
    "equal",
    "less",
    "mul",
    "negative",
    "number_of",
    "one",
    "opened",
    "select",
    "sum_of",
    "truncate",
    "xor",
    "xor_public",
]


# ------------------------------------------------------------------ circuits over shared bits, for whole arrays: rows are the bits of numbers, lowest first
#
# The same code serves bits that are packed in words, where addition is XOR, and bits that are numbers 0 and 1, where ``a XOR b = a + b - 2ab``.


_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ENTRIES = 1 << 13
"""Entries of authenticated shares that are compared at once."""


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


# ------------------------------------------------------------------ what follows from sums and products of shares
#
# What follows from sums and products of shares: products, truncation, comparisons, choices, and numbers as bits.


async def mul(x: SharedArray, y: SharedArray) -> SharedArray:
    """``x y``, entry by entry; the shapes may broadcast."""
    shape = np.broadcast_shapes(x.shape, y.shape)
    a, b = (SharedArray(v.by, tuple(np.broadcast_to(part, shape) for part in v.parts)) for v in (x, y))
    return await x.by.mul(a, b)


async def dot(x: SharedArray, y: SharedArray) -> SharedArray:
    """The matrix product ``x @ y``."""
    if len(x.shape) != 2 or len(y.shape) != 2 or x.shape[1] != y.shape[0]:
        raise ConfigError(f"shapes {x.shape} and {y.shape}", where="dot", remedy="multiply (n, k) by (k, m)")
    return await x.by.dot(x, y)


async def opened(x: SharedArray) -> Any:
    """The values, shown to every party, as signed numbers."""
    return x.by.domain.signed(await x.by.reveal(x))


async def select(condition: SharedArray, x: SharedArray, y: SharedArray) -> SharedArray:
    """``x`` where the condition is 1, ``y`` where it is 0: ``y + c (x - y)``."""
    return y + await mul(condition, x - y)


async def negative(x: SharedArray) -> SharedArray:
    """1 where ``x < 0``.

    In a ring that is the top bit. In a field it is the lowest bit of ``2x``, since 2x wraps around an odd prime (Nishide, Ohta 2007).
    """
    by = x.by
    if isinstance(by, ReplicatedComputation):
        _require_ring(by)
        return await word_circuits.lift_bits(await word_circuits.negative_bits(x, await by.trio()), by)
    if isinstance(by, AuthenticatedComputation) and math.prod(x.shape) > _ENTRIES:
        return await _in_blocks(negative, x)
    if isinstance(by.domain, Field):
        shown, mask = await _masked(x + x)
        wrapped = await borrow(shown, mask)
        odd = await xor(xor_public(mask[0], shown[0]), wrapped)
        return await by.lifted(odd, x.shape)
    shown, mask = await _masked(x)
    carried = await borrow(shown[:-1], mask[:-1])
    top = await xor(xor_public(mask[-1], shown[-1]), carried)
    return await by.lifted(top, x.shape)


async def less(x: SharedArray, y: SharedArray) -> SharedArray:
    """1 where ``x < y``, for signed numbers whose difference is below half of the domain's order."""
    return await negative(x - y)


async def equal(x: SharedArray, y: SharedArray) -> SharedArray:
    """1 where ``x = y``: every bit of the masked difference is the mask's."""
    difference, by = x - y, x.by
    if isinstance(by, ReplicatedComputation):
        rows = await _sum_of_parts(difference)
        ones = by.bitwise.constant(one(by.bitwise, rows.shape))
        return await by.lifted(await all_of(ones - rows), difference.shape)
    if isinstance(by, AuthenticatedComputation) and math.prod(difference.shape) > _ENTRIES:
        return await _in_blocks(lambda part: equal(part, by.constant(np.zeros(part.shape, dtype=np.int64))), difference)
    shown, mask = await _masked(difference)
    ones = by.bitwise.constant(one(by.bitwise, mask.shape))
    return await by.lifted(await all_of(ones - xor_public(mask, shown)), difference.shape)


async def _in_blocks(compare: Callable[[SharedArray], Awaitable[SharedArray]], x: SharedArray) -> SharedArray:
    """A comparison of few entries at a time: a bit is a number with a code here, so one takes 10 kB of what is dealt and opened."""
    flat = x.reshape(-1)
    made = [await compare(flat[at : at + _ENTRIES]) for at in range(0, len(flat), _ENTRIES)]
    return concatenated(made).reshape(*x.shape)


async def bits_of(x: SharedArray) -> SharedArray:
    """The bits of ``x`` as numbers 0 and 1, lowest first, along a new first axis: ``(k, *shape)``. Negative numbers are ``order + x``."""
    by = x.by
    if isinstance(by, ReplicatedComputation):
        rows = await _sum_of_parts(x)
    elif isinstance(by.domain, Field):
        rows = await _bits_in_a_field(x, by.domain)
    else:
        rows = await difference(*await _masked(x))
    if rows.by is by:
        return rows.reshape(len(rows), *x.shape)
    flat = int(np.prod(x.shape, dtype=int))
    numbers = [await by.lifted(rows[i], (1, flat)) for i in range(len(rows))]
    return concatenated(numbers).reshape(len(rows), *x.shape)


def number_of(bits: SharedArray) -> SharedArray:
    """The number of bits that lie along the first axis: ``sum_i 2^i b_i``."""
    ring = bits.by.arithmetic
    weights = np.array([pow(2, i, ring.order) for i in range(len(bits))], dtype=np.uint64)
    column = weights.reshape(-1, *[1] * (len(bits.shape) - 1))
    return SharedArray(bits.by, tuple(ring.mul(part, np.broadcast_to(column, part.shape)) for part in bits.parts)).sum(
        0
    )


async def truncate(x: SharedArray, by: int) -> SharedArray:
    """``x / 2^by`` rounded down, for signed ``|x| < order / 4``.

    Additive shares over a ring use a dealt pair ``(r, r >> by)``, for one opening (Escudero et al. 2020). There the result may be 1 too large: the carry of the bits
    that are cut off is not computed. Elsewhere the result is exact, from the bits of ``x``.

    Raises:
        ConfigError: ``by`` is not between 1 and the bits of the domain less 2.
    """
    computation, k = x.by, x.by.domain.bits
    if not 1 <= by <= k - 2:
        raise ConfigError(f"by={by}", where="truncate", remedy=f"cut off 1 to {k - 2} bits")
    offset = 1 << (k - 2)
    if type(computation) is AdditiveComputation and isinstance(computation.domain, WordRing):
        rows = await computation.dealer.get("cut", x.shape, by=by)
        r, low, top = (SharedArray(computation, parts) for parts in rows)
        c = await computation.open(x + np.uint64(offset) + r)
        shown = (c & np.uint64((1 << (k - 1)) - 1)) >> np.uint64(by)
        above = c >> np.uint64(k - 1)
        # x + offset < 2^(k-1), so the top bits of c and r differ exactly where the lower bits have carried.
        carried = top + above - top * above * 2
        return carried * np.uint64(1 << (k - 1 - by)) + shown - low - np.uint64(offset >> by)
    bits = await bits_of(x + np.uint64(offset))
    return number_of(bits[by:]) - np.uint64(offset >> by)


async def _masked(x: SharedArray) -> tuple[Array, SharedArray]:
    """The bits of ``x + r``, opened, and those of ``r``: rows of the bitwise computation, lowest first."""
    shown, mask = await _shown_with_mask(x)
    return _rows(x.by, shown), mask


async def _shown_with_mask(x: SharedArray) -> tuple[Array, SharedArray]:
    """``x + r``, opened, as a row, and the bits of ``r``."""
    by = x.by
    if not isinstance(by, AdditiveComputation):
        raise ConfigError(
            f"{type(by).__name__} has no masks", where="less", remedy="use additive, authenticated or Shamir shares"
        )
    r, bits = await by.masks(x.shape)
    return np.ravel(await by.open(x + r)), bits


def _rows(by: Computing, numbers: Array) -> Array:
    places = np.arange(by.domain.bits, dtype=np.uint64)[:, None]
    return by.bitwise.public_bits((numbers[None] >> places) & np.uint64(1))


async def _bits_in_a_field(x: SharedArray, field: Field) -> SharedArray:
    """``x = c - r``, or ``c + p - r`` if the masked number has wrapped around the prime."""
    c, mask = await _shown_with_mask(x)
    plain, more = _rows(x.by, c), _rows(x.by, np.add(c, np.uint64(field.prime)))
    wrapped = await borrow(plain, mask)
    rows = []
    for i in range(field.bits):
        change = field.sub(more[i], plain[i])
        rows.append((wrapped * change + plain[i]).reshape(1, -1))
    # Bits above the field's need no row: what remains after the subtraction is below the prime.
    return await difference_shared(concatenated(rows), mask)


async def _sum_of_parts(x: SharedArray) -> SharedArray:
    """The bits of a replicated number: its three parts are known to two parties each, so their bits are shared already, and are added."""
    by = _require_ring(x.by)
    a, b, c = by.own_parts(x, bits=True)
    return await sum_of(a, b, c)


def _require_ring(by: Computing) -> ReplicatedComputation:
    if not isinstance(by, ReplicatedComputation) or by.bitwise is by:
        raise ConfigError(f"comparisons over {by.domain}", where="ReplicatedComputation", remedy="use a WordRing")
    return by
