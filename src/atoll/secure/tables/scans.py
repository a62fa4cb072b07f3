"""Scans: values carried along the rows of a segment, as sums, as the least so far, or as copies of what its first row has.

A segment begins at a row whose hidden bit is 1; row 0 begins one always. A scan is a tree over all rows, up and down (Brent, Kung 1982): ``2n`` steps in
``2 log2(n)`` levels, which are the same for all segments. Two neighbouring ranges join as ``(f, v) (f', v') = (f or f', v' if f' else v + v')``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..shares.computation import SharedArray
from ..shares.trio import Array, RingNumbers, SharedWords
from ..shares.word_circuits import compare_limbs, interleave, lift_bits, match_limbs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


__all__ = ["copy_words", "find_firsts", "find_lasts", "scan_least", "scan_sums"]


def _levels(n: int) -> Iterator[tuple[Array, Array, bool]]:
    """Rows that join with rows further on, level by level, and whether the first ones reach back to row 0 already."""
    distance = 1
    while distance < n:
        right = np.arange(2 * distance - 1, n, 2 * distance)
        if len(right):
            yield right - distance, right, False
        distance *= 2
    while distance > 1:
        distance //= 2
        right = np.arange(3 * distance - 1, n, 2 * distance)
        if len(right):
            yield right - distance, right, True


async def find_firsts(limbs: Sequence[SharedWords]) -> SharedWords:
    """1 where a row differs from the one before it, and in row 0: where a segment of sorted rows begins."""
    trio, n = limbs[0].trio, len(limbs[0])
    if n < 2:
        return trio.constant(np.ones(n, dtype=np.uint8), 1)
    differ = (await match_limbs([limb[1:] for limb in limbs], [limb[:-1] for limb in limbs])).inverted()
    one = trio.constant(np.ones(1, dtype=np.uint8), 1)
    first, second = (np.concatenate(pair) for pair in zip(one.parts, differ.parts, strict=True))
    return differ.with_parts(first, second)


def find_lasts(firsts: SharedWords) -> SharedWords:
    """1 where a segment ends: in the row before each that begins one, and in the last row."""
    moved = firsts[1:]
    one = firsts.trio.constant(np.ones(min(1, len(firsts)), dtype=np.uint8), 1)
    first, second = (np.concatenate(pair) for pair in zip(moved.parts, one.parts, strict=True))
    return firsts.with_parts(first, second)


def _writable(x: SharedWords) -> SharedWords:
    return x.with_parts(x.parts[0].copy(), x.parts[1].copy())


def _put(x: SharedWords, at: Array, new: SharedWords) -> None:
    for part, made in zip(x.parts, new.parts, strict=True):
        part[at] = made


async def copy_words(
    firsts: SharedWords, columns: Sequence[SharedWords], *, cleared: bool = False
) -> list[SharedWords]:
    """Each row's words as those of the first row of its segment.

    Args:
        firsts: where segments begin.
        columns: words.
        cleared: whether they are 0 already in rows that begin no segment; this saves a message.
    """
    trio, n = firsts.trio, len(firsts)
    if n < 2 or not columns:
        return list(columns)
    # Words of other rows are 0, so that a copy is the XOR of all rows from the first one on.
    alone = columns if cleared else await trio.conjoin_all([(firsts.spread(x.bits), x) for x in columns])
    values = [_writable(x) for x in alone]
    passed = _writable(firsts.inverted())
    for left, right, reaches in _levels(n):
        gate = passed[right]
        pairs = [(gate.spread(x.bits), x[left]) for x in values]
        if not reaches:
            pairs.append((gate, passed[left]))
        made = await trio.conjoin_all(pairs)
        for x, more in zip(values, made, strict=False):
            _put(x, right, x[right] ^ more)
        if not reaches:
            _put(passed, right, made[-1])
    return values


async def scan_least(firsts: SharedWords, columns: Sequence[SharedWords]) -> list[SharedWords]:
    """The least word of each column among the rows of a segment so far; words have no sign."""
    return [await _scan_one(firsts, x) for x in columns]


async def _scan_one(firsts: SharedWords, x: SharedWords) -> SharedWords:
    trio, begun = firsts.trio, _writable(firsts)
    wide = 8 * x.parts[0].dtype.itemsize
    least = _writable(interleave(x.widened(wide)))
    for left, right, _ in _levels(len(firsts)):
        one, other, f, g = least[left], least[right], begun[left], begun[right]
        # Where two are equal, either will do.
        smaller = await compare_limbs([one], [other], distinct=True)
        earlier, both = await trio.conjoin_all([(smaller, g.inverted()), (f, g)])
        (change,) = await trio.conjoin_all([(earlier.spread(wide), one ^ other)])
        _put(least, right, other ^ change)
        _put(begun, right, f ^ g ^ both)
    return interleave(least).widened(x.bits)


async def scan_sums(firsts: SharedWords, columns: Sequence[SharedArray]) -> list[SharedArray]:
    """The sum of each column over the rows of a segment so far, this one included. All columns are of one computation."""
    if not columns or len(firsts) < 2:
        return list(columns)
    by: RingNumbers = columns[0].by  # type: ignore[assignment] # numbers of three parties
    passed = await lift_bits(firsts.inverted(), by)
    # Row 0 of the rows is what a range passes on, the others are its sums.
    parts = [np.stack([passed.parts[i], *(x.parts[i] for x in columns)]) for i in range(2)]
    for left, right, reaches in _levels(len(firsts)):
        begin = 1 if reaches else 0
        gate = _taken(by, parts, slice(0, 1), right, len(columns) + 1 - begin)
        made = await by.mul(gate, _taken(by, parts, slice(begin, None), left))
        for part, more in zip(parts, made.parts, strict=True):
            part[begin:, right] = (
                by.domain.add(part[begin:, right], more) if begin else _joined(by, part[:, right], more)
            )
    return [SharedArray(by, (parts[0][i], parts[1][i])) for i in range(1, len(columns) + 1)]


def _taken(by: RingNumbers, parts: Sequence[Array], rows: slice, at: Array, times: int = 1) -> SharedArray:
    return SharedArray(by, tuple(np.repeat(part[rows, at], times, axis=0) for part in parts))


def _joined(by: RingNumbers, here: Array, more: Array) -> Array:
    """What both pass on is the product; sums add up."""
    return np.concatenate([more[:1], by.domain.add(here[1:], more[1:])])
