"""Bits with codes, for 2 to 16 parties of which all but one may cheat: circuits of XOR and AND, whose every opened bit is checked before a result leaves.

A bit ``x`` is a word ``x alpha`` under a key ``alpha`` of 64 bits that nobody knows; each party has a part of the word, and parts add up by XOR (`BitSharing`). Sums and public factors need no message. An AND
uses up a triple of the dealer (Beaver 1991) and opens two bits: ``xy = c + d b + e a + d e`` with ``d = x + a`` and ``e = y + b``. Codes of bits over one key are those of SPDZ (Damgård et al. 2012) over
``GF(2)``, as in MiniMAC and its successors (Frederiksen, Keller, Orsini, Scholl 2015, "A unified approach to MPC with preprocessing using OT").

An opened bit ``x`` has its code if the words ``z_i = m_i + x alpha_i`` of all parties add up to 0. Many are checked at once: the parties draw a coin, each computes the polynomial ``sum_j z_ij h^j`` over
``GF(2^128)`` at the point that the coin gives (the hash of AES-GCM, NIST SP 800-38D, which is linear), commits to it, and shows it. A wrong bit passes with a probability of ``2^-63``.

Inputs: the dealer shows a random shared bit to its owner, which tells everyone the difference. All parties have the owner's commitment to the differences, and have compared it, before it shows them.

| | messages | bytes |
| --- | --- | --- |
| a layer of n ANDs | 1 to each other party | n / 4 each, and 24 n from the dealer to the last party |
| an input of n bits | 2 from the owner, 1 from each to each | n / 8, and 8 n from the dealer to the last party |
| a check | 4 to each other party | about 200 |
| n bits lent by some parties, taken over by all | 1 of the first lender to who is none, 2 to each other party | n / 8 each, and 16 n from the dealer |

The dealer follows the protocol, colludes with nobody, and sees how many gates there are. A party that cheats or dies ends the computation for all, without a result.
"""

from __future__ import annotations

import hashlib
import math
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.extras import need

from ..garbled.wires import Gates, Wires, number_bits, read_numbers, require_shape
from ..keystream import SEED, opened
from .authenticated import Committing
from .computation import tell_all
from .dealer import read_stream
from .domain import Binary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Island

    from .dealer import Dealer
    from .domain import Array

__all__ = ["AuthenticatedBits"]

_MOST_PARTIES = 16
MOST_ORDER = 1 << 17
"""ANDs that are computed with one message, and triples of the largest order: 3 MiB."""
LEAST_ORDER = 1 << 12
"""Triples of the first order; each is twice as large as the one before."""
PENDING = 1 << 20
"""Opened bits from which a check is due: 8 MiB of words that wait for it."""
_ONE = np.uint64(1)
_WHERE = "AuthenticatedBits"
_STOP = "do not use any result of this computation"


class AuthenticatedBits(Gates, Committing):
    """One party's side. Use it in ``async with``; circuits are those of `atoll.secure.garbled`.

    Args:
        island: this party's place; its secret is the source of its coins.
        peers: the session.
        parties: the roles that compute, in the order that all agree on.
        me: this party's role.
        dealer: a `PartyDealer`, whose role runs `deal` with the spec of a `BitSharing`.

    Raises:
        ConfigError: there are not 2 to 16 parties with names of their own, or this one is none of them.
    """

    block = 4  # a layer is a message

    def __init__(self, island: Island, peers: PeerChannel, parties: Sequence[str], me: str, dealer: Dealer) -> None:
        if not 2 <= len(parties) <= _MOST_PARTIES or len(set(parties)) != len(parties) or me not in parties:
            raise ConfigError(f"party {me!r} of {list(parties)}", where=_WHERE, remedy=f"name 2 to {_MOST_PARTIES} roles once each, this one too")  # fmt: skip
        self.island, self.peers, self.parties, self.me, self.dealer = island, peers, tuple(parties), me, dealer
        self.place = self.parties.index(me)
        self._key = np.uint64(0)
        self._stream: Any = None
        self._triples = np.empty((3, 0), dtype=np.uint64)
        self._order = LEAST_ORDER
        self._pending: list[Array] = []

    # ------------------------------------------------------------------ what the dealer gives

    async def __aenter__(self) -> AuthenticatedBits:
        """Get this party's part of the key, and its seed."""
        rows = await self.dealer.get("key")
        self._key = rows[0][0][0]
        if self.me != self.parties[-1]:
            self._stream = opened(rows[1][0].astype("<u8").tobytes())
        return self

    async def __aexit__(self, *raised: object) -> None:
        if raised[0] is None:
            await self.check()
        close = getattr(self.dealer, "close", None)
        if close is not None:
            await close()

    def _parts(self, rows: list[Any], shape: tuple[int, ...]) -> Array:
        """This party's parts of what was dealt."""
        return read_stream(self._stream, shape) if self._stream is not None else np.asarray(rows[0][0])

    async def _take_triples(self, count: int) -> Array:
        """The parts of a, b and ab, ``(3, count)``."""
        while self._triples.shape[1] < count:
            rows = await self.dealer.get("triple", (self._order,), bitwise=True)
            self._triples = np.concatenate([self._triples, self._parts(rows, (3, self._order))], axis=1)
            self._order = min(2 * self._order, MOST_ORDER)
        taken, self._triples = self._triples[:, :count], self._triples[:, count:]
        return taken

    # ------------------------------------------------------------------ gates

    def flip(self, x: Wires, bits: NDArray[np.bool_]) -> Wires:
        """``x + 1`` where the bit is 1: the word of 1 is the key."""
        return Wires(self, x.data ^ (bits * self._key))

    async def conjoin(self, x: Wires, y: Wires) -> Wires:
        """AND, by one triple and two opened bits an entry."""
        require_shape(x, y)
        a, b = (np.ascontiguousarray(wires.data).reshape(-1) for wires in (x, y))
        made = np.empty_like(a)
        for start in range(0, len(a), MOST_ORDER):
            part = slice(start, start + MOST_ORDER)
            u, v, w = await self._take_triples(len(a[part]))
            d, e = await self._open(np.stack([a[part] ^ u, b[part] ^ v]))
            made[part] = w ^ (v & d) ^ (u & e) ^ (self._key & d & e)
        return Wires(self, made.reshape(1, *x.shape))

    async def _open(self, words: Array) -> Array:
        """The bits of words, as words of zeros or ones, of the same shape; they are noted for `check`."""
        packed = np.packbits((words & _ONE).astype(np.uint8), bitorder="little")
        bits = packed.copy()
        for party, told in zip(self.parties, await self.tell(packed), strict=True):
            if party != self.me:
                bits ^= self._require_bits(told, packed.shape, party)
        shown = -np.unpackbits(bits, count=words.size, bitorder="little").astype(np.uint64).reshape(words.shape)
        self._pending.append(np.ravel(words ^ (shown & self._key)))
        if sum(map(len, self._pending)) >= PENDING:
            await self.check()
        return np.asarray(shown)

    def _require_bits(self, told: Any, shape: tuple[int, ...], party: str) -> NDArray[np.uint8]:
        if isinstance(told, np.ndarray) and told.dtype == np.uint8 and told.shape == shape:
            return told
        found = f"{told.dtype}{told.shape}" if isinstance(told, np.ndarray) else type(told).__name__
        raise LetterError(f"party {party!r} sent {found} in place of bits, uint8{shape}", where=_WHERE, remedy=f"look at {party}: all parties must run the same program")  # fmt: skip

    # ------------------------------------------------------------------ inputs and results

    async def share(self, values: Any = None, *, owner: str, bits: int, rows: int) -> Wires:
        """Share an owner's numbers; see `Gates.share`.

        Raises:
            LetterError: the owner committed to other numbers than it showed, or told parties different commitments.
        """
        if owner not in self.parties or not 1 <= bits <= 64:
            raise ConfigError(f"owner={owner!r} and bits={bits}", where="share", remedy=f"name one of {list(self.parties)}, and 1 to 64 bits")  # fmt: skip
        dealt = await self.dealer.get("input", (bits * rows,), bitwise=True, owner=self.parties.index(owner))
        mask = self._parts(dealt, (bits * rows,))
        difference = np.zeros(0, dtype=np.uint8)
        if owner == self.me:
            own = number_bits(values, bits)
            if own.shape[1] != rows:
                raise DataError(f"{own.shape[1]} values", where="share", remedy=f"share {rows}, as all parties expect")
            difference = np.packbits(own.ravel() ^ Binary.unpacked(dealt[-1][0], bits * rows), bitorder="little")
        shown = await self._fix(owner, difference, (-(-bits * rows // 8),))
        changed = np.unpackbits(shown, count=bits * rows, bitorder="little").astype(bool)
        return Wires(self, (mask ^ (changed * self._key)).reshape(1, bits, rows))

    async def _fix(self, owner: str, difference: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """What an owner shows to all parties alike: each has its commitment, and has compared it with the others, before it shows anything."""
        others = [party for party in self.parties if party != owner]
        nonce = self.island.secret.bytes(SEED) if owner == self.me else b""
        promise = self._promise(owner, nonce, difference.tobytes())
        if owner != self.me:
            promise = await self.peers.recv(owner)
        else:
            for party in others:
                await self.peers.send(party, promise)
        for party, told in zip(self.parties, await self.tell(promise), strict=True):
            if told != promise:
                raise LetterError(f"{owner} told {self.me} and {party} different commitments to its input, or {party} says so", where=_WHERE, remedy=_STOP)  # fmt: skip
        if owner != self.me:
            return self._require_shown(owner, promise, await self.peers.recv(owner), shape)
        for party in others:
            await self.peers.send(party, [nonce, difference])
        return difference

    def _require_shown(self, owner: str, promise: bytes, told: Any, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        if not isinstance(told, list) or len(told) != 2 or not isinstance(told[0], bytes) or len(told[0]) != SEED:
            raise LetterError(f"party {owner!r} sent something else in place of its committed input", where=_WHERE, remedy=f"look at {owner}: all parties must run the same program")  # fmt: skip
        shown = self._require_bits(told[1], shape, owner)
        if self._promise(owner, told[0], shown.tobytes()) != promise:
            raise LetterError(f"{owner} showed another input than it had committed to", where=_WHERE, remedy=_STOP)
        return shown

    async def reveal(self, x: Wires, to: str | None = None) -> NDArray[np.uint64] | None:
        """Show numbers, after all that they follow from was checked; see `Gates.reveal`. To one role they go under a mask that the dealer shows to it alone.

        Raises:
            LetterError: an opened bit does not have its code.
        """
        if to is not None and to not in self.parties:
            raise ConfigError(f"to={to!r}", where="reveal", remedy=f"name one of {list(self.parties)}, or None for all")
        await self.check()
        words, own = x.data[0], None
        if to is not None:
            count = math.prod(x.shape)
            dealt = await self.dealer.get("input", (count,), bitwise=True, owner=self.parties.index(to))
            words = words ^ self._parts(dealt, (count,)).reshape(x.shape)
            own = Binary.unpacked(dealt[-1][0], count).reshape(x.shape) if to == self.me else None
        shown = await self._open(words) & _ONE
        await self.check()
        if to is not None and own is None:
            return None
        return read_numbers(shown if own is None else shown ^ own)

    async def hand_out(self, x: Wires) -> NDArray[np.uint64]:
        """This party's part of the key, and of the word of each bit, after all that they follow from was checked; see `Gates.hand_out`. Nothing may be computed after it: whoever reads the parts has the key."""
        await self.check()
        return np.concatenate([np.array([self._key], dtype=np.uint64), x.data.reshape(-1)])

    @staticmethod
    def read_parts(parts: Sequence[Any], count: int) -> NDArray[np.bool_]:
        """See `Gates.read_parts`: the word of a bit is 0, or the key. Whoever alters its part must hit a key that it does not know."""
        if any(not isinstance(one, np.ndarray) or one.dtype != np.uint64 or one.shape != (count + 1,) for one in parts):
            raise LetterError("the parts of a result have another form", where=_WHERE, remedy=_STOP)
        key, words = (joined := np.bitwise_xor.reduce(np.stack(parts)))[0], joined[1:]
        if not key & _ONE or (words[words != 0] != key).any():
            raise LetterError("a part of a result was altered", where=_WHERE, remedy=_STOP)
        return np.asarray(words != 0)

    # ------------------------------------------------------------------ between groups

    async def lend(self, x: Wires) -> NDArray[np.uint8]:
        """Show bits under a mask that the dealer keeps for another group of parties, after all that they follow from was checked; it takes them over by `borrow`.

        Returns:
            The masked bits, eight a byte. They say nothing: the mask is uniform, and nobody has it.

        Raises:
            LetterError: an opened bit does not have its code.
        """
        await self.check()
        count = math.prod(x.shape)
        mask = self._parts(await self.dealer.get("lend", (count,), bitwise=True), (count,))
        shown = await self._open(x.data.reshape(-1) ^ mask) & _ONE
        await self.check()
        return np.packbits(shown.astype(np.uint8), bitorder="little")

    async def borrow(self, shown: NDArray[np.uint8] | None, shape: tuple[int, ...], *, lenders: Sequence[str], number: int) -> Wires:  # fmt: skip
        """Bits of a group of parties, some of these, under the key of all of these (Poddar et al. 2021, section 5, "soldering", with a dealer's bits in place of wire labels).

        Args:
            shown: what `lend` gave, at a lender.
            shape: of the bits.
            lenders: the group.
            number: its number at the dealer.

        Raises:
            LetterError: parties have different bits of it. One lender that follows the protocol is enough for that.
        """
        count = math.prod(shape)
        first, outside = next(one for one in self.parties if one in lenders), set(self.parties) - set(lenders)
        if self.me == first:
            await self.peers.broadcast(shown, sorted(outside))
        elif self.me in outside:
            shown = self._require_bits(await self.peers.recv(first), (-(-count // 8),), first)
        if shown is None:
            raise ConfigError(f"{self.me} is one of those who lend, and has nothing of it", where="borrow", remedy="give what lend returned")  # fmt: skip
        digest = hashlib.sha256(b"atoll lent bits" + shown.tobytes()).digest()
        for party, told in zip(self.parties, await self.tell(digest), strict=True):
            if told != digest:
                sure = party == first or {party, self.me} <= set(lenders)
                raise LetterError(f"{party if sure else f'{first} or {party}'} says another result of what {', '.join(lenders)} computed among themselves", where=_WHERE, remedy=_STOP)  # fmt: skip
        mask = self._parts(await self.dealer.get("borrow", (count,), bitwise=True, by=number), (count,))
        changed = np.unpackbits(shown, count=count, bitorder="little").astype(bool)
        return Wires(self, (mask ^ (changed * self._key)).reshape(1, *shape))

    # ------------------------------------------------------------------ checks

    async def tell(self, message: Any) -> list[Any]:
        """Send a message to every other party and return theirs, in the order of the parties, with mine in its place."""
        return await tell_all(self.peers, self.parties, self.me, message)

    async def check(self) -> None:
        """Check all bits that were opened so far; see the module.

        Raises:
            LetterError: one of them does not have its code: a party altered its part.
        """
        if not self._pending:
            return
        words, self._pending = np.concatenate(self._pending), []
        coin = await self._coin()
        total = np.zeros(2, dtype="<u8")
        for told in await self._committed(_hash_words(coin, words).tobytes()):
            total ^= np.frombuffer(told, dtype="<u8")
        if total.any():
            raise LetterError("an opened bit does not have its code: a party altered its part", where=_WHERE, remedy=_STOP)  # fmt: skip


def _hash_words(coin: bytes, words: Array) -> NDArray[np.uint64]:
    """``sum_j w_j h^j`` over ``GF(2^128)``, where the coin is the key that makes h: the code of GCM of the words, and that of zeros taken away."""
    ciphers = need("cryptography.hazmat.primitives.ciphers", "secure", "authenticated bits")
    codes = []
    for content in (words.astype("<u8", copy=False).data.cast("B"), bytes(8 * len(words))):
        cipher = ciphers.Cipher(ciphers.algorithms.AES(coin[:16]), ciphers.modes.GCM(coin[16:28])).encryptor()
        cipher.authenticate_additional_data(content)
        cipher.finalize()
        codes.append(np.frombuffer(cipher.tag, dtype="<u8"))
    return np.asarray(codes[0] ^ codes[1])
