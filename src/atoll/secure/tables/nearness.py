"""Pairs of rows of two tables whose points are near to each other: within a radius, or among the k nearest.

Points are whole numbers of a unit. All pairs are compared, so that nothing follows from where points lie: a pair costs the comparison of both differences with a box, and of the squared distance with that of a radius. Of the k nearest
each row of one table has a radius of its own, which is found by halving as in `atoll.query.strategies.hufu`, and stays shared: a pair costs a comparison a step.

Rounding to the unit moves a distance by less than 1.5 units, so what is found is a superset: pairs within the radius, and some that are up to `SLACK` units farther away. Whoever gets them has the exact points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..shares.computation import SharedArray, concatenated
from ..shares.word_circuits import lift_bits, negative_bits
from .joins import attach_rows
from .rearrangement import Rearrangement
from .sorting import SortKey
from .table import SharedTable

if TYPE_CHECKING:
    from ..shares.trio import SharedWords, Trio

__all__ = ["LARGEST_RADIUS", "LEFT", "SLACK", "near_pairs"]

LEFT = "\0left"
"""The column of the left rows' numbers, which stays."""
_RIGHT = "\0right"
SLACK = 4
"""Units by which pairs may be farther away than those that were asked for."""
LARGEST_RADIUS = 1 << 28
_BOX = 1 << 29
"""Units: points that are farther apart in one coordinate are far from each other, and their squares are not looked at."""
_FAR = 1 << 61
Place = tuple[str, str]
"""The columns of a point's coordinates, as numbers."""


async def near_pairs(left: SharedTable, right: SharedTable, at: Place, to: Place, *, radius: int | None = None, k: int = 0, steps: int = 0) -> SharedTable:  # fmt: skip
    """Pairs that are near, as a table with the columns of both, and `LEFT`, the number of the left row in a secret order.

    The parties learn how many there are, up to the next power of two.

    Args:
        left: one table.
        right: the other one.
        at: the point of ``left``.
        to: the point of ``right``.
        radius: units, at most ``2^28``; ``None`` for any distance. Without ``k``.
        k: how many of the nearest rows of ``right`` each row of ``left`` asks for; 0 for all within the radius.
        steps: the search for a row's radius ends at ``2^steps`` units. Rows that have fewer than k others within it have all of them.
    """
    trio, by = left.trio, left.trio.numbers
    left, right = [await table.move_rows(Rearrangement.draw(trio, len(table))) for table in (left, right)]
    n, m = len(left), len(right)
    one, other = np.repeat(np.arange(n), m), np.tile(np.arange(m), n)
    apart = [left.numbers(a)[one] - right.numbers(b)[other] for a, b in zip(at, to, strict=True)]
    both = await trio.conjoin(left.valid[one], right.valid[other])
    if radius is None and not k:
        near = both
    else:
        squares = await _squares(trio, apart, both)
        if k:
            near = await _nearest(trio, squares.reshape(n, m), both, k, steps)
        else:
            within = (await negative_bits(by.constant(np.full(n * m, int(radius or 0) ** 2)) - squares, trio)).inverted()  # fmt: skip
            near = await trio.conjoin(both, within)
    pairs = await _compress_rows(SharedTable({LEFT: trio.constant(one, 32), _RIGHT: trio.constant(other, 32)}, near), "pairs")  # fmt: skip
    columns = {LEFT: pairs[LEFT]}
    for table, name in ((left, LEFT), (right, _RIGHT)):
        keys = [(SortKey(trio.constant(np.arange(len(table)), 32)), SortKey(pairs.words(name)))]
        found, _ = await attach_rows(table, pairs, keys, dict(table.columns))
        columns |= found
    return SharedTable(columns, pairs.valid)


async def _squares(trio: Trio, apart: list[SharedArray], both: SharedWords) -> SharedArray:
    """Squared distances; a large number for pairs that do not count, and for those outside of the box, whose squares might not fit."""
    by, count = trio.numbers, len(both)
    sides = concatenated([side for one in apart for side in (one + _BOX, one * -1 + _BOX)])
    outside = await negative_bits(sides, trio)
    inside = both
    for k in range(2 * len(apart)):
        inside = await trio.conjoin(inside, outside[k * count : (k + 1) * count].inverted())
    whole = concatenated(apart)
    squares = await by.mul(whole, whole)
    total = squares[:count] + squares[count:]
    return await by.mul(await lift_bits(inside, by), total - _FAR) + _FAR


async def _nearest(trio: Trio, squares: SharedArray, both: SharedWords, k: int, steps: int) -> SharedWords:
    """Pairs within the radius of each row that holds k of the others, and what it may be wrong by."""
    by, (n, m) = trio.numbers, squares.shape
    low = by.constant(np.zeros(n, np.int64))
    never: SharedWords | None = None

    async def hold(radius: SharedArray) -> SharedWords:
        limit = await by.mul(radius, radius)
        wide = SharedArray(by, tuple(np.repeat(part[:, None], m, axis=1) for part in limit.parts))
        return (await negative_bits(wide - squares, trio)).inverted()

    for step in reversed(range(steps)):
        counts = (await lift_bits(await hold(low + ((1 << step) - 1)), by)).sum(1)
        few = await negative_bits(counts - k, trio)
        never = few if never is None else await trio.conjoin(never, few)
        low = low + await lift_bits(few, by) * (1 << step)
    near = (await hold(low + SLACK)).with_shape((n * m,))
    if never is not None:  # no radius holds k rows: then all of them may be among the nearest
        every = never.with_parts(*(np.repeat(part, m) for part in never.parts))
        near = near ^ every ^ await trio.conjoin(near, every)
    return await trio.conjoin(both, near)


async def _compress_rows(table: SharedTable, what: str) -> SharedTable:
    """The rows that count, in a secret order, filled up to a power of two, which the parties learn.

    Args:
        table: the table.
        what: what they are, for whoever foretells what is sent; see `Trio.note`.
    """
    trio = table.trio
    moved = await table.move_rows(Rearrangement.draw(trio, len(table)))
    there = (await trio.open(moved.valid)).astype(bool)
    foreseen = trio.foreseen(what)
    if foreseen is not None:
        return moved.take_rows(np.arange(min(len(table), foreseen[0] if foreseen else 64)))
    count = int(there.sum())
    size = min(len(table), 1 << max(0, count - 1).bit_length())
    trio.note(what, size)
    return moved.take_rows(np.concatenate([np.flatnonzero(there), np.flatnonzero(~there)[: size - count]]))
