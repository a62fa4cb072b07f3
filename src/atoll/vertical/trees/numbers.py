"""Whole numbers and bits that a learner computes with, in plain or shared between two parties: the same program runs on both, with the same results to the bit.

`SharedNumbers` hides them from both parties without a dealer. A number x is ``x_0 + x_1`` modulo ``2^64``, a bit ``b_0 ^ b_1``; each party has one part. What needs the other
party stands on oblivious transfers (`atoll.secure.oblivious`), each party the sender of one direction:

=====================  ==========================================================================================  =======================
operation              how                                                                                         transfers a number
=====================  ==========================================================================================  =======================
``multiply``           ``x_0 y_1`` and ``x_1 y_0`` by products of words (Gilboa 1999)                              128
``meet``               AND of bits, by triples of random bits                                                      2
``choose``             a bit times words: ``b x_0 = b_0 x_0 + b_1 x_0 (1 - 2 b_0)``, and so for ``x_1``             2
``lift``               a bit as a number, by random bits that are shared in both ways                              1
``cut``                ``x >> k``: parts are cut alone; the carry of the low bits is a comparison of two numbers   about ``5 k``
                       that one party each knows (Rathee et al. 2020, "CrypTFlow2", section III)
``find_negative``      the carry of the 63 low bits                                                                about 315
=====================  ==========================================================================================  =======================

Both parties must follow the protocol.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.message import Bits
from atoll.secure.oblivious import TransferReceiver, TransferSender

from ..model import require

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel, Peers
    from atoll.core.requests.island import Secret

__all__ = ["Flags", "Numbers", "PlainNumbers", "SharedNumbers", "run_plain"]

Numbers = Any
"""An array of numbers: ``int64`` in plain, ``uint64`` as one party's parts."""
Flags = Any
"""An array of bits: bits in plain, or one party's parts. ``^`` is exclusive or in both forms."""
_OFFSET = 62
"""Numbers that are cut are below ``2^62`` in size."""
_STOCK = 1 << 15
"""Random bits that are made at once."""
_CHANNELS = ("transfers to the first", "transfers to the second")


def run_plain(program: Any) -> Any:
    """The result of a program over `PlainNumbers`: nobody is asked, so that it never waits."""
    try:
        program.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a program over plain numbers waited for a party")


class PlainNumbers:
    """Numbers and bits in plain: what `SharedNumbers` computes, for all data in one place."""

    first = True

    def constant(self, values: Any) -> Numbers:
        """Public whole numbers."""
        return np.asarray(values, np.int64)

    def own(self, values: Any) -> Numbers:
        """Numbers that the first party has."""
        return np.asarray(values, np.int64)

    def scaled(self, x: Numbers, factor: int) -> Numbers:
        """``x`` times a public whole number."""
        return x * np.int64(factor)

    def flip(self, bits: Flags) -> Flags:
        """The opposite bits."""
        return ~bits

    def lowest(self, x: Numbers) -> Flags:
        """The lowest bit of each number."""
        return (x & 1).astype(np.bool_)

    async def multiply(self, x: Numbers, y: Numbers) -> Numbers:
        """``x y``, entry by entry, of one shape."""
        return x * y

    async def multiply_rows(self, x: Numbers, y: Numbers) -> Numbers:
        """``(rows, words)`` times ``(rows,)``."""
        return x * y[:, None]

    async def cut(self, x: Numbers, by: int) -> Numbers:
        """``x / 2^by`` rounded down, exactly, for ``|x| < 2^62``."""
        return x >> by

    async def find_negative(self, x: Numbers) -> Flags:
        """Whether each number is below 0."""
        return x < 0

    async def find_leading(self, x: Numbers, bits: int) -> list[Flags]:
        """Whether bit i is the highest of each number from 0 to ``2^bits - 1``, for each i."""
        return [(x >> i) == 1 for i in range(bits)]

    async def meet(self, a: Flags, b: Flags) -> Flags:
        """``a`` and ``b``."""
        return a & b

    async def choose(self, bits: Flags, words: Numbers) -> Numbers:
        """``(rows, words)`` where the row's bit is set, else 0."""
        return np.where(bits[:, None], words, 0)

    async def lift(self, bits: Flags) -> Numbers:
        """Bits as numbers."""
        return bits.astype(np.int64)

    async def show(self, x: Numbers) -> NDArray[np.int64]:
        """The numbers, to both parties."""
        return np.asarray(x, np.int64)

    async def show_bits(self, bits: Flags) -> NDArray[np.bool_]:
        """The bits, to both parties."""
        return np.asarray(bits)

    async def show_first(self, x: Numbers) -> NDArray[np.int64]:
        """The numbers, to the first party alone."""
        return np.asarray(x, np.int64)


class SharedNumbers:
    """One party's side of numbers and bits that neither sees.

    Args:
        secret: this party's entropy.
        peer: the other party's role.
        peers: the channel on which values are shown.
        send: transfers to the other party.
        receive: transfers from it.
        first: whether this is the first party.
    """

    def __init__(
        self, secret: Secret, peer: str, peers: PeerChannel, send: TransferSender, receive: TransferReceiver, *, first: bool
    ) -> None:  # fmt: skip
        self._secret, self.peer, self.first, self._peers, self._send, self._receive = (
            secret,
            peer,
            first,
            peers,
            send,
            receive,
        )
        self._triples = np.zeros((3, 0), np.bool_)
        self._bits: tuple[Flags, Numbers] = (np.zeros(0, np.bool_), np.zeros(0, np.uint64))

    @classmethod
    async def begin(cls, secret: Secret, peers: Peers, shown: PeerChannel, peer: str, *, first: bool) -> SharedNumbers:
        """Run the base transfers with the other party, which calls this too.

        Args:
            secret: this party's entropy.
            peers: the session; it carries the transfers on two channels of its own.
            shown: the channel on which values are shown.
            peer: the other party's role.
            first: whether this is the first party, for exactly one of them.
        """
        mine, other = (peers.channel(name) for name in (_CHANNELS if first else _CHANNELS[::-1]))
        send, receive = await asyncio.gather(
            TransferSender.begin(secret, other, peer), TransferReceiver.begin(secret, mine, peer)
        )
        return cls(secret, peer, shown, send, receive, first=first)

    def constant(self, values: Any) -> Numbers:
        """Public whole numbers: the first party's part."""
        made = np.asarray(values, np.int64).astype(np.uint64)
        return made if self.first else np.zeros_like(made)

    def own(self, values: Any) -> Numbers:
        """Numbers that the first party has; the other gives zeros of their shape."""
        return self.constant(values)

    def scaled(self, x: Numbers, factor: int) -> Numbers:
        """``x`` times a public whole number."""
        return x * np.uint64(factor & 0xFFFFFFFFFFFFFFFF)

    def flip(self, bits: Flags) -> Flags:
        """The opposite bits."""
        return ~bits if self.first else bits

    def lowest(self, x: Numbers) -> Flags:
        """The lowest bit of each number."""
        return (x & np.uint64(1)).astype(np.bool_)

    async def multiply(self, x: Numbers, y: Numbers) -> Numbers:
        """``x y``, entry by entry, of one shape."""
        return (await self.multiply_rows(x.reshape(-1, 1), y.ravel())).reshape(x.shape)

    async def multiply_rows(self, x: Numbers, y: Numbers) -> Numbers:
        """``(rows, words)`` times ``(rows,)``: 64 transfers a row each way."""
        sent, got = await asyncio.gather(self._send.multiply_words(x), self._receive.multiply_words(y, x.shape[1]))
        return x * y[:, None] + sent + got

    async def cut(self, x: Numbers, by: int) -> Numbers:
        """``x / 2^by`` rounded down, exactly, for ``|x| < 2^62``."""
        if by == 0:
            return x
        raised = x + self.constant(np.full(x.shape, 1 << _OFFSET))
        low = raised & np.uint64((1 << by) - 1)
        top = (raised >> np.uint64(63)).astype(np.bool_)
        # The sum is below 2^63, so that its parts wrap around exactly where one of them has the top bit.
        carried = await self.lift(np.stack([await self._carry(low, by), top ^ await self._meet_parts(top)]))
        return (
            (raised >> np.uint64(by))
            + carried[0]
            - (carried[1] << np.uint64(64 - by))
            - self.constant(np.full(x.shape, 1 << (_OFFSET - by)))
        )

    async def find_negative(self, x: Numbers) -> Flags:
        """Whether each number is below 0, for ``|x| < 2^63``: the top bits and the carry into them."""
        top = (x >> np.uint64(63)).astype(np.bool_)
        return top ^ await self._carry(x & np.uint64((1 << 63) - 1), 63)

    async def find_leading(self, x: Numbers, bits: int) -> list[Flags]:
        """Whether bit i is the highest of each number from 0 to ``2^bits - 1``, for each i: carries of all prefixes, then an OR from the top."""
        parts = [((x >> np.uint64(i)) & np.uint64(1)).astype(np.bool_) for i in range(bits)]
        passed = np.stack(parts)
        carries, step, shown = await self._meet_parts(passed), 1, passed.copy()
        while step < bits:  # Kogge, Stone 1973
            made = await self.meet(
                np.concatenate([passed[step:], passed[step:]]), np.concatenate([carries[:-step], passed[:-step]])
            )
            half = bits - step
            carries = np.concatenate([carries[:step], carries[step:] ^ made[:half]])
            passed = np.concatenate([passed[:step], made[half:]])
            step *= 2
        found = shown
        found[1:] ^= carries[:-1]
        none, step = self.flip(found), 1  # no bit from here up
        while step < bits:
            made = await self.meet(none[:-step], none[step:])
            none, step = np.concatenate([made, none[-step:]]), 2 * step
        # Bit i leads where nothing is above it, and something from it up.
        above = [*none[1:], self.flip(np.zeros_like(none[0]))]
        return [one ^ other for one, other in zip(above, none, strict=True)]

    async def meet(self, a: Flags, b: Flags) -> Flags:
        """``a`` and ``b``, by a triple of random bits ``(u, v, u v)`` each: ``a ^ u`` and ``b ^ v`` are shown."""
        count = a.size
        while self._triples.shape[1] < count:
            await self._make_triples(max(_STOCK, count))
        (u, v, both), self._triples = self._triples[:, :count], self._triples[:, count:]
        d, e = await self.show_bits(np.stack([a.ravel() ^ u, b.ravel() ^ v]))
        found = both ^ (d & v) ^ (e & u)
        return (found ^ (d & e) if self.first else found).reshape(a.shape)

    async def _make_triples(self, count: int) -> None:
        """Random transfers as they are: the choices are this party's bits of u, what its two values differ in those of v (as `ObliviousDealer` does)."""
        u = _draw_bits(self._secret, count)
        got, (zero, one) = await asyncio.gather(self._receive.draw_bits(u), self._send.draw_bits(count))
        v = zero ^ one
        self._triples = np.concatenate([self._triples, np.stack([u, v, (u & v) ^ got ^ zero])], axis=1)

    async def choose(self, bits: Flags, words: Numbers) -> Numbers:
        """``(rows, words)`` where the row's bit is set, else 0."""
        signed = np.where(bits[:, None], -words, words)
        sent, got = await asyncio.gather(
            self._send.correlate_words(signed), self._receive.correlate_words(bits, words.shape[1])
        )
        return np.where(bits[:, None], words, np.uint64(0)) + got - sent

    async def lift(self, bits: Flags) -> Numbers:
        """Bits as numbers, by random bits r that are shared in both ways: ``b ^ r`` is shown, and ``b = m + r - 2 m r``."""
        count = bits.size
        while len(self._bits[0]) < count:
            await self._make_bits(max(_STOCK, count))
        r, number = (one[:count] for one in self._bits)
        self._bits = (self._bits[0][count:], self._bits[1][count:])
        m = (await self.show_bits(bits.ravel() ^ r)).astype(np.uint64)
        return (self.constant(m) + number - np.uint64(2) * m * number).reshape(bits.shape)

    async def _make_bits(self, count: int) -> None:
        """``r = r_0 + r_1 - 2 r_0 r_1``, the product by a correlated transfer."""
        r = _draw_bits(self._secret, count)
        mine = r.astype(np.uint64)
        both = await self._receive.correlate_words(r) if self.first else -(await self._send.correlate_words(mine))
        kept = np.concatenate([self._bits[0], r]), np.concatenate([self._bits[1], mine - np.uint64(2) * both])
        self._bits = kept

    async def show(self, x: Numbers) -> NDArray[np.int64]:
        """The numbers, to both parties."""
        await self._peers.send(self.peer, x)
        return np.asarray(x + self._heard(await self._peers.recv(self.peer), x.shape)).astype(np.int64)

    async def show_bits(self, bits: Flags) -> NDArray[np.bool_]:
        """The bits, to both parties."""
        await self._peers.send(self.peer, Bits.pack(bits.ravel()))
        heard = await self._peers.recv(self.peer)
        require(
            isinstance(heard, Bits) and heard.shape == (bits.size,), f"no {bits.size} bits of {self.peer!r}", "Pivot"
        )
        return np.asarray(bits ^ np.asarray(heard.unpack()).reshape(bits.shape))

    async def show_first(self, x: Numbers) -> NDArray[np.int64]:
        """The numbers, to the first party alone; the other gets zeros."""
        if not self.first:
            await self._peers.send(self.peer, x)
            return np.zeros(x.shape, np.int64)
        return np.asarray(x + self._heard(await self._peers.recv(self.peer), x.shape)).astype(np.int64)

    def _heard(self, found: Any, shape: tuple[int, ...]) -> Numbers:
        good = isinstance(found, np.ndarray) and found.shape == shape and found.dtype == np.uint64
        require(good, f"no numbers of {self.peer!r} of shape {shape}", "Pivot")
        return found

    async def _meet_parts(self, mine: Flags) -> Flags:
        """AND of bits of which each party knows one."""
        nothing = np.zeros_like(mine)
        return await self.meet(*((mine, nothing) if self.first else (nothing, mine)))

    async def _carry(self, mine: Numbers, bits: int) -> Flags:
        """Whether the sum of both parties' numbers of ``bits`` bits reaches ``2^bits``: neighbours join to ``g = g_high + p_high g_low``, ``p = p_high p_low``."""
        places = np.arange(bits, dtype=np.uint64).reshape(-1, *[1] * mine.ndim)
        passed = ((mine >> places) & np.uint64(1)).astype(np.bool_)
        generated = await self._meet_parts(passed)
        while len(generated) > 1:
            half = len(generated) // 2
            low, high = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
            made = await self.meet(
                np.concatenate([passed[high], passed[high]]), np.concatenate([generated[low], passed[low]])
            )
            joined, through = generated[high] ^ made[:half], made[half:]
            if len(generated) % 2:
                joined = np.concatenate([joined, generated[-1:]])
                through = np.concatenate([through, passed[-1:]])
            generated, passed = joined, through
        return generated[0]


def _draw_bits(secret: Secret, count: int) -> NDArray[np.bool_]:
    return np.unpackbits(np.frombuffer(secret.bytes(-(-count // 8)), np.uint8), count=count).astype(np.bool_)
