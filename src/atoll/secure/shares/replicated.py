"""Computing at three parties, each with two of three parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import LetterError

from ..keystream import SEED, Keystream, derived
from .computation import Computation, SharedArray
from .domain import Binary, WordRing
from .sharing import ReplicatedSharing
from .trio import Trio

if TYPE_CHECKING:
    from .domain import Array

__all__ = ["ReplicatedComputation"]


class _Common:
    """Uniform words that two neighbours draw alike, one after the other: the keystream of their seed."""

    def __init__(self, seed: bytes, use: str) -> None:
        self._words = Keystream(derived(seed, use))

    def uint64(self, shape: int | tuple[int, ...]) -> Array:
        return self._words(int(np.prod(shape, dtype=int))).reshape(shape)


class ReplicatedComputation(Computation):
    """Three parties, each with two of three parts (Araki et al. 2016): a product costs one element, and no dealer is needed.

    Neighbours agree on seeds once; from them every product is masked by shares of zero.
    """

    sharing: ReplicatedSharing

    def _begin(self) -> None:
        if isinstance(self.domain, WordRing):
            bits = ReplicatedSharing(Binary())
            self.bitwise = ReplicatedComputation(self.island, self.peers, self.parties, self.me, bits, self._dealer)
        self._seeds: tuple[bytes, bytes] | None = None
        self._zeros: list[_Common] | None = None
        self._trio: Trio | None = None

    @property
    def before(self) -> str:
        """The party before this one, around the ring."""
        return self.parties[self.place - 1]

    @property
    def after(self) -> str:
        """The party after this one."""
        return self.parties[(self.place + 1) % 3]

    async def trio(self) -> Trio:
        """The same three parties, computing on words under XOR; always the same one."""
        if self._trio is None:
            seeds = await self._agree()
            narrow = ReplicatedSharing(WordRing(32))
            places = ReplicatedComputation(self.island, self.peers, self.parties, self.me, narrow)
            places._seeds = (derived(seeds[0], "places"), derived(seeds[1], "places"))
            self._trio = Trio(self, seeds, places)
        return self._trio

    async def _agree(self) -> tuple[bytes, bytes]:
        """The seeds that this party has in common with the next and with the one before."""
        if self._seeds is None:
            mine = self.island.secret.bytes(SEED)
            await self.peers.send(self.after, mine)
            theirs = await self.peers.recv(self.before)
            if not isinstance(theirs, bytes) or len(theirs) != SEED:
                size = f"{len(theirs)} bytes" if isinstance(theirs, bytes) else f"type {type(theirs).__name__}"
                raise LetterError(f"a seed of {size} in place of {SEED} bytes", remedy=f"look at {self.before}")
            self._seeds = (mine, theirs)
        return self._seeds

    async def _zero(self, shape: tuple[int, ...]) -> Array:
        """This party's additive share of zero: what it shares with the next minus what it shares with the one before."""
        if self._zeros is None:
            self._zeros = [_Common(seed, "zero") for seed in await self._agree()]
        own, before = (self.domain.random(words, shape) for words in self._zeros)
        return self.domain.sub(own, before)

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y`` for one element to the party before."""
        ring = self.domain
        return await self._around(
            ring.add(ring.mul(x.parts[0], ring.add(y.parts[0], y.parts[1])), ring.mul(x.parts[1], y.parts[0]))
        )

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x @ y`` for the bytes of the result."""
        ring = self.domain
        return await self._around(
            ring.add(ring.dot(x.parts[0], ring.add(y.parts[0], y.parts[1])), ring.dot(x.parts[1], y.parts[0]))
        )

    async def _around(self, product: Array) -> SharedArray:
        mine = self.domain.add(product, await self._zero(product.shape))
        await self.peers.send(self.before, self._wire(mine))
        return SharedArray(self, (mine, self._unwired(await self.peers.recv(self.after), product.shape)))

    def own_parts(self, x: SharedArray, bits: bool) -> list[SharedArray]:
        """The three parts of a number, each known to two parties, as three shared values without a message: as bits in rows, or as they are."""
        target: Computation = self.bitwise if bits else self
        made = []
        for part in range(3):
            held = {(part - j) % 3: j for j in range(2)}  # holder -> which of its parts it is
            rows = [self._row(x.parts[held[self.place]], bits) if self.place in held else None]
            nothing = np.zeros_like(self._row(x.parts[0], bits))
            # Part `part` of the new sharing is the value, the other two are 0.
            parts = tuple(
                rows[0] if rows[0] is not None and (self.place + j) % 3 == part else nothing for j in range(2)
            )
            made.append(SharedArray(target, parts))
        return made

    def _row(self, part: Array, bits: bool) -> Array:
        if not bits:
            return part
        places = np.arange(self.domain.bits, dtype=np.uint64)[:, None]
        return Binary.packed((np.ravel(part) >> places) & np.uint64(1))

    async def _lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        """``b = b0 XOR b1 XOR b2``, where each of the three is known to two parties: two products."""
        n = int(np.prod(shape, dtype=int))
        numbers = SharedArray(self, tuple(Binary.unpacked(part, n).astype(np.uint64) for part in bit.parts))
        a, b, c = self.own_parts(numbers, bits=False)
        ab = a + b - await self.mul(a, b) * 2
        return (ab + c - await self.mul(ab, c) * 2).reshape(*shape)
