"""Circuits over shared words: comparison, equality, choice, addition, and words as numbers.

A comparison is a tree. Of each range of places it keeps whether the words differ there (``q``), and the bit of ``y`` at the highest place where they do (``v``,
meaningless elsewhere). Two neighbouring ranges join to ``q = q_high OR q_low`` and ``v = v_high if q_high else v_low``, so at the start both are free:
``q = x XOR y, v = y``. Each level halves the words. To make the halves neighbours, bit ``i`` is kept at the place whose digits are those of ``i`` reversed; then
a level joins the upper half of each word with the lower one. Words of 64 bits cost 15.9 bytes a comparison and party, in 6 messages; if they may be equal, one
message more. The sketch of Kolesnikov et al. (2009) needs a further AND a place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .computation import SharedArray
from .trio import BLOCK, Array, RingNumbers, SharedWords, Trio, pack_bits, unpack_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


__all__ = [
    "add_words",
    "choose_words",
    "compare_limbs",
    "equal_words",
    "interleave",
    "less_words",
    "lift_bits",
    "match_limbs",
    "negative_bits",
    "numbers_to_words",
    "pack_fields",
    "words_to_numbers",
]


def interleave(x: SharedWords) -> SharedWords:
    """The words in the order of the tree: bit ``i`` at the place whose binary digits are those of ``i`` reversed. Its own inverse."""
    width = 8 * x.parts[0].dtype.itemsize
    digits = width.bit_length() - 1
    first, second = (part.copy() for part in x.parts)
    for low in range(digits // 2):
        high = digits - 1 - low
        mask = sum(1 << place for place in range(width) if place >> low & 1 and not place >> high & 1)
        for part in (first, second):
            _swap(part, (1 << high) - (1 << low), mask)
    return SharedWords(x.trio, (first, second), width)


def _swap(words: Array, distance: int, mask: int) -> None:
    """Exchange the places of a mask with those a distance above."""
    by, at = words.dtype.type(distance), words.dtype.type(mask)
    flat = words.reshape(-1)
    for begin in range(0, len(flat), BLOCK):
        block = flat[begin : begin + BLOCK]
        apart = ((block >> by) ^ block) & at
        block ^= apart ^ (apart << by)


def pack_fields(fields: Sequence[SharedWords]) -> list[SharedWords]:
    """Fields side by side as limbs, the most significant first: limbs of 64 bits, and a last one of 8, 16, 32 or 64 that is filled up with zeros.

    Args:
        fields: arrays of one length, the most significant first.
    """
    total = sum(field.bits for field in fields)
    whole, rest = divmod(total, 64)
    widths = [64] * whole + ([max(8, 1 << (rest - 1).bit_length())] if rest else [])
    shape = fields[0].shape
    limbs = []
    for place, width in enumerate(widths):
        # The limb has the places [end - width, end) counted from the top of all fields, which end at `total`.
        begin, at, dtype = 64 * place, 0, f"u{width // 8}"
        parts = [np.zeros(shape, dtype=np.uint64) for _ in range(2)]
        for field in fields:
            up = width - (at + field.bits - begin)  # where the field's lowest bit lies in the limb
            if -field.bits < up < width:
                for made, part in zip(parts, field.parts, strict=True):
                    wide = part.astype(np.uint64)
                    made |= wide << np.uint64(up) if up >= 0 else wide >> np.uint64(-up)
            at += field.bits
        mask = np.uint64((1 << width) - 1)
        limbs.append(
            SharedWords(fields[0].trio, ((parts[0] & mask).astype(dtype), (parts[1] & mask).astype(dtype)), width)
        )
    return limbs


# ------------------------------------------------------------------ the tree


class _Tree:
    """Ranges of places of ``count`` comparisons, joined level by level.

    A group is an array ``(2 parts, rows, limbs * count)``, of which row 0 is ``q`` and row 1, if there is one, ``v``.
    """

    def __init__(self, trio: Trio, rows: int, count: int) -> None:
        self.trio, self.rows, self.count = trio, rows, count

    async def halve(
        self, load: Callable[[slice], list[Array]], size: int, dtype: np.dtype[np.unsignedinteger]
    ) -> Array:
        """One level: ``load`` returns rows ``(2, ...)`` of a slice of ``size`` words."""
        half = np.dtype(f"u{dtype.itemsize // 2}")
        mine = self.trio.empty((self.rows, size), half)
        made = np.empty((2, self.rows, size), half)
        for at in range(0, size, BLOCK):
            part = slice(at, min(size, at + BLOCK))
            rows = [row.view(half).reshape(2, -1, 2) for row in load(part)]
            lows, high = [row[..., 0] for row in rows], rows[0][..., 1]
            np.bitwise_xor(high, lows[0], out=made[:, 0, part])
            _product(high, lows[0], mine[0, part])
            if self.rows == 2:
                made[:, 1, part] = lows[1]
                _product(high, rows[1][..., 1] ^ lows[1], mine[1, part])
        return await self._joined(made, mine)

    async def _joined(self, made: Array, mine: Array) -> Array:
        theirs = await self.trio.reshare(mine)
        made[0] ^= mine
        made[1] ^= theirs
        return made

    async def split(self, group: Array) -> Array:
        """The level from bytes to planes of four bits: ``(2 parts, rows, 4 planes, limbs, ceil(count / 8))``."""
        four = np.uint8(4)
        q, v = group[:, 0], group[:, -1]
        high, factor, base = q >> four, q & np.uint8(15), (q >> four) ^ (q & np.uint8(15))
        if self.rows == 2:
            factor = factor | ((((v >> four) ^ v) & np.uint8(15)) << four)
            base = base | (v << four)
            high = high | (high << four)
        mine = self.trio.empty(high.shape[1:], np.uint8)
        _product(high, factor, mine)
        made = await self._joined(base, mine)
        made = made.reshape(2, -1, self.count)
        planes = [pack_bits((made >> np.uint8(place)) & np.uint8(1)) for place in range(4 * self.rows)]
        return np.stack(planes, axis=1).reshape(2, self.rows, 4, *planes[0].shape[1:])

    async def join_planes(self, high: Array, low: Array, *, only_v: bool = False) -> Array:
        """One level of packed planes ``(2, rows, ...)``."""
        factors = low.copy()
        if self.rows == 2:
            factors[:, 1] ^= high[:, 1]
        base = low.copy()
        base[:, 0] ^= high[:, 0]
        first = 1 if only_v else 0
        mine = self.trio.empty(low[0, first:].shape, np.uint8)
        for row in range(first, self.rows):
            _product(high[:, 0], factors[:, row], mine[row - first])
        return await self._joined(base[:, first:], mine)


def _product(x: Array, y: Array, out: Array) -> None:
    """``x0 (y0 + y1) + x1 y0``."""
    np.bitwise_xor(y[0], y[1], out=out)
    out &= x[0]
    out ^= x[1] & y[0]


async def _grown(
    tree: _Tree, limbs: Sequence[Callable[[slice], list[Array]]], widths: Sequence[int], final: bool
) -> Array:
    """The whole tree: packed bits ``(2, rows, ceil(count / 8))`` of all limbs together; with ``final`` of ``v`` alone."""
    if not tree.count:
        return np.zeros((2, tree.rows, 0), dtype=np.uint8)
    groups: dict[int, list[Callable[[slice], list[Array]]]] = {}
    for load, width in zip(limbs, widths, strict=True):
        groups.setdefault(width, []).append(load)
    width = max(groups)
    while width > 8:
        loads = groups.pop(width)
        dtype = np.dtype(f"u{width // 8}")
        parts = await _all_halved(tree, loads, dtype)
        width //= 2
        groups[width] = [_rows_of(parts), *groups.get(width, [])]
    rows = np.concatenate([np.stack(load(slice(None)), axis=1) for load in groups[8]], axis=-1)
    planes = await tree.split(rows)
    count = len(limbs)
    planes = await tree.join_planes(planes[:, :, 2:], planes[:, :, :2])
    planes = await tree.join_planes(planes[:, :, 1], planes[:, :, 0], only_v=final and count == 1)
    while count > 1:
        even = 2 * (count // 2)
        high, low = planes[:, :, 0:even:2], planes[:, :, 1:even:2]
        last = final and count == 2
        joined = await tree.join_planes(high, low, only_v=last)
        planes = joined if count == even else np.concatenate([joined, planes[:, :, even:]], axis=2)
        count = planes.shape[2]
    return planes[:, :, 0]


async def _all_halved(
    tree: _Tree, loads: Sequence[Callable[[slice], list[Array]]], dtype: np.dtype[np.unsignedinteger]
) -> Array:
    """A level of several groups of one width, each of which loads ``count`` words or a multiple."""
    if len(loads) == 1:
        load = loads[0]
        return await tree.halve(load, getattr(load, "size", tree.count), dtype)
    sizes = [getattr(load, "size", tree.count) for load in loads]
    ends = np.cumsum([0, *sizes])

    def load_all(part: slice) -> list[Array]:
        found = []
        for load, begin, end in zip(loads, ends[:-1].tolist(), ends[1:].tolist(), strict=True):
            low, high = max(part.start, begin), min(part.stop, end)
            if low < high:
                found.append(load(slice(low - begin, high - begin)))
        return found[0] if len(found) == 1 else [np.concatenate(rows, axis=-1) for rows in zip(*found, strict=True)]

    return await tree.halve(load_all, int(ends[-1]), dtype)


def _rows_of(group: Array) -> Callable[[slice], list[Array]]:
    return _Kept(group)


class _Kept:
    """Loads slices of a group that is kept."""

    def __init__(self, group: Array) -> None:
        self.group, self.size = group, group.shape[-1]

    def __call__(self, part: slice) -> list[Array]:
        return [self.group[:, row, part] for row in range(self.group.shape[1])]


async def compare_limbs(
    x: Sequence[SharedWords],
    y: Sequence[SharedWords],
    at: Array | None = None,
    to: Array | None = None,
    *,
    distinct: bool = False,
) -> SharedWords:
    """1 where ``x < y``, for words without sign in the order of `interleave`, limb by limb, the most significant first.

    Args:
        x: limbs of 64 bits, and a last one of 8, 16, 32 or 64.
        y: the same.
        at: rows of ``x`` to compare; by default all.
        to: rows of ``y`` to compare them with.
        distinct: whether no two are equal; this saves a message. Where two are equal nevertheless, the result means nothing.
    """
    trio, count = x[0].trio, len(x[0]) if at is None else len(at)
    tree = _Tree(trio, 2, count)
    loads = [_pairs_of(one, other, at, to) for one, other in zip(x, y, strict=True)]
    bits = await _grown(tree, loads, [limb.bits for limb in x], distinct)
    first, second = (unpack_bits(part[-1], count) for part in bits)
    v = SharedWords(trio, (first, second), 1)
    if distinct:
        return v
    q = SharedWords(trio, (unpack_bits(bits[0, 0], count), unpack_bits(bits[1, 0], count)), 1)
    return await trio.conjoin(q, v)


def _pairs_of(x: SharedWords, y: SharedWords, at: Array | None, to: Array | None) -> Callable[[slice], list[Array]]:
    def load(part: slice) -> list[Array]:
        mine = part if at is None else at[part]
        theirs = part if to is None else to[part]
        v = np.stack([other[theirs] for other in y.parts])
        return [np.stack([one[mine] for one in x.parts]) ^ v, v]

    return load


async def match_limbs(x: Sequence[SharedWords], y: Sequence[SharedWords]) -> SharedWords:
    """1 where ``x = y`` in every limb; limbs as `pack_fields` makes them, in any one order of bits. 8 bytes a limb of 64 bits and party."""
    trio, count = x[0].trio, len(x[0])
    tree = _Tree(trio, 1, count)

    def difference(one: SharedWords, other: SharedWords) -> Callable[[slice], list[Array]]:
        return lambda part: [np.stack([a[part] ^ b[part] for a, b in zip(one.parts, other.parts, strict=True)])]

    bits = await _grown(tree, [difference(*pair) for pair in zip(x, y, strict=True)], [limb.bits for limb in x], False)
    first, second = (unpack_bits(part[0], count) for part in bits)
    return SharedWords(trio, (first, second), 1).inverted()


async def less_words(x: SharedWords, y: SharedWords) -> SharedWords:
    """1 where ``x < y``, for words of one length without sign, of one axis."""
    return await compare_limbs(
        [interleave(limb) for limb in pack_fields([x])], [interleave(limb) for limb in pack_fields([y])]
    )


async def equal_words(x: SharedWords, y: SharedWords) -> SharedWords:
    """1 where ``x = y``, for words of one length, of one axis."""
    return await match_limbs(pack_fields([x]), pack_fields([y]))


async def choose_words(condition: SharedWords, pairs: Sequence[tuple[SharedWords, SharedWords]]) -> list[SharedWords]:
    """``x`` where a condition is 1, ``y`` where it is 0, for several pairs ``(x, y)`` in one message."""
    apart = await condition.trio.conjoin_all([(condition.spread(x.bits), x ^ y) for x, y in pairs])
    return [y ^ made for (_, y), made in zip(pairs, apart, strict=True)]


# ------------------------------------------------------------------ addition


async def add_words(x: SharedWords, y: SharedWords) -> SharedWords:
    """``x + y`` modulo ``2^bits``: carries are looked ahead (Kogge, Stone 1973), in ``1 + log2(bits)`` messages."""
    trio, bits = x.trio, x.bits
    generated, passed = await trio.conjoin(x, y), x ^ y
    total, distance = passed, 1
    while distance < bits:
        below, last = generated.shifted(distance, bits), 2 * distance >= bits
        pairs = [(passed, below)] + ([] if last else [(passed, passed.shifted(distance, bits))])
        made = await trio.conjoin_all(pairs)
        generated = generated ^ made[0]
        passed = passed if last else made[1]
        distance *= 2
    return total ^ generated.shifted(1, bits)


async def numbers_to_words(x: SharedArray, trio: Trio) -> SharedWords:
    """Numbers modulo ``2^k`` as words of ``k`` bits: the three parts, each known to two parties, are added under XOR."""
    k = x.by.domain.bits
    # Part j of the number, as words whose part j it is and whose others are 0: their XOR is shared by the parts as they are.
    words = _as_words(x.parts, trio, k)
    carry = await _majority(words)
    return await add_words(words, carry.shifted(1, k))


def _as_words(parts: Sequence[Array], trio: Trio, k: int) -> SharedWords:
    first, second = (np.ascontiguousarray(part) for part in parts)
    return SharedWords(trio, (first.astype(np.uint64), second.astype(np.uint64)), 64).widened(k)


async def _majority(words: SharedWords) -> SharedWords:
    """``ab + bc + ca`` of three numbers that are parts ``a, b, c`` of shared words: each product of two is known to one party."""
    trio = words.trio
    mine = trio.empty(words.shape, words.parts[0].dtype)
    np.bitwise_and(words.parts[0], words.parts[1], out=mine)
    theirs = await trio.reshare(mine)
    return SharedWords(trio, (mine, theirs), 8 * mine.dtype.itemsize).widened(words.bits)


async def negative_bits(x: SharedArray, trio: Trio) -> SharedWords:
    """1 where a number modulo ``2^k`` is negative: the sum's top bit, of which the tree needs the carry from below alone.

    A place sends on a carry of its own where its bits agree (``q``), and then it is the bit (``v``); elsewhere it passes on the one from below.
    """
    k, count = x.by.domain.bits, int(np.prod(x.shape, dtype=int))
    words = _as_words([part.reshape(-1) for part in x.parts], trio, k)
    carry = (await _majority(words)).shifted(1, k)
    top = words.shifted(1 - k, 1) ^ carry.shifted(1 - k, 1)
    width = max(8, 1 << (k - 1).bit_length())
    up = width - k + 1
    q, v = (words ^ carry).inverted().shifted(up, width), words.shifted(up, width)
    if width == k:
        mask = np.array((1 << k) - 2, dtype=q.parts[0].dtype)
        q, v = (made.with_parts(made.parts[0] & mask, made.parts[1] & mask) for made in (q, v))
    q, v = interleave(q), interleave(v)
    tree = _Tree(trio, 2, count)
    bits = await _grown(
        tree, [lambda part: [np.stack([a[part] for a in made.parts]) for made in (q, v)]], [width], True
    )
    first, second = (unpack_bits(part[-1], count) for part in bits)
    return (top ^ SharedWords(trio, (first, second), 1)).with_shape(x.shape)


# ------------------------------------------------------------------ words as numbers


async def lift_bits(bits: SharedWords, by: RingNumbers) -> SharedArray:
    """Words of one bit as numbers 0 and 1: two products."""
    numbers = SharedArray(by, tuple(part.astype(np.uint64) for part in bits.parts))
    a, b, c = by.own_parts(numbers, bits=False)
    ab = a + b - await by.mul(a, b) * 2
    return ab + c - await by.mul(ab, c) * 2


async def words_to_numbers(x: SharedWords) -> SharedArray:
    """Words as numbers modulo ``2^64`` (Mohassel, Rindal 2018): two parts are drawn, and what is missing is added up under XOR and shown to who holds part 0."""
    trio, by = x.trio, x.trio.numbers
    count = int(np.prod(x.shape, dtype=int))
    # Part 1 is common to the parties 0 and 1, part 2 to 1 and 2.
    zero = np.zeros(x.shape, dtype=np.uint64)
    drawn = {1: zero, 2: zero}
    if trio.place in (0, 1):
        stream = trio.with_after if trio.place == 0 else trio.with_before
        drawn[1] = stream.draw(count, np.uint64).reshape(x.shape)
    if trio.place in (1, 2):
        stream = trio.with_after if trio.place == 1 else trio.with_before
        drawn[2] = stream.draw(count, np.uint64).reshape(x.shape)
    held = [trio.place, (trio.place + 1) % 3]
    less_one, less_two = (
        SharedWords(
            trio, (np.negative(drawn[k]) if held[0] == k else zero, np.negative(drawn[k]) if held[1] == k else zero), 64
        )
        for k in (1, 2)
    )
    wide = x.widened(64)
    both = await trio.conjoin(wide ^ less_one, wide ^ less_two) ^ wide
    total = await add_words(wide ^ less_one ^ less_two, both.shifted(1, 64))
    first = await _shown_to_two(total)
    parts = tuple(first if part == 0 else drawn[part] for part in held)
    return SharedArray(by, parts)


async def _shown_to_two(total: SharedWords) -> Array:
    """Words, opened to the parties 0 and 2; party 1 gets zeros."""
    trio, peers = total.trio, total.trio.numbers.peers
    names = trio.numbers.parties
    if trio.place == 1:
        await peers.send(names[0], total.parts[1])
        return np.zeros(total.shape, dtype=np.uint64)
    if trio.place == 0:
        await peers.send(names[2], total.parts[1])
        missing = await trio.receive(names[1], total.shape, np.dtype(np.uint64))
    else:
        missing = await trio.receive(names[0], total.shape, np.dtype(np.uint64))
    return np.asarray(total.parts[0] ^ total.parts[1] ^ missing)
