"""Circuits over wires: sums, products, comparisons and choices.

Numbers are ``(bits, rows)``, lowest bit first, and all rows go at once. ANDs for numbers of k bits, a row:

| circuit | ANDs | layers |
| --- | --- | --- |
| `add_wires`, `subtract_wires` | k - 1 | k - 1 |
| `less_wires` | k, or about 2 k in blocks | k, or those of a block and log k |
| `equal_wires` | k - 1 | log k |
| `choose_wires` | k | 1 |
| `multiply_wires` | k^2 | k^2 / 2 |
| `scale_wires`, by a public factor of d digits that are not 0 | (d - 1) k | (d - 1) k |

A carry costs one AND: ``c' = c ^ ((x ^ c) & (y ^ c))`` (Boyar, Peralta, Pochuev 2000). A comparison of k bits in one block is the borrow of ``x - y``; gates whose every layer is a message
(`Gates.block`) compare blocks beside each other and join them as a tree.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .wires import Wires, join_wires

if TYPE_CHECKING:
    pass

__all__ = [
    "add_wires",
    "all_wires",
    "blank_rows",
    "choose_wires",
    "equal_wires",
    "larger_wires",
    "less_wires",
    "multiply_wires",
    "scale_wires",
    "subtract_wires",
]


async def conjoin_spread(bit: Wires, x: Wires) -> Wires:
    """AND of one bit a row, ``(rows,)``, with each bit of numbers ``(bits, rows)``."""
    return await x.by.conjoin(bit.spread(*x.shape), x)


async def add_wires(x: Wires, y: Wires, *, bits: int | None = None) -> Wires:
    """``x + y`` modulo ``2^bits``, by default of the bits of the longer one; missing bits are 0."""
    long, short = (x, y) if len(x) >= len(y) else (y, x)
    width, rows, carry = len(long) if bits is None else bits, [], None
    for i in range(width):
        last = i + 1 == width
        if i >= len(long):
            rows.append(x.by.zeros(x.shape[1:]) if carry is None else carry)
            carry = None
        elif i >= len(short):
            rows.append(long[i] if carry is None else long[i] ^ carry)
            carry = None if carry is None or last else await x.by.conjoin(long[i], carry)
        else:
            a, b = long[i], short[i]
            rows.append(a ^ b if carry is None else a ^ b ^ carry)
            if last:
                break
            carry = await x.by.conjoin(a, b) if carry is None else carry ^ await x.by.conjoin(a ^ carry, b ^ carry)
    return _stack(rows)


async def subtract_wires(x: Wires, y: Wires) -> Wires:
    """``x - y`` modulo ``2^k``."""
    rows, borrow = [], None
    for i in range(len(x)):
        a, b = x[i], y[i]
        rows.append(a ^ b if borrow is None else a ^ b ^ borrow)
        if i + 1 < len(x):
            borrow = await _borrow(a, b, borrow)
    return _stack(rows)


async def _borrow(a: Wires, b: Wires, borrow: Wires | None) -> Wires:
    """What ``a - b - borrow`` borrows: the majority of ``~a``, ``b`` and the borrow."""
    if borrow is None:
        return await a.by.conjoin(~a, b)
    return borrow ^ await a.by.conjoin(~a ^ borrow, b ^ borrow)


async def multiply_wires(x: Wires, y: Wires) -> Wires:
    """``x y`` modulo ``2^k``, of two numbers of k bits."""
    bits = len(x)
    total = await conjoin_spread(y[0], x)
    for i in range(1, bits):
        raised = await conjoin_spread(y[i], x[: bits - i])
        total = join_wires([total[:i], await add_wires(total[i:], raised)])
    return total


async def scale_wires(x: Wires, factor: int) -> Wires:
    """``factor x`` modulo ``2^k``, for a public factor: a sum or difference for each digit of its signed binary form without neighbours (Reitwiesner 1960)."""
    bits, left = len(x), factor % (1 << len(x))
    total = x.by.zeros(x.shape)
    empty, place = True, 0
    while left and place < bits:
        digit = (2 - left % 4) if left % 2 else 0
        left = (left - digit) // 2
        if digit:
            raised = join_wires([x.by.zeros((place, *x.shape[1:])), x[: bits - place]])
            total = raised if empty and digit > 0 else await (add_wires if digit > 0 else subtract_wires)(total, raised)
            empty = False
        place += 1
    return total


async def less_wires(x: Wires, y: Wires, *, signed: bool = False) -> Wires:
    """1 where ``x < y``, ``(rows,)``; ``signed`` for numbers in two's complement."""
    if signed:
        top = np.arange(len(x)) == len(x) - 1
        x, y = x ^ top[:, None], y ^ top[:, None]
    gates, k = x.by, len(x)
    step = min(gates.block, k)
    count = -(-k // step)
    # Bit j of all blocks at once; only the last block may be shorter.
    borrows = await gates.conjoin(~x[::step], y[::step])
    same = ~(x ^ y)
    equal = same[step::step]
    for j in range(1, step):
        a, b, old = x[j::step], y[j::step], borrows[: len(range(j, k, step))]
        e, kept = same[step + j :: step], equal[: len(range(step + j, k, step))]
        made = await gates.conjoin(join_wires([~a ^ old, kept]), join_wires([b ^ old, e]))
        borrows = join_wires([old ^ made[: len(old)], borrows[len(old) :]])
        equal = join_wires([made[len(old) :], equal[len(kept) :]])
    while count > 1:
        # The higher block decides, unless it is equal. The lowest is never asked whether it is.
        half = count // 2
        low, high = borrows[: 2 * half : 2], borrows[1 : 2 * half : 2]
        decides, passes = equal[: 2 * half : 2], equal[1 : 2 * half - 1 : 2]
        made = await gates.conjoin(join_wires([decides, decides[1:]]), join_wires([low, passes]))
        borrows = join_wires([high ^ made[:half], borrows[2 * half :]])
        equal = join_wires([made[half:], equal[2 * half - 1 :]])
        count = len(borrows)
    return borrows[0]


async def all_wires(bits: Wires) -> Wires:
    """The AND along the first axis, as a tree."""
    while len(bits) > 1:
        half = len(bits) // 2
        bits = join_wires([await bits.by.conjoin(bits[:half], bits[half : 2 * half]), bits[2 * half :]])
    return bits[0]


async def equal_wires(x: Wires, y: Wires) -> Wires:
    """1 where ``x = y``, ``(rows,)``."""
    return await all_wires(~(x ^ y))


async def choose_wires(bit: Wires, x: Wires, y: Wires) -> Wires:
    """``x`` where the bit is 1, else ``y``."""
    return y ^ await conjoin_spread(bit, x ^ y)


async def larger_wires(x: Wires, y: Wires) -> Wires:
    """The larger of two numbers without sign."""
    return await choose_wires(await less_wires(x, y), y, x)


async def blank_rows(bit: Wires, x: Wires) -> Wires:
    """Zeros where the bit is 0: a filter that drops no row."""
    return await conjoin_spread(bit, x)


def _stack(rows: list[Wires]) -> Wires:
    return Wires(rows[0].by, np.stack([row.data for row in rows], axis=1))
