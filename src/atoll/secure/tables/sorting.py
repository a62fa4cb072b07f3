"""Sorting: the order of shared keys, found by comparisons whose results are opened after a shuffle.

`find_order` packs a row's keys and its number into limbs, so that no two rows are equal and the order is stable. It shuffles the limbs, and compares them as a
quicksort does, one message a level for all segments together. What is opened says how a uniform random order would be sorted, so it is the same for all keys
(Hamada et al. 2012). Pivots are the sorted sample of a segment, of which each row finds its place by bisection: for 100,000 rows that takes 1.17 times
``log2(n!)`` comparisons on 35 levels; one pivot a segment takes 1.33 times as many on 45.

`sort_by_network` is Batcher's merge exchange: nothing is opened, but it takes ``log2(n)^2 / 4`` comparisons a row. It suits a few rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np

from atoll.core.errors import ConfigError

from ..shares.computation import SharedArray
from ..shares.trio import Array, SharedWords
from ..shares.word_circuits import choose_words, compare_limbs, interleave, lift_bits, pack_fields
from .rearrangement import Rearrangement

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = [
    "SortKey",
    "exchange_pairs",
    "find_order",
    "find_order_of_fields",
    "find_partition",
    "key_fields",
    "sort_by_network",
]

_SMALL = 5
"""Rows of a segment whose pairs are all compared at once."""


@dataclass(frozen=True, eq=False)
class SortKey:
    """What rows are ordered by.

    Attributes:
        words: one word a row. Negative numbers must have been moved up by half of the range.
        descending: whether the largest comes first.
        null: bits that say whose value is missing, if any can be.
        nulls_first: whether missing values come first, whatever the direction; by default they come last. Their words do not count.
    """

    words: SharedWords
    descending: bool = False
    null: SharedWords | None = None
    nulls_first: bool = False


async def key_fields(keys: Sequence[SortKey]) -> list[SharedWords]:
    """Fields that ascend as tuples of the keys do: a leading bit for missing values, and the words, which are 0 where the value is missing.

    Raises:
        ConfigError: there is no key.
    """
    if not keys:
        raise ConfigError("no key", where="find_order", remedy="name one column or more to sort by")
    pairs = [(key.null.inverted().spread(key.words.bits), key.words) for key in keys if key.null is not None]
    cleared = iter(await keys[0].words.trio.conjoin_all(pairs) if pairs else [])
    fields = []
    for key in keys:
        words = key.words if key.null is None else next(cleared)
        if key.null is not None:
            fields.append(key.null.inverted() if key.nulls_first else key.null)
        fields.append(words.inverted() if key.descending else words)
    return fields


def _with_rows(fields: Sequence[SharedWords]) -> list[SharedWords]:
    """Fields and the number of the row below them, as limbs: no two rows are equal."""
    trio, n = fields[0].trio, len(fields[0])
    return pack_fields([*fields, trio.constant(np.arange(n), max(1, (n - 1).bit_length()))])


async def find_order(keys: Sequence[SortKey]) -> Rearrangement:
    """The order that sorts rows by their keys, stable.

    What is opened depends on the order of shuffled rows alone, which is uniform; the number of comparisons does too.

    Raises:
        ConfigError: there is no key.
    """
    return await find_order_of_fields(await key_fields(keys))


async def find_order_of_fields(fields: Sequence[SharedWords]) -> Rearrangement:
    """The order that sorts rows by fields as `key_fields` makes them, stable."""
    return await _order_of(_with_rows(fields))


async def _order_of(limbs: Sequence[SharedWords]) -> Rearrangement:
    """The order of distinct limbs."""
    trio, n = limbs[0].trio, len(limbs[0])
    shuffle = Rearrangement.draw(trio, n)
    if n < 2:
        return shuffle
    moved = await shuffle.move([interleave(limb) for limb in limbs])
    keys = [limb for limb in moved if isinstance(limb, SharedWords)]
    sorting = _Segments(n)
    while sorting.unsorted:
        for at, to in sorting.levels():
            smaller = await compare_limbs(keys, keys, at, to, distinct=True)
            sorting.learn(trio.ordered(await trio.open(smaller), at, to, n))
    return shuffle.then(sorting.order)


class _Segments:
    """A quicksort of ``n`` distinct rows, level by level; it has what all parties know.

    Attributes:
        order: rows as they lie so far. Segments of it are not sorted, and rows of an earlier one come before rows of a later one.
    """

    def __init__(self, n: int) -> None:
        self.order = np.arange(n)
        self._sizes = np.array([n] if n > 1 else [], dtype=np.int64)
        self._starts = np.zeros_like(self._sizes)
        self._less = np.zeros(0, dtype=bool)

    @property
    def unsorted(self) -> bool:
        """Whether there is a segment of two rows or more."""
        return len(self._sizes) > 0

    def learn(self, less: Array) -> None:
        """Take the results of a level's comparisons."""
        self._less = less.astype(bool)

    def levels(self) -> Iterator[tuple[Array, Array]]:
        """One phase: rows to compare and those to compare them with, level by level; at its end `order` and the segments are finer.

        Small segments are sorted by all their pairs. In another, the first ``2^d - 1`` rows are sorted by theirs, and the others find their place among them by ``d``
        comparisons. The pairs of samples are at most a quarter of all rows, and so are those of segments that count as small because few are left: a phase
        more would cost messages.
        """
        spare = len(self.order) / (4 * int(self._sizes.sum()))
        depths = np.log2(np.sqrt(2 * spare * self._sizes) + 1).astype(np.int64)
        depths = np.where(self._sizes <= self._small(), 0, np.maximum(1, depths))
        samples = np.where(depths == 0, self._sizes, (1 << depths) - 1)
        members, owner = _ranges(self._starts, self._sizes)
        within = members - self._starts[owner]
        ranks = np.zeros(len(members), dtype=np.int64)
        yield from self._rank_samples(samples, members, ranks)
        sampled = within < samples[owner]
        # Where the sample's row of each rank lies, segment after segment.
        firsts = np.concatenate([[0], np.cumsum(samples)[:-1]])
        sorted_samples = np.empty(int(samples.sum()), dtype=np.int64)
        sorted_samples[firsts[owner[sampled]] + ranks[sampled]] = self.order[members[sampled]]
        others = np.flatnonzero(~sampled)
        segment = owner[others]
        bucket = np.zeros(len(others), dtype=np.int64)
        # Rows that still look for their place: which they are, where their sample begins, how far they are in it, and the levels that are left.
        who, rows, base = np.arange(len(others)), self.order[members[others]], firsts[segment]
        left = depths[segment]
        while len(who):
            half = np.left_shift(1, left - 1)
            yield rows, sorted_samples[base + half - 1]
            base = base + half * ~self._less
            left = left - 1
            if (ended := left == 0).any():
                bucket[who[ended]] = base[ended] - firsts[segment[who[ended]]]
                who, rows, base, left = (x[~ended] for x in (who, rows, base, left))
        place = np.empty(len(members), dtype=np.int64)
        place[sampled], place[others] = 2 * ranks[sampled] + 1, 2 * bucket
        self._refine(members, owner, place, 2 * int(samples.max()) + 2)

    def _small(self) -> int:
        sizes, counts = np.unique(self._sizes, return_counts=True)
        cheap = sizes[np.cumsum(counts * sizes * (sizes - 1) // 2) <= len(self.order) // 4]
        return max(_SMALL, int(cheap[-1]) if len(cheap) else 0)

    def _rank_samples(self, samples: Array, members: Array, ranks: Array) -> Iterator[tuple[Array, Array]]:
        """All pairs of each segment's sample, in one level; fills in the samples' ranks."""
        begin = np.concatenate([[0], np.cumsum(self._sizes)[:-1]])
        lows, highs = [], []
        for count in np.unique(samples[samples > 1]).tolist():
            low, high = np.triu_indices(count, 1)
            at = begin[samples == count]
            lows.append((at[:, None] + low).ravel())
            highs.append((at[:, None] + high).ravel())
        if not lows:
            return
        low, high = np.concatenate(lows), np.concatenate(highs)
        yield self.order[members[low]], self.order[members[high]]
        ranks += np.bincount(np.where(self._less, high, low), minlength=len(members))

    def _refine(self, members: Array, owner: Array, place: Array, most: int) -> None:
        """Put the rows of each segment in the order of their places; rows of one place are the new segments."""
        key = owner * most + place
        by = np.argsort(key, kind="stable")
        self.order[members] = self.order[members[by]]
        key = key[by]
        edges = np.flatnonzero(np.concatenate([[True], key[1:] != key[:-1]]))
        sizes = np.diff(np.concatenate([edges, [len(key)]]))
        large = sizes > 1
        self._starts, self._sizes = members[edges[large]], sizes[large]


def _ranges(starts: Array, sizes: Array) -> tuple[Array, Array]:
    """The places of all segments one after the other, and the number of each one's segment."""
    owner = np.repeat(np.arange(len(sizes)), sizes)
    ends = np.cumsum(sizes)
    return np.arange(int(ends[-1])) - (ends - sizes)[owner] + starts[owner], owner


async def find_partition(bits: SharedWords) -> Rearrangement:
    """The order that brings rows whose bit is 1 to the front, stable: one pass of a radix sort, in 8 messages whatever the bits are.

    Each row's place follows from prefix sums of the bits; places are shuffled with the rows and opened.
    """
    by, n = bits.trio.places, len(bits)
    ones = await lift_bits(bits, by)
    before = _each(ones, lambda part: np.cumsum(part, dtype=np.uint64) & np.uint64(0xFFFFFFFF))
    total = _each(before, lambda part: np.broadcast_to(part[-1:], part.shape))
    rows = np.arange(n)
    # place = before - 1 for a one, and total + row - before for a zero, where `before` counts the row's own bit.
    zero_place = total + rows - before
    place = zero_place + await by.mul(ones, before - 1 - zero_place)
    shuffle = Rearrangement.draw(bits.trio, n)
    (moved,) = await shuffle.move([place])
    places = await bits.trio.open_numbers(cast("SharedArray", moved))
    order = np.empty(n, dtype=np.int64)
    order[places.astype(np.int64)] = rows
    return shuffle.then(order)


def _each(x: SharedArray, fn: Callable[[Array], Array]) -> SharedArray:
    return SharedArray(x.by, tuple(fn(part) for part in x.parts))


async def sort_by_network(keys: Sequence[SortKey], columns: Sequence[SharedWords]) -> list[SharedWords]:
    """The columns sorted by the keys with Batcher's merge exchange: nothing is opened (Knuth, The Art of Computer Programming 3, 5.2.2 M). Stable."""
    limbs = [interleave(limb) for limb in _with_rows(await key_fields(keys))]
    moved, n = [*limbs, *columns], len(limbs[0])
    for low, high in exchange_pairs(n):
        ends = [(column[low], column[high]) for column in moved]
        wrong = await compare_limbs(limbs, limbs, high, low, distinct=True)
        lower = await choose_words(wrong, [(second, first) for first, second in ends])
        for i, ((first, second), new) in enumerate(zip(ends, lower, strict=True)):
            moved[i] = _replaced(_replaced(moved[i], low, new), high, first ^ second ^ new)
        limbs = moved[: len(limbs)]
    return moved[len(limbs) :]


def exchange_pairs(n: int) -> Iterator[tuple[Array, Array]]:
    """The pairs of each level of the merge exchange, lower row first."""
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top
    while n > 1 and p > 0:
        q, r, d = top, 0, p
        while True:
            rows = np.arange(n - d)
            low = rows[(rows & p) == r]
            if len(low):
                yield low, low + d
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2


def _replaced(x: SharedWords, at: Array, new: SharedWords) -> SharedWords:
    first, second = (part.copy() for part in x.parts)
    first[at], second[at] = new.parts
    return x.with_parts(first, second)
