"""The heaviest matching of two tables' rows: an auction under shares (Bertsekas 1988), where rows of one table bid for rows of the other.

Weights are whole numbers. Each row i of the one side holds at most one row j of the other, whose price ``p_j`` only rises. A row that holds none bids for the one that is worth most to it, ``w_ij - p_j``, or drops
out, if that is nothing. It raises the price until the second best (or nothing) would be as good, and by ``epsilon`` more. Then it holds to ``epsilon``: no other row is worth more to it by more than that. If in the
end rows of the other side are left with a price above 0, the sides change, and those rows bid for partners, at their profits (Bertsekas, Castañon 1992). Both together hold to ``epsilon`` on either side, so by
duality the matching weighs at most ``(n + m) epsilon`` less than the heaviest one. Weights are multiplied by ``n + m + 1``, and the last ``epsilon`` is 1: then it is the heaviest one. Earlier
auctions at larger ``epsilon``, each an eighth of the last, find prices near the final ones.

Weights, prices, bids and who holds whom stay shared. The rows of both tables must be in an order that nobody knows (`atoll.secure.tables.Rearrangement`): the parties open, after each round, which of these rows would bid,
and at the beginning the power of two above the largest weight. So they see how long the auction takes, and not whose. A round of few rows is about 30 messages, one of many about 45, which compare
the best of groups of columns in place of all pairs: a seventh of the comparisons, for 97 values. Numbers are of 32 bits where the weights allow it.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, cast

import numpy as np

from atoll.core.errors import ConfigError

from ..shares.computation import SharedArray, concatenated
from ..shares.trio import Array, SharedWords, join_words
from ..shares.word_circuits import lift_bits, negative_bits, numbers_to_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..shares.trio import RingNumbers, Trio

__all__ = ["MOST_SIDE", "match_rows"]

MOST_SIDE = 512
"""Most rows of either side."""
_PAIRS = 1 << 18
"""Pairs of values that are compared at once: rows that would bid wait for the next round."""
_FEW_PAIRS = 1 << 16
"""Pairs of values up to which comparing all of them takes less than the messages of a second level."""
_FIRST = 8
"""Bits by which the first epsilon is below the largest weight: from 3 to 9, with this one the longest auctions were shortest."""
_STEP = 3
"""Bits by which epsilon shrinks from one auction to the next."""
_GUESSED_BITS = 20
"""Of the largest weight times ``n + m + 1``, as long as nobody has seen it."""


async def match_rows(trio: Trio, weights: SharedArray) -> SharedWords:
    """The heaviest matching.

    Args:
        trio: the three parties.
        weights: whole numbers, shape ``(n, m)``; pairs of weight 0 or less are never matched. Both sides must be shuffled. ``8 (n + m + 1)`` times the largest must be below ``2^62``.

    Returns:
        A bit for each pair, shape ``(n, m)``: at most one in each row and column.

    Raises:
        ConfigError: a side has more than 512 rows.
    """
    n, m = weights.shape
    if max(n, m) > MOST_SIDE:
        raise ConfigError(f"a matching of {n:,} and {m:,} rows", where="match_rows", remedy=f"use at most {MOST_SIDE} rows a side")  # fmt: skip
    some = await negative_bits(weights * -1, trio)
    heavy = await trio.numbers.mul(await lift_bits(some, trio.numbers), weights) * (n + m + 1)
    bits = await _bits_of_largest(trio, heavy)
    # Values lie within 2^(bits + 1) of 0, so their differences fit; the parts modulo 2^64 are also parts modulo 2^32.
    narrow = trio.places if bits + 4 <= trio.places.domain.bits else trio.numbers
    auction = _Auction(
        trio, SharedArray(narrow, tuple(narrow.domain.add(part, np.zeros_like(part)) for part in heavy.parts))
    )
    if bits:
        await auction.run([*range(max(0, bits - _FIRST), 0, -_STEP), 0])
    return await trio.conjoin(auction.held, some)


async def _bits_of_largest(trio: Trio, numbers: SharedArray) -> int:
    """Bits of the largest of numbers that are 0 or more, which all learn: the OR of all, from the highest bit down."""
    words = await numbers_to_words(numbers.reshape(-1), trio)
    while len(words) > 1:
        half = len(words) // 2
        a, b = words[:half], words[half : 2 * half]
        words = join_words([a ^ b ^ await trio.conjoin(a, b), words[2 * half :]])
    for step in (1, 2, 4, 8, 16, 32):
        lower = words.shifted(-step, 64)
        words = words ^ lower ^ await trio.conjoin(words, lower)
    found = int((await trio.open(words))[0]).bit_length()
    foreseen = trio.foreseen("weights")
    if foreseen is not None:
        return foreseen[0] if foreseen else _GUESSED_BITS
    trio.note("weights", found)
    return found


class _Auction:
    """Prices, and who holds whom.

    Args:
        trio: the three parties.
        weights: 0 or more, ``(n, m)``.
    """

    def __init__(self, trio: Trio, weights: SharedArray) -> None:
        self._trio, self._by, self._weights = trio, cast("RingNumbers", weights.by), weights
        n, m = weights.shape
        self._prices = self._by.constant(np.zeros(m, np.int64))
        self.held = self._nobody((n, m))
        self._rehearsed: set[str] = set()

    def _nobody(self, shape: tuple[int, ...]) -> SharedWords:
        return self._trio.constant(np.zeros(shape, np.uint8), 1)

    async def run(self, exponents: Sequence[int]) -> None:
        """One auction for each ``epsilon = 2^exponent``, both sides bidding in turn."""
        n, m = self._weights.shape
        for exponent in exponents:
            # A row that nobody wants is for nothing, not for less: below 0 it would draw bids of no weight.
            below = await lift_bits(await negative_bits(self._prices, self._trio), self._by)
            self._prices = self._prices - await self._by.mul(below, self._prices)
            self.held = self._nobody((n, m))
            self.held, self._prices = await self._bid(self._weights, self._prices, self.held, 1 << exponent, "rows")
            profits = await self._duals(self._weights, self.held, self._prices)
            turned, profits = await self._bid(self._weights.T, profits, _turned(self.held), 1 << exponent, "columns")
            self.held = _turned(turned)
            self._prices = await self._duals(self._weights.T, turned, profits)

    async def _duals(self, weights: SharedArray, held: SharedWords, prices: SharedArray) -> SharedArray:
        """What each row keeps of the weight of what it holds; 0 for rows that hold nothing."""
        shape = weights.shape
        chosen = await lift_bits(held, self._by)
        left = weights - SharedArray(self._by, tuple(np.broadcast_to(part, shape) for part in prices.parts))
        return (await self._by.mul(chosen, left)).sum(1)

    async def _bid(self, weights: SharedArray, prices: SharedArray, held: SharedWords, epsilon: int, side: str) -> tuple[SharedWords, SharedArray]:  # fmt: skip
        """Rows bid until none would."""
        n, m = weights.shape
        most, what = max(1, _PAIRS // _pairs_of(m + 1, _group_size(m + 1))), f"bidding {side}"
        self._out = self._nobody((n,))
        foreseen = self._trio.foreseen(what)
        if foreseen is not None:
            if side not in self._rehearsed:
                self._rehearsed.add(side)
                await self._rehearse(weights, prices, held, foreseen or [min(n, most)] * 6 + [max(1, n // 8)] * 2 * n + [0] * 6)  # fmt: skip
            return held, prices
        while len(rows := np.flatnonzero(await self._idle(held))[:most]):
            self._trio.note(what, len(rows))
            held, prices = await self._round(weights, prices, held, rows, epsilon)
        self._trio.note(what, 0)
        return held, prices

    async def _rehearse(self, weights: SharedArray, prices: SharedArray, held: SharedWords, bidders: Sequence[int]) -> None:  # fmt: skip
        """All rounds of all auctions: what a round sends follows from how many bid."""
        for count, times in sorted(Counter(bidders).items()):
            with self._trio.counted(times):
                await self._idle(held)
                if count:
                    await self._round(weights, prices, held, np.arange(min(count, len(held))), 1)

    async def _idle(self, held: SharedWords) -> Array:
        """Which rows hold nothing and have not dropped out: all learn it, in the order of the shuffle."""
        return await self._trio.open(_any(held).inverted() ^ self._out)

    async def _round(self, weights: SharedArray, prices: SharedArray, held: SharedWords, rows: Array, epsilon: int) -> tuple[SharedWords, SharedArray]:  # fmt: skip
        """Each of some rows bids, and the highest bids win."""
        trio, by, r, m = self._trio, self._by, len(rows), weights.shape[1]
        # Each row looks at the others in an order of its own: rows to which all are worth the same then bid for different ones.
        turn = (rows[:, None] + np.arange(m)[None]) % m
        back = np.argsort(turn, axis=1)
        values = weights[rows] - SharedArray(by, tuple(np.broadcast_to(part, (r, m)) for part in prices.parts))
        nothing = by.constant(np.zeros((r, 1), np.int64))
        seen = _columns(nothing, _taken(values, turn))
        best, second = await _two_best(trio, seen)
        wanted = _taken_words(best[:, 1:], back)
        chosen = await lift_bits(join_words([best, second]), by)
        worth = concatenated([_columns(nothing, _taken(weights[rows], turn)), seen])
        sums = (await by.mul(chosen, worth)).sum(1)
        bids = sums[:r] - sums[r:] + epsilon
        won = wanted if r == 1 else await self._winners(wanted, bids)
        sold = _any(_turned(won))
        kept = await trio.conjoin(held, _spread_rows(sold.inverted(), len(held)))
        held = _with_rows(kept, rows, won)
        gained = _taken(chosen[:1, 1:], back) if r == 1 else await lift_bits(won, by)
        both = [np.repeat(part[:, None], m, axis=1) for part in bids.parts]
        raised = SharedArray(by, tuple(both)) - SharedArray(by, tuple(np.broadcast_to(part, (r, m)) for part in prices.parts))  # fmt: skip
        self._out = _with_rows(self._out, rows, best[:, 0])
        return held, prices + (await by.mul(gained, raised)).sum(0)

    async def _winners(self, wanted: SharedWords, bids: SharedArray) -> SharedWords:
        """Of the rows that want the same one, that of the highest bid; of equal ones the first."""
        trio, r = self._trio, len(bids)
        at, to = np.triu_indices(r, 1)
        same = _any(await trio.conjoin(wanted[at], wanted[to]))
        lower = await negative_bits(bids[at] - bids[to], trio)
        first = await trio.conjoin(same, lower)  # the first of a pair loses
        wins = await _all_of(trio, _lost(first, same ^ first, r).inverted())
        return await trio.conjoin(wanted, _spread_columns(wins, wanted.shape[1]))


def _pairs_of(count: int, size: int) -> int:
    """Pairs that are compared to find the two best of ``count`` values by groups of a size: those within groups, and those of the two best of all groups."""
    groups = -(-count // size)
    return groups * math.comb(size, 2) + (math.comb(2 * groups, 2) if groups > 1 else 0)


def _group_size(count: int) -> int:
    """The size of groups by which the fewest pairs are compared."""
    return min(range(2, max(3, count + 1)), key=lambda size: _pairs_of(count, size))


async def _two_best(trio: Trio, values: SharedArray) -> tuple[SharedWords, SharedWords]:
    """Where the largest value of each row is, and the second one; of equal ones the first is larger.

    Where it saves work, values are compared in groups, and then the two best of all groups.
    """
    by, (rows, count) = cast("RingNumbers", values.by), values.shape
    size = _group_size(count)
    groups = -(-count // size)
    if groups == 1 or rows * math.comb(count, 2) <= _FEW_PAIRS:
        return await _compare_all(trio, values)
    # Places behind the last value hold less than any.
    filling = by.constant(np.full((rows, groups * size - count), -(1 << by.domain.bits - 3)))
    parted = _columns(values, filling).reshape(rows * groups, size)
    pair = _stacked(*await _compare_all(trio, parted))  # (rows * groups, 2, size)
    wide = SharedArray(by, tuple(np.repeat(part[:, None], 2, axis=1) for part in parted.parts))
    found = (await by.mul(await lift_bits(pair, by), wide)).sum(2).reshape(rows, 2 * groups)
    ends = await _compare_all(trio, found)
    leads = [end.with_parts(*(np.repeat(part[:, :, None], size, axis=2) for part in end.parts)) for end in ends]
    cells = pair.with_shape((rows, 2 * groups, size))
    made = await trio.conjoin_all([(lead, cells) for lead in leads])
    best, second = (
        _either(one.with_shape((rows, groups, 2, size))).with_shape((rows, groups * size))[:, :count] for one in made
    )
    return best, second


async def _compare_all(trio: Trio, values: SharedArray) -> tuple[SharedWords, SharedWords]:
    """The same by comparing all pairs: the largest loses to none, the second to one, and a tree counts to two."""
    c = values.shape[1]
    at, to = np.triu_indices(c, 1)
    lower = await negative_bits(values[:, at] - values[:, to], trio)
    lost = _lost(_turned(lower), _turned(lower.inverted()), c)  # (c, c - 1, rows)
    none, one = lost.inverted(), lost
    while none.shape[1] > 1:
        half = none.shape[1] // 2
        a, b = slice(half), slice(half, 2 * half)
        both, left, right = await trio.conjoin_all([(none[:, a], none[:, b]), (one[:, a], none[:, b]), (none[:, a], one[:, b])])  # fmt: skip
        rest = slice(2 * half, None)
        none, one = _beside(both, none[:, rest]), _beside(left ^ right, one[:, rest])
    return _turned(none[:, 0]), _turned(one[:, 0])


def _lost(first: SharedWords, second: SharedWords, count: int) -> SharedWords:
    """Of all pairs of ``count`` things, in the order of ``triu_indices``, which of the two loses: for each thing a row of its losses to the others."""
    number = np.zeros((count, count), np.int64)
    at, to = np.triu_indices(count, 1)
    number[at, to] = number[to, at] = np.arange(len(at))
    others = np.array([[k for k in range(count) if k != j] for j in range(count)], np.int64).reshape(count, count - 1)
    pairs = number[np.arange(count)[:, None], others]
    leads = np.arange(count)[:, None] < others
    parts = [np.where(leads.reshape(*leads.shape, *[1] * (a.ndim - 1)), a[pairs], b[pairs]) for a, b in zip(first.parts, second.parts, strict=True)]  # fmt: skip
    return first.with_parts(parts[0], parts[1])


# ---------------------------------------------------------------- what each party does by itself


def _turned(x: SharedWords) -> SharedWords:
    return x.with_parts(np.ascontiguousarray(x.parts[0].T), np.ascontiguousarray(x.parts[1].T))


async def _all_of(trio: Trio, bits: SharedWords) -> SharedWords:
    """Whether all bits of a row are 1: a tree of AND."""
    while bits.shape[1] > 1:
        half = bits.shape[1] // 2
        bits = _beside(await trio.conjoin(bits[:, :half], bits[:, half : 2 * half]), bits[:, 2 * half :])
    return bits.with_shape((len(bits),))


def _any(x: SharedWords) -> SharedWords:
    """Whether a row has a bit, where it has one at most."""
    return x.with_parts(*(np.bitwise_xor.reduce(part, axis=1) for part in x.parts))


def _stacked(x: SharedWords, y: SharedWords) -> SharedWords:
    return x.with_parts(*(np.stack(pair, axis=1) for pair in zip(x.parts, y.parts, strict=True)))


def _either(x: SharedWords) -> SharedWords:
    """One of two, of which one at most has a bit, along the third axis."""
    return x.with_parts(*(part[:, :, 0] ^ part[:, :, 1] for part in x.parts))


def _beside(x: SharedWords, y: SharedWords) -> SharedWords:
    return x.with_parts(*(np.concatenate(pair, axis=1) for pair in zip(x.parts, y.parts, strict=True)))


def _columns(x: SharedArray, y: SharedArray) -> SharedArray:
    return SharedArray(x.by, tuple(np.concatenate(pair, axis=1) for pair in zip(x.parts, y.parts, strict=True)))


def _taken(x: SharedArray, places: Array) -> SharedArray:
    return SharedArray(x.by, tuple(np.take_along_axis(part, places, axis=1) for part in x.parts))


def _taken_words(x: SharedWords, places: Array) -> SharedWords:
    return x.with_parts(*(np.take_along_axis(part, places, axis=1) for part in x.parts))


def _spread_rows(x: SharedWords, n: int) -> SharedWords:
    return x.with_parts(*(np.repeat(part[None], n, axis=0) for part in x.parts))


def _spread_columns(x: SharedWords, m: int) -> SharedWords:
    return x.with_parts(*(np.repeat(part[:, None], m, axis=1) for part in x.parts))


def _with_rows(x: SharedWords, rows: Array, more: SharedWords) -> SharedWords:
    """Bits of some rows added, where there are none."""
    made = [part.copy() for part in x.parts]
    for part, new in zip(made, more.parts, strict=True):
        part[rows] ^= new
    return x.with_parts(made[0], made[1])
