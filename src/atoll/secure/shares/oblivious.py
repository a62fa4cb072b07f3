"""Correlated randomness of two parties without a dealer: oblivious transfers in place of a third party's triples.

Each party draws its own shares, so only products of one party's number and the other's are missing. They are products by oblivious transfer (Gilboa 1999; Demmler, Schneider,
Zohner 2015, "ABY", section III-A), and products of bits are random transfers themselves: the receiver has the choice ``c`` and ``x_c``, the sender ``x_0`` and ``x_1``, so both have
shares of ``c (x_0 ^ x_1)``. Each party is the receiver of one direction and the sender of the other, each on a channel of its own.

| what | transfers each way | bytes, both ways together |
| --- | --- | --- |
| ``triple`` of a word | 64 | 2624 |
| ``triple`` of 64 bits | 64 | 2048 |
| ``dot`` of (n, k) and (k, m) | ``64 k min(n, m)`` | ``2 k min(n, m) (1024 + 288 max(n, m))`` |
| ``mask``, ``cut`` of k bits | ``k``, the first receives | ``24 k`` |
| ``bit`` | 1, the first receives | 24 |
| ``random`` | none | 0 |
| `ObliviousDealer.select_words` of w words | 1 | ``32 + 16 w`` |

Semi-honest, as the transfers are: a party that departs from them may learn the other's shares of triples.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.exposure import ProtocolFrame

from ..oblivious import TransferReceiver, TransferSender
from ..oblivious.base import POINT
from .domain import Binary, WordRing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

    from .dealer import Order
    from .domain import Array
    from .sharing import Parts

__all__ = ["ObliviousDealer", "transfer_frames"]

_CHANNELS = ("triples of the first", "triples of the second")
"""The channels on which the first and the second party receive."""
_COLUMNS, _ROW, _PRODUCT = 128, 16, 288
"""Base transfers, bytes of one transfer, and bytes of the 64 differences of a product."""
_MOST = 1 << 22
"""Words of partial products that are held at once."""


class ObliviousDealer:
    """A `Dealer` for additive shares of two parties over a `WordRing`, made by both in step.

    Args:
        secret: this party's entropy.
        send: its transfers to the other, on the channel on which the other receives.
        receive: its transfers from the other.
        first: whether this party is the first of the two.
        domain: the ring of the shares.

    Raises:
        ConfigError: the domain is no `WordRing`.
    """

    def __init__(
        self, secret: Secret, send: TransferSender, receive: TransferReceiver, *, first: bool, domain: WordRing | None = None
    ) -> None:  # fmt: skip
        self.domain = WordRing(64) if domain is None else domain
        if not isinstance(self.domain, WordRing):
            raise ConfigError(f"shares over {domain}", where="ObliviousDealer", remedy="use a WordRing, or a dealer that is a party: PartyDealer")  # fmt: skip
        self._secret, self._send, self._receive, self._first = secret, send, receive, first

    @classmethod
    async def begin(
        cls, secret: Secret, peers: Peers, peer: str, *, first: bool, domain: WordRing | None = None
    ) -> ObliviousDealer:
        """Run the base transfers with the other party, which calls this too: 128 each way, 8 KiB together.

        Args:
            secret: this party's entropy.
            peers: the session.
            peer: the other party's role.
            first: whether this party is the first of the two, for exactly one of them.
            domain: the ring of the shares; 64 bits by default.
        """
        mine, other = (peers.channel(name) for name in (_CHANNELS if first else _CHANNELS[::-1]))
        send, receive = await asyncio.gather(TransferSender.begin(secret, other, peer), TransferReceiver.begin(secret, mine, peer))  # fmt: skip
        return cls(secret, send, receive, first=first, domain=domain)

    def captured(self) -> dict[str, Any]:
        """The state as a message, for `peers.checkpoint`; it is secret."""
        return {"send": self._send.captured(), "receive": self._receive.captured()}

    @classmethod
    def restored(
        cls, state: Mapping[str, Any], secret: Secret, peers: Peers, peer: str, *, first: bool, domain: WordRing | None = None
    ) -> ObliviousDealer:  # fmt: skip
        """The dealer of a captured state; the arguments are those of `begin`."""
        mine, other = (peers.channel(name) for name in (_CHANNELS if first else _CHANNELS[::-1]))
        send = TransferSender.restored(state["send"], other, peer)
        receive = TransferReceiver.restored(state["receive"], mine, peer)
        return cls(secret, send, receive, first=first, domain=domain)

    async def get(
        self, what: str, *shapes: tuple[int, ...], bitwise: bool = False, by: int = 0, owner: int | None = None
    ) -> list[Parts]:
        """Make shares together with the other party, which asks for the same; see `Dealer.get`.

        Raises:
            ConfigError: additive shares over a ring have no such randomness.
            LetterError: the other party sends something else, so it has asked for something else.
        """
        del owner
        if what == "random":
            return [(self.domain.random(self._secret, shapes[0]),)]
        if what == "triple":
            return await (self._bit_triple(shapes[0]) if bitwise else self._triple(shapes[0]))
        if what == "dot":
            return await self._dot(*shapes)
        if what in ("mask", "cut", "bit"):
            return await self._masks(what, shapes[0], by)
        raise ConfigError(f"no {what!r} by transfers", where="ObliviousDealer", remedy="use additive shares, or a dealer that is a party: PartyDealer")  # fmt: skip

    async def select_words(self, bits: NDArray[np.bool_], words: Array) -> Array:
        """This party's shares of the rows of words where a shared bit is 1, and of zeros elsewhere, by one transfer each way a row.

        With ``b = b_0 ^ b_1`` a party's part of the words times b is ``b_i v_i + b_j v_i (1 - 2 b_i)``: its own product, and a correlated transfer by the other's bit.

        Args:
            bits: this party's part of the bits, which add up by XOR, ``(rows,)``.
            words: its part of the words, ``(rows, words)``.
        """
        own = np.where(bits[:, None], words, np.uint64(0))
        received, kept = await asyncio.gather(self._receive.correlate_words(bits, words.shape[1]), self._send.correlate_words(words - np.uint64(2) * own))  # fmt: skip
        return np.asarray(own - kept + received)

    async def _multiply(self, words: Array, factors: Array) -> Array:
        """This party's share of both sides' products: its rows of words with the other's factors, and the other's words with its own factors."""
        received, sent = await asyncio.gather(self._receive.multiply_words(factors, words.shape[1]), self._send.multiply_words(words))  # fmt: skip
        return np.asarray(received + sent)

    async def _triple(self, shape: tuple[int, ...]) -> list[Parts]:
        a, b = (self.domain.random(self._secret, shape) for _ in range(2))
        crossed = await self._multiply(b.reshape(-1, 1), a.ravel())
        return [(a,), (b,), (self.domain.add(self.domain.mul(a, b), crossed.reshape(shape)),)]

    async def _dot(self, left: tuple[int, ...], right: tuple[int, ...]) -> list[Parts]:
        """The smaller matrix is the receiver's, entry by entry; what stands beside an entry in the product is one row of words."""
        a, b = self.domain.random(self._secret, left), self.domain.random(self._secret, right)
        turned = right[1] <= left[0]
        small, large = (b, a.T) if turned else (a.T, b)  # both have the inner dimension first
        inner, few, many = len(small), small.shape[1], large.shape[1]
        total = np.zeros((few, many), dtype=np.uint64)
        step = max(1, _MOST // max(1, few * many))
        for at in range(0, inner, step):
            part = slice(at, at + step)
            crossed = await self._multiply(np.repeat(large[part], few, axis=0), small[part].ravel())
            total += crossed.reshape(-1, few, many).sum(axis=0, dtype=np.uint64)
        return [(a,), (b,), (self.domain.add(self.domain.dot(a, b), total.T if turned else total),)]

    async def _bit_triple(self, shape: tuple[int, ...]) -> list[Parts]:
        """Random transfers as they are: the choices are this party's bits of a, what its two values differ in those of b."""
        a = self._secret.uint64(shape)
        count = 64 * math.prod(shape)
        received, (zero, one) = await asyncio.gather(self._receive.draw_bits(Binary.unpacked(a.ravel(), count)), self._send.draw_bits(count))  # fmt: skip
        packed = [Binary.packed(bits).reshape(shape) for bits in (received, zero, zero ^ one)]
        return [(a,), (packed[2],), ((a & packed[2]) ^ packed[0] ^ packed[1],)]

    async def _masks(self, what: str, shape: tuple[int, ...], by: int) -> list[Parts]:
        """A random number is the XOR of both parties' own; ``r_i = u_i + v_i - 2 u_i v_i`` bit by bit, and one transfer each gives shares of ``u_i v_i``."""
        k = 1 if what == "bit" else self.domain.k
        places = np.arange(k, dtype=np.uint64).reshape(-1, *[1] * len(shape))
        mine = self.domain.random(self._secret, shape) & np.uint64((1 << k) - 1)
        bits = (mine >> places) & np.uint64(1)
        if self._first:
            both = await self._receive.correlate_words(bits.ravel())
        else:
            both = -await self._send.correlate_words(bits.ravel())
        numbers = bits - np.uint64(2) * both.reshape(bits.shape)

        def joined(rows: Array) -> Parts:
            weights = np.uint64(1) << places[: len(rows)]
            return ((rows * weights).sum(axis=0, dtype=np.uint64) & self.domain.mask,)

        if what == "cut":
            return [joined(numbers), joined(numbers[by : k - 1]), joined(numbers[k - 1 :])]
        packed = Binary.packed(bits.reshape(k, -1))
        return [(packed[0],), joined(numbers)] if what == "bit" else [joined(numbers), (packed,)]


def transfer_frames(parties: Sequence[str], orders: Sequence[Order], k: int = 64) -> list[ProtocolFrame]:
    """All that two parties send each other for some orders, with the base transfers: what a contract says of an `ObliviousDealer`.

    Args:
        parties: the two, in order.
        orders: what they ask for; ``select`` of (n, w) for `ObliviousDealer.select_words`.
        k: bits of the ring.
    """
    transfers, differences = [0, 0], [0, 0]
    for order in orders:
        for place, (rows, width) in enumerate(_costs(order, k)):
            transfers[place] += rows
            differences[place] += width
    frames = []
    for place, channel in enumerate(_CHANNELS):
        me, other = parties[place], parties[1 - place]
        frames += [
            ProtocolFrame(channel, me, other, 1, POINT, "A = aG"),
            ProtocolFrame(channel, other, me, _COLUMNS, POINT, "bG or bG + A, by secret bits"),
            ProtocolFrame(channel, me, other, transfers[place], _ROW, "one row a transfer, uniform"),
            ProtocolFrame(channel, other, me, differences[place], 1, "differences under pads, uniform"),
        ]
    return frames


def _costs(order: Order, k: int) -> list[tuple[int, int]]:
    """Transfers to the first and to the second party, and bytes of differences that each receives."""
    if order.what == "random":
        return []
    if order.what == "dot":
        (n, inner), (_, m) = order.shapes
        entries, words = inner * min(n, m), max(n, m)
        return [(64 * entries, _PRODUCT * entries * words)] * 2
    if order.what == "select":
        n, words = order.shapes[0]
        return [(n, 8 * n * words)] * 2
    count = math.prod(order.shapes[0])
    if order.what == "triple":
        return [(64 * count, 0 if order.bitwise else _PRODUCT * count)] * 2
    bits = count * (1 if order.what == "bit" else k)
    return [(bits, 8 * bits)]
