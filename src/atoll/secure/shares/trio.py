"""Words under XOR at three parties: the ground of oblivious operators over tables.

A word of 1 to 64 bits is the XOR of three parts, and party ``i`` of the ring has parts ``i`` and ``i + 1 (mod 3)`` (Araki et al. 2016). Each two neighbours
have a stream of uniform bytes in common. So AND costs one message of the words' own size to the party before, and opening costs one to the party after.

Products are made in blocks that fit the processor's cache. Their masks are two passes of AES in counter mode over the message itself.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np

from atoll.core.errors import DataError, LetterError
from atoll.core.message.words import word_dtype

from ..keystream import derived, opened
from .computation import Computing

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Island

    from .computation import SharedArray

__all__ = ["BLOCK", "CommonStream", "RingNumbers", "SharedWords", "Trio", "join_words", "pack_bits", "unpack_bits"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]
BLOCK = 1 << 14
"""Words that are worked on at once: their parts and what is made of them stay in the second-level cache."""
_SLACK = 16
"""Bytes that the cipher wants behind its output."""


class RingNumbers(Computing, Protocol):
    """What words need of the computation of three parties on numbers: `atoll.secure.shares.ReplicatedComputation`."""

    @property
    def island(self) -> Island:
        """This party's place."""
        ...

    @property
    def peers(self) -> Peers:
        """The session."""
        ...

    @property
    def parties(self) -> tuple[str, ...]:
        """The three roles, in order."""
        ...

    @property
    def me(self) -> str:
        """This party's role."""
        ...

    @property
    def place(self) -> int:
        """Its place among them."""
        ...

    @property
    def before(self) -> str:
        """The party before this one, around the ring."""
        ...

    @property
    def after(self) -> str:
        """The party after this one."""
        ...

    def own_parts(self, x: SharedArray, bits: bool) -> list[SharedArray]:
        """The three parts of a number, as shared values."""
        ...


class CommonStream:
    """Uniform bytes that two neighbours draw alike, as long as both draw in the same order.

    Args:
        seed: what both know, for this stream only.
    """

    def __init__(self, seed: bytes) -> None:
        self._cipher = opened(seed)

    def draw(self, count: int, dtype: Any = np.uint8) -> Array:
        """The next ``count`` words of a dtype."""
        raw = np.zeros(count * np.dtype(dtype).itemsize + _SLACK, dtype=np.uint8)
        self.add_to(raw[:-_SLACK], raw)
        words: Array = raw[:-_SLACK].view(np.dtype(dtype).newbyteorder("<"))
        return words.astype(dtype, copy=False)

    def add_to(self, raw: Array, room: Array) -> None:
        """XOR the next bytes to ``raw``, in place; ``room`` is the same memory, with slack behind it."""
        self._cipher.update_into(raw.data, room.data)

    def draw_order(self, n: int) -> Array:
        """A uniform order of ``n`` rows: places of ``n`` sorted uniform words. Two of them agree with probability below ``n^2 / 2^65``."""
        return np.argsort(self.draw(n, np.uint64), kind="stable")


@dataclass(frozen=True, eq=False)
class SharedWords:
    """A party's share of an array of words, of any shape, under XOR.

    ``^`` and `shifted` act at each party alone; `Trio.conjoin` is AND, and needs a message.

    Attributes:
        trio: the three parties.
        parts: this party's two parts, in the smallest dtype of ``bits``; bits above are 0.
        bits: bits of a word, 1 to 64. Words of one bit are bytes 0 and 1, and travel packed.
    """

    trio: Trio
    parts: tuple[Array, Array]
    bits: int

    def __len__(self) -> int:
        return len(self.parts[0])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self.parts[0].shape
        return shape

    def with_parts(self, first: Array, second: Array) -> SharedWords:
        """Words of the same length from other parts."""
        return SharedWords(self.trio, (first, second), self.bits)

    def __getitem__(self, index: Any) -> SharedWords:
        return self.with_parts(self.parts[0][index], self.parts[1][index])

    def __xor__(self, other: SharedWords) -> SharedWords:
        return self.with_parts(self.parts[0] ^ other.parts[0], self.parts[1] ^ other.parts[1])

    def xor_public(self, values: Any) -> SharedWords:
        """XOR with public words: a number, or an array of the same shape."""
        known = np.asarray(values, dtype=self.parts[0].dtype)
        first, second = (
            part ^ known if at else part for part, at in zip(self.parts, self.trio.holds_first, strict=True)
        )
        return self.with_parts(first, second)

    def inverted(self) -> SharedWords:
        """NOT, bit by bit."""
        return self.xor_public((1 << self.bits) - 1)

    def shifted(self, by: int, bits: int) -> SharedWords:
        """The words moved up by some places (down, if negative), in words of ``bits`` bits."""
        dtype, mask = word_dtype(bits), (1 << bits) - 1
        made = []
        for part in self.parts:
            wide = part.astype(np.uint64)
            wide = wide << np.uint64(by) if by >= 0 else wide >> np.uint64(-by)
            made.append((wide & np.uint64(mask)).astype(dtype))
        return SharedWords(self.trio, (made[0], made[1]), bits)

    def widened(self, bits: int) -> SharedWords:
        """The same numbers in words of more bits."""
        return self.shifted(0, bits)

    def spread(self, bits: int) -> SharedWords:
        """Words of one bit as words that have it in all places: what AND needs to choose."""
        dtype = word_dtype(bits)
        mask = dtype.type((1 << bits) - 1)
        first, second = ((np.zeros((), dtype) - part.astype(dtype)) & mask for part in self.parts)
        return SharedWords(self.trio, (first, second), bits)

    def with_shape(self, shape: tuple[int, ...]) -> SharedWords:
        """The words in another shape."""
        return self.with_parts(self.parts[0].reshape(shape), self.parts[1].reshape(shape))

    def moved_down(self) -> SharedWords:
        """Each row's words in the row below it; the first row's are 0."""
        moved = [np.zeros_like(part) for part in self.parts]
        for to, part in zip(moved, self.parts, strict=True):
            to[1:] = part[:-1]
        return self.with_parts(moved[0], moved[1])


def join_words(arrays: Sequence[SharedWords]) -> SharedWords:
    """Join arrays of words of one length along their first axis."""
    first, second = (np.concatenate([array.parts[i] for array in arrays]) for i in range(2))
    return arrays[0].with_parts(first, second)


def pack_bits(bits: Array) -> Array:
    """Bytes 0 and 1 as bits, 8 in a byte, along the last axis."""
    return np.packbits(bits, axis=-1, bitorder="little")


def unpack_bits(raw: Array, count: int) -> Array:
    """The inverse of `pack_bits`."""
    return np.unpackbits(raw, axis=-1, count=count, bitorder="little")


class Trio:
    """One party's side of three that compute on words.

    Args:
        numbers: the computation of the three on numbers. Its session, parties and secret are this one's, and both may be used in turn.
        seeds: what this party has in common with the party after it, and with the one before it.
        places: the same for numbers modulo ``2^32``, such as places of rows.

    Attributes:
        numbers: see above.
        places: see above.
        place: this party's place around the ring.
        holds_first: which of this party's two parts is part 0, the one that public values go to.
        noted: what was opened on the way and what is sent depends on, by name; see `note`.
    """

    def __init__(self, numbers: RingNumbers, seeds: tuple[bytes, bytes], places: RingNumbers) -> None:
        self.numbers, self.places, self.place = numbers, places, numbers.place
        self.holds_first = (self.place == 0, self.place == 2)
        self._zeros = [CommonStream(derived(seed, "words: zero")) for seed in seeds]
        self.with_after, self.with_before = (CommonStream(derived(seed, "words: common")) for seed in seeds)
        self.noted: dict[str, list[int]] = {}

    # ------------------------------------------------------------------ messages

    async def pass_on(self, message: Array, to: str, source: str) -> Array:
        """Send an array to one party, and return what another sends of the same shape and dtype.

        Raises:
            LetterError: it is something else.
        """
        await self.numbers.peers.send(to, message)
        return await self.receive(source, message.shape, message.dtype)

    async def receive(self, source: str, shape: tuple[int, ...], dtype: Any) -> Array:
        """The next array of a party, checked.

        Raises:
            LetterError: it has another shape or dtype.
        """
        found = await self.numbers.peers.recv(source)
        if not isinstance(found, np.ndarray) or found.shape != shape or found.dtype != dtype:
            shown = f"{found.dtype}{list(found.shape)}" if isinstance(found, np.ndarray) else type(found).__name__
            raise LetterError(
                f"{shown} in place of words {np.dtype(dtype)}{list(shape)}", remedy=f"look at {source}, which sent them"
            )
        return found

    async def receive_order(self, source: str, n: int) -> Array:
        """An order of ``n`` rows that a party sends.

        Raises:
            LetterError: it is none.
        """
        order = (await self.receive(source, (n,), np.dtype(np.uint32))).astype(np.int64)
        if not np.array_equal(np.sort(order), np.arange(n)):
            raise LetterError(f"numbers that are no order of {n} rows", remedy=f"look at {source}, which sent them")
        return order

    async def receive_rows(self, source: str, usual: int, most: int) -> int:
        """A number of rows that a party sends; a rehearsal takes a usual one.

        Raises:
            LetterError: it is not from 1 to ``most``.
        """
        (found,) = await self.receive(source, (1,), np.dtype(np.uint64))
        if not 1 <= int(found) <= most:
            raise LetterError(f"a table of {found} rows in place of 1 to {most}", remedy=f"look at {source}, which sent the number")  # fmt: skip
        return self.settled(int(found), usual)

    def settled(self, rows: int, usual: int) -> int:
        """A number of rows that only the run tells. A rehearsal has a usual one in its place."""
        del usual
        return rows

    async def reshare(self, products: Array) -> Array:
        """Additive parts of the three, masked in place and passed on: returns the part of the party after.

        ``products`` must be contiguous, with `_SLACK` bytes of its base behind it: make it with `empty`.
        """
        raw = products.reshape(-1).view(np.uint8)
        room = products if products.base is None else products.base
        for stream in self._zeros:
            stream.add_to(raw, room)
        return await self.pass_on(products, self.numbers.before, self.numbers.after)

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: Any) -> Array:
        """Room for products."""
        kind = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=int)) * kind.itemsize
        raw = np.empty(nbytes + _SLACK, dtype=np.uint8)
        return np.ndarray(shape, kind, raw)

    # ------------------------------------------------------------------ values

    def constant(self, values: Any, bits: int) -> SharedWords:
        """Public words as a shared array.

        Raises:
            DataError: they are no whole numbers from 0 to ``2^bits - 1``.
        """
        known = self.check_words(values, bits)
        first, second = (known if at else np.zeros_like(known) for at in self.holds_first)
        return SharedWords(self, (first, second), bits)

    @staticmethod
    def check_words(values: Any, bits: int) -> Array:
        """Whole numbers as words of some bits.

        Raises:
            DataError: they do not fit.
        """
        array = np.asarray(values)
        if array.dtype.kind not in "bui":
            raise DataError(f"values of type {array.dtype}", where="words", remedy="share whole numbers from 0")
        if array.size and (int(array.min()) < 0 or int(array.max()) >> bits):
            shown = int(array.min()) if int(array.min()) < 0 else int(array.max())
            raise DataError(
                f"the value {shown} in words of {bits} bits", where="words", remedy=f"use 0 to {(1 << bits) - 1}"
            )
        return array.astype(word_dtype(bits))

    async def share(self, values: Any, *, owner: str, shape: tuple[int, ...], bits: int) -> SharedWords:
        """Share one party's words among all: that party sends them once or twice, under a stream in common.

        Args:
            values: whole numbers from 0; needed at the owner only.
            owner: whose they are.
            shape: their shape, which everyone knows.
            bits: bits of a word.

        Raises:
            DataError: the owner's values do not fit.
        """
        dtype = word_dtype(bits)
        at, count = self.numbers.parties.index(owner), int(np.prod(shape, dtype=int))
        # Part at + 1 is drawn by the owner and the party after it, part at + 2 is 0, and part at goes to the party before.
        zero = np.zeros(shape, dtype)
        if self.place == at:
            known = self.check_words(values, bits)
            if known.shape != shape:
                raise DataError(
                    f"words of shape {known.shape}", where="share", remedy=f"share {shape}, as all parties expect"
                )
            drawn = self._cut(self.with_after.draw(count, dtype).reshape(shape), bits)
            mine = known ^ drawn
            await self.numbers.peers.send(self.numbers.before, mine)
            return SharedWords(self, (mine, drawn), bits)
        if self.place == (at + 1) % 3:
            return SharedWords(self, (self._cut(self.with_before.draw(count, dtype).reshape(shape), bits), zero), bits)
        return SharedWords(self, (zero, await self.receive(owner, shape, dtype)), bits)

    @staticmethod
    def _cut(array: Array, bits: int) -> Array:
        return array if bits == 8 * array.dtype.itemsize else array & array.dtype.type((1 << bits) - 1)

    async def open(self, x: SharedWords) -> Array:
        """Show words to all three: each sends the part that the party after it lacks."""
        packed = x.bits == 1
        mine = pack_bits(x.parts[0].reshape(-1)) if packed else np.ascontiguousarray(x.parts[0])
        theirs = await self.pass_on(mine, self.numbers.after, self.numbers.before)
        missing = unpack_bits(theirs, x.parts[0].size).reshape(x.shape) if packed else theirs
        return np.asarray(x.parts[0] ^ x.parts[1] ^ missing)

    async def open_numbers(self, x: SharedArray) -> Array:
        """Show numbers to all three, modulo the order of their ring, for the bytes of one part."""
        ring = x.by.domain
        dtype = word_dtype(ring.bits)
        mine = np.ascontiguousarray(x.parts[0].astype(dtype))
        theirs = await self.pass_on(mine, self.numbers.after, self.numbers.before)
        return ring.add(ring.add(x.parts[0], x.parts[1]), theirs.astype(np.uint64))

    def ordered(self, smaller: Array, at: Array, to: Array, rows: int) -> Array:
        """What a sort's comparisons showed: of rows ``at`` with rows ``to``, of so many. A rehearsal has others."""
        del at, to, rows
        return smaller

    def note(self, what: str, size: int) -> None:
        """Keep a size that was opened on the way, for whoever foretells what is sent."""
        self.noted.setdefault(what, []).append(size)

    def foreseen(self, what: str) -> Sequence[int] | None:
        """In a rehearsal the sizes that are opened on the way; ``None`` where parties compute."""
        del what
        return None

    @contextlib.contextmanager
    def counted(self, times: int) -> Iterator[None]:
        """What is sent within counts so many times, in a rehearsal."""
        del times
        yield

    # ------------------------------------------------------------------ AND

    async def conjoin(self, x: SharedWords, y: SharedWords) -> SharedWords:
        """``x AND y``, for words of one length and shape."""
        return (await self.conjoin_all([(x, y)]))[0]

    async def conjoin_all(self, pairs: Sequence[tuple[SharedWords, SharedWords]]) -> list[SharedWords]:
        """``x AND y`` of several pairs, each of one length and shape, in one message."""
        sides = [_flat(x) + _flat(y) for x, y in pairs]
        sizes = [parts[0].nbytes for parts in sides]
        mine, at = self.empty((sum(sizes),), np.uint8), 0
        for parts, size in zip(sides, sizes, strict=True):
            _multiply(parts, mine[at : at + size])
            at += size
        theirs = await self.reshare(mine)
        made, at = [], 0
        for (x, _), size in zip(pairs, sizes, strict=True):
            first, second = (_shaped(rows[at : at + size], x) for rows in (mine, theirs))
            made.append(x.with_parts(first, second))
            at += size
        return made


def _flat(x: SharedWords) -> list[Array]:
    """Both parts as bytes, bits packed."""
    parts = (pack_bits(part.reshape(-1)) if x.bits == 1 else np.ascontiguousarray(part) for part in x.parts)
    return [part.reshape(-1).view(np.uint8) for part in parts]


def _shaped(raw: Array, like: SharedWords) -> Array:
    """Bytes as a part of words of a length and shape."""
    if like.bits == 1:
        return unpack_bits(raw, like.parts[0].size).reshape(like.shape)
    dtype = word_dtype(like.bits)
    return Trio._cut(raw.copy().view(dtype).reshape(like.shape), like.bits)


def _multiply(parts: Sequence[Array], out: Array) -> None:
    """``x0 (y0 + y1) + x1 y0``, block by block."""
    x0, x1, y0, y1 = parts
    step = 8 * BLOCK
    room = np.empty(min(step, len(out)), dtype=np.uint8)
    for at in range(0, len(out), step):
        part = slice(at, at + step)
        made, other = out[part], room[: len(out[part])]
        np.bitwise_xor(y0[part], y1[part], out=made)
        made &= x0[part]
        np.bitwise_and(x1[part], y0[part], out=other)
        made ^= other
