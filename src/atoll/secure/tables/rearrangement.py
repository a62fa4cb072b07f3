"""Orders of rows that no party knows: shuffles among three, and what is opened after them.

A shuffle has three passes, one for each two neighbours. In a pass the two draw an order from their stream, apply it to what they hold, and mask the result; the
third party, which gets it, cannot follow the rows (Laur, Willemson, Zhang 2011). The order of all passes is uniform for each party, since each lacks one of them.
A pass costs two parties the rows once, so a shuffle costs each party twice the rows, in three messages one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError

from ..shares.computation import SharedArray
from ..shares.trio import Array, SharedWords, pack_bits, unpack_bits

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..shares.trio import CommonStream, Trio

__all__ = ["Column", "Pass", "Rearrangement"]

Column = SharedWords | SharedArray
"""Words under XOR, or numbers modulo ``2^k``, one or more a row."""


@dataclass(frozen=True)
class Pass:
    """An order of which one party knows nothing.

    Attributes:
        pair: place of the first of the two neighbours that know it.
        order: ``new[i] = old[order[i]]``; ``None`` at the third party.
    """

    pair: int
    order: Array | None


Step = Pass | Array


class Rearrangement:
    """An order of ``n`` rows as a list of steps: passes of shuffles, and orders that all know.

    It moves any columns of ``n`` rows, as often as you like, each time under new masks.

    Args:
        trio: the three parties.
        n: rows.
        steps: passes and public orders, in the order in which rows walk.
    """

    def __init__(self, trio: Trio, n: int, steps: Sequence[Step] = ()) -> None:
        self.trio, self.n, self._steps = trio, n, tuple(steps)

    @classmethod
    def draw(cls, trio: Trio, n: int) -> Rearrangement:
        """A uniform order that no party knows. Costs no message."""
        passes = []
        for pair in range(3):
            stream = _stream_of(trio, pair)
            passes.append(Pass(pair, None if stream is None else stream.draw_order(n)))
        return cls(trio, n, passes)

    def then(self, other: Rearrangement | Array) -> Rearrangement:
        """This order, and another one or a public one after it."""
        if isinstance(other, Rearrangement):
            self._require(other.n)
            return Rearrangement(self.trio, self.n, (*self._steps, *other._steps))
        self._require(len(other))
        return Rearrangement(self.trio, self.n, (*self._steps, other))

    def inverse(self) -> Rearrangement:
        """The order that undoes this one."""
        return Rearrangement(self.trio, self.n, [_inverse(step) for step in reversed(self._steps)])

    async def move(self, columns: Sequence[Column]) -> list[Column]:
        """The columns in this order; all of them go in one message a pass.

        Raises:
            ConfigError: a column has another number of rows.
        """
        moved = list(columns)
        for column in moved:
            self._require(len(column))
        for step in self._steps:
            moved = await self._pass(step, moved) if isinstance(step, Pass) else [column[step] for column in moved]
        return moved

    async def undo(self, columns: Sequence[Column]) -> list[Column]:
        """The columns as they were before `move`."""
        return await self.inverse().move(columns)

    def _require(self, n: int) -> None:
        if n != self.n:
            raise ConfigError(
                f"{n} rows for an order of {self.n}", where="Rearrangement", remedy="move columns of the same table"
            )

    async def _pass(self, step: Pass, columns: Sequence[Column]) -> list[Column]:
        """Party ``pair`` holds the first two parts of three and the one after it the last two; the third party's two parts are made anew."""
        trio, place = self.trio, (self.trio.place - step.pair) % 3
        stream = _stream_of(trio, step.pair)
        if step.order is None or stream is None:
            return await self._receive(step, columns)
        made, messages = [], []
        for column in columns:
            ring = _Ring(column)
            masks = [ring.draw(stream) for _ in range(2)]
            held = column.parts
            whole = ring.add(held[0], held[1]) if place == 0 else held[1]
            sent = ring.add(whole[step.order], masks[place])
            kept = ring.negative(ring.add(masks[0], masks[1]))
            made.append(ring.column((sent, kept) if place == 0 else (kept, sent)))
            messages.append(ring.packed(sent))
        await trio.numbers.peers.send(trio.numbers.parties[(step.pair + 2) % 3], np.concatenate(messages))
        return made

    async def _receive(self, step: Pass, columns: Sequence[Column]) -> list[Column]:
        """The third party's new parts: the last one from the second of the pair, then the first one."""
        rings = [_Ring(column) for column in columns]
        size = sum(ring.nbytes for ring in rings)
        parties = self.trio.numbers.parties
        first = await self.trio.receive(parties[(step.pair + 1) % 3], (size,), np.dtype(np.uint8))
        second = await self.trio.receive(parties[step.pair], (size,), np.dtype(np.uint8))
        made, at = [], 0
        for ring in rings:
            rows = [ring.unpacked(raw[at : at + ring.nbytes]) for raw in (first, second)]
            made.append(ring.column((rows[0], rows[1])))
            at += ring.nbytes
        return made


def _inverse(step: Step) -> Step:
    if isinstance(step, Pass):
        return Pass(step.pair, None if step.order is None else _inverse_order(step.order))
    return _inverse_order(step)


def _inverse_order(order: Array) -> Array:
    made = np.empty_like(order)
    made[order] = np.arange(len(order), dtype=order.dtype)
    return made


def _stream_of(trio: Trio, pair: int) -> CommonStream | None:
    """What this party draws with its neighbour, if it belongs to the pair."""
    return {0: trio.with_after, 1: trio.with_before}.get((trio.place - pair) % 3)


class _Ring:
    """A column's sums and wire, whether it holds words or numbers."""

    def __init__(self, column: Column) -> None:
        self._like = column
        self._shape = column.parts[0].shape
        self._count = column.parts[0].size
        if isinstance(column, SharedWords):
            self._dtype, self._bits = column.parts[0].dtype, column.bits
        else:
            bits = column.by.domain.bits
            self._dtype, self._bits = np.dtype(np.uint32 if bits == 32 else np.uint64), bits
        self.nbytes = -(-self._count // 8) if self._bits == 1 else self._count * self._dtype.itemsize

    def draw(self, stream: CommonStream) -> Array:
        drawn = self._cut(stream.draw(self._count, self._dtype).reshape(self._shape))
        return drawn if isinstance(self._like, SharedWords) else drawn.astype(np.uint64)

    def _cut(self, x: Array) -> Array:
        return x if self._bits == 8 * x.dtype.itemsize else x & x.dtype.type((1 << self._bits) - 1)

    def add(self, x: Array, y: Array) -> Array:
        return x ^ y if isinstance(self._like, SharedWords) else self._cut(x + y)

    def negative(self, x: Array) -> Array:
        return x if isinstance(self._like, SharedWords) else self._cut(np.negative(x))

    def packed(self, x: Array) -> Array:
        flat = np.ascontiguousarray(x).reshape(-1)
        return pack_bits(flat) if self._bits == 1 else flat.astype(self._dtype, copy=False).view(np.uint8)

    def unpacked(self, raw: Array) -> Array:
        if self._bits == 1:
            return unpack_bits(raw, self._count).reshape(self._shape)
        found = self._cut(raw.copy().view(self._dtype).reshape(self._shape))
        return found if isinstance(self._like, SharedWords) else found.astype(np.uint64)

    def column(self, parts: tuple[Array, Array]) -> Column:
        return (
            self._like.with_parts(*parts) if isinstance(self._like, SharedWords) else SharedArray(self._like.by, parts)
        )
