"""Computing on additive shares, with a dealer's triples."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .binary import Binary
from .computation import Computation
from .shared_array import SharedArray
from .sharing import AdditiveSharing
from .word_ring import WordRing

if TYPE_CHECKING:
    from .domain import Array

__all__ = ["AdditiveComputation"]


class AdditiveComputation(Computation):
    """Additive shares; products by triples of a dealer (Beaver 1991): ``xy = ab + (x-a) b + (y-b) a + (x-a)(y-b)``, where the differences are opened."""

    sharing: AdditiveSharing

    def _begin(self) -> None:
        if type(self.sharing) is AdditiveSharing and isinstance(self.domain, WordRing):
            bits = AdditiveSharing(Binary(), self.sharing.n)
            self.bitwise = AdditiveComputation(self.island, self.peers, self.parties, self.me, bits, self._dealer)

    async def _dealt(self, what: str, *shapes: tuple[int, ...], by: int = 0) -> list[SharedArray]:
        rows = await self.dealer.get(what, *shapes, bitwise=isinstance(self.domain, Binary), by=by)
        return [SharedArray(self, parts) for parts in rows]

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y`` by one triple an entry."""
        a, b, c = await self._dealt("triple", x.shape)
        opened = await self.open(_stacked(x - a, y - b))
        d, e = opened[0], opened[1]
        return c + _scaled(b, d) + _scaled(a, e) + self.constant(self.arithmetic.mul(d, e))

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x @ y`` by one triple of matrices: its bytes are those of the factors."""
        ring = self.arithmetic
        a, b, c = await self._dealt("dot", x.shape, y.shape)
        d, e = await self.open(x - a), await self.open(y - b)
        left = SharedArray(self, tuple(ring.dot(d, part) for part in b.parts))
        right = SharedArray(self, tuple(ring.dot(part, e) for part in a.parts))
        return c + left + right + self.constant(ring.dot(d, e))

    async def masks(self, shape: tuple[int, ...]) -> tuple[SharedArray, SharedArray]:
        """Random values, and their bits as rows of the bitwise computation, lowest first."""
        value, bits = await self.dealer.get("mask", shape)
        rows = SharedArray(self.bitwise, bits)
        return SharedArray(self, value), rows if self.bitwise is not self else rows.reshape(len(rows), -1)

    async def _lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        """With a random bit ``r`` that is shared in both ways: ``b XOR r`` is opened, and ``b = r + m - 2 m r`` for the opened ``m``."""
        n = int(np.prod(shape, dtype=int))
        packed, number = await self.dealer.get("bit", (n,))
        opened = await self.bitwise.open(bit + SharedArray(self.bitwise, packed))
        m = Binary.unpacked(opened, n).astype(np.uint64)
        r = SharedArray(self, number)
        return (r + m - _scaled(r, self.arithmetic.add(m, m))).reshape(*shape)


def _stacked(x: SharedArray, y: SharedArray) -> SharedArray:
    return SharedArray(x.by, tuple(np.stack(pair) for pair in zip(x.parts, y.parts, strict=True)))


def _scaled(x: SharedArray, values: Array) -> SharedArray:
    """A shared array times public elements."""
    ring = x.by.arithmetic
    return SharedArray(x.by, tuple(ring.mul(part, values) for part in x.parts))
