"""Garbled circuits of two owners: one *garbles* a circuit, the other *evaluates* it and sees labels alone (Yao 1986).

A wire has two labels of 128 bits, ``W`` for 0 and ``W ^ R`` for 1, with one secret ``R`` of the garbler for all wires: XOR is free (Kolesnikov, Schneider 2008). The lowest bit of ``R``
is 1, so the lowest bit of a label says which row of a table it opens, and no more (point and permute, Beaver, Micali, Rogaway 1990). An AND is two half gates, 32 bytes (Zahur, Rosulek, Evans
2015, "Two halves make a whole"). With ``p`` and ``q`` the lowest bits of ``A`` and ``B``, the garbler sends

    T = H(A, i) ^ H(A ^ R, i) ^ q R,    U = H(B, j) ^ H(B ^ R, j) ^ A,

and the label of 0 is ``C = H(A, i) ^ p T ^ H(B, j) ^ q (U ^ A)``; the evaluator has one label of each wire, and computes the same with their own lowest bits.

The hash is ``H(x, i) = P(s(x) ^ i) ^ s(x) ^ i`` with AES-128 under a public key of the session as ``P``: that of the paper (its section 5.3, after Bellare, Hoang, Keelveedhi, Rogaway 2013), with the
orthomorphism ``s(u, v) = (u ^ v, u)`` in place of doubling (Guo, Katz, Wang, Yu 2020, "Efficient and secure multiparty computation from fixed-key block ciphers"). A number ``i`` is used once. With
``g`` gates an attacker of ``t`` AES calls has an advantage of about ``t g / 2^128`` (Guo et al. 2020, "Better concrete security for half-gates garbling").

The evaluator's inputs come by correlated transfers: a row of the extension (`atoll.secure.oblivious`) whose secret bits are ``R`` *is* a label, for 16 bytes. Those of the garbler, and public bits, cost
nothing: both draw the label that the evaluator holds from a public stream, and only the garbler knows for which bit it stands.

Messages: a few at the beginning and for each result, and tables in between, which the garbler streams in frames of 1 MiB, 32 MiB ahead at most. Semi-honest: both parties follow the protocol.
Then each learns its results and no more; the other's messages depend on sizes alone. Whoever receives a result also checks that its labels are labels, so damaged tables or labels end in an error. A
garbler that departs from the protocol may garble another circuit.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.exposure import Contract, Exposure, ProtocolFrame
from atoll.core.extras import need

from ..keystream import opened
from ..oblivious import CodeReceiver, CodeSender, receive_seeds
from ..oblivious.base import POINT, check_rows
from .wires import GateCounter, Gates, Wires, number_bits, read_numbers, require_shape

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

    from .wires import Array

__all__ = [
    "Evaluator",
    "Garbler",
    "LabelHash",
    "begin_garbling",
    "evaluate_gates",
    "garble_gates",
    "garbling_contract",
    "message_sizes",
]

_LABEL, _COLUMNS, _DIGEST, _TAG = 16, 128, 32, 8
_KEYS = 48
"""Bytes that open a session: the key of the permutation, and the seed of the public stream."""
_BLOCK = 1 << 12
"""Gates that are garbled at once: they stay in the processor's cache."""
_FRAME = 1 << 15
"""Gates of a frame of tables, 1 MiB."""
_AHEAD, _CREDIT = 32, 8
"""Frames that the garbler may be ahead of the evaluator, and frames after which the evaluator says where it is."""
_ROWS = 1 << 16
"""Transfers in one frame of corrections, 1 MiB."""
_ONE = np.uint64(1)
_WHERE = "garbled circuit"
_DAMAGED = (
    "do not use any result of this computation: tables or labels were altered, or the parties run different programs"
)
_CHANNELS = {"transfers": "garbled transfers", "keys": "garbled keys", "tables": "garbled tables", "credits": "garbled credits", "results": "garbled results"}  # fmt: skip


# ------------------------------------------------------------------ half gates over arrays; labels are two planes of words, ``(2, n)``


class LabelHash:
    """``H`` over arrays of labels.

    Args:
        key: 16 public bytes.
    """

    def __init__(self, key: bytes) -> None:
        ciphers = need("cryptography.hazmat.primitives.ciphers", "secure", "garbled circuits")
        self._cipher = ciphers.Cipher(ciphers.algorithms.AES(key), ciphers.modes.ECB()).encryptor()  # a permutation is wanted, not secrecy  # fmt: skip
        self._blocks: dict[int, tuple[Array, NDArray[np.uint8]]] = {}

    def blocks_for(self, count: int) -> Array:
        """A buffer ``(count, 2)`` for what is hashed; `hash_blocks` takes it."""
        if count not in self._blocks:
            if len(self._blocks) > 8:
                self._blocks.clear()
            # AES asks for 15 bytes more than it writes.
            self._blocks[count] = np.empty((count, 2), dtype=np.uint64), np.empty(_LABEL * (count + 1), dtype=np.uint8)
        return self._blocks[count][0]

    def hash_blocks(self, count: int) -> Array:
        """``P(x) ^ x`` of the buffer of so many blocks; valid until the next call."""
        blocks, made = self._blocks[count]
        self._cipher.update_into(blocks.data.cast("B"), made.data)
        out = made[: _LABEL * count].view(np.uint64).reshape(count, 2)
        out ^= blocks
        return out

    def hash_labels(self, labels: Array, first: int) -> Array:
        """``H(x, first + place)`` of labels ``(2, n)``."""
        blocks = self.blocks_for(labels.shape[1])
        _fill_blocks(blocks, labels, first, 1)
        return self.hash_blocks(len(blocks)).T.copy()


def _fill_blocks(blocks: Array, labels: Array, first: int, step: int) -> None:
    """``s(x) ^ i`` of labels, as blocks of AES."""
    np.bitwise_xor(labels[0], labels[1], out=blocks[:, 0])
    blocks[:, 0] ^= np.arange(first, first + step * len(blocks), step, dtype=np.uint64)
    blocks[:, 1] = labels[0]


def garble_gates(hashing: LabelHash, delta: Array, a: Array, b: Array, first: int, out: Array, tables: Array) -> None:
    """Garble a block of ANDs.

    Args:
        hashing: the hash.
        delta: ``R``, ``(2,)``.
        a: labels of 0, ``(2, n)``.
        b: the same of the other inputs.
        first: the number of the first hash; two are used a gate.
        out: where the labels of 0 of the outputs go, ``(2, n)``.
        tables: where the tables go, ``(2, 2, n)``.
    """
    n = a.shape[1]
    blocks = hashing.blocks_for(4 * n)
    _fill_blocks(blocks[:n], a, first, 2)
    _fill_blocks(blocks[n : 2 * n], b, first + 1, 2)
    np.bitwise_xor(blocks[: 2 * n, 0], delta[0] ^ delta[1], out=blocks[2 * n :, 0])
    np.bitwise_xor(blocks[: 2 * n, 1], delta[0], out=blocks[2 * n :, 1])
    hashed = hashing.hash_blocks(4 * n)
    p, q = (-(labels[0] & _ONE) for labels in (a, b))  # 0, or all ones
    for plane in range(2):
        column = hashed[:, plane]
        t, u, made = tables[0, plane], tables[1, plane], out[plane]
        np.bitwise_xor(column[:n], column[2 * n : 3 * n], out=t)
        t ^= q & delta[plane]
        np.bitwise_xor(column[n : 2 * n], column[3 * n :], out=u)
        np.bitwise_xor(column[:n], column[n : 2 * n], out=made)
        made ^= p & t
        made ^= q & u  # `u` is still without A
        u ^= a[plane]


def evaluate_gates(hashing: LabelHash, a: Array, b: Array, first: int, tables: Array, out: Array) -> None:
    """Evaluate a block of ANDs: ``C = H(A, i) ^ p T ^ H(B, j) ^ q (U ^ A)`` with the lowest bits of the labels at hand; the arguments are those of `garble_gates`."""
    n = a.shape[1]
    blocks = hashing.blocks_for(2 * n)
    _fill_blocks(blocks[:n], a, first, 2)
    _fill_blocks(blocks[n:], b, first + 1, 2)
    hashed = hashing.hash_blocks(2 * n)
    p, q = (-(labels[0] & _ONE) for labels in (a, b))
    for plane in range(2):
        made = out[plane]
        np.bitwise_xor(hashed[:n, plane], hashed[n:, plane], out=made)
        made ^= p & tables[0, plane]
        made ^= q & (tables[1, plane] ^ a[plane])


# ------------------------------------------------------------------ the two parties


class _Labels(Gates):
    """What both parties do alike.

    Attributes:
        garbler: the role that garbles.
        evaluator: the role that evaluates.
    """

    planes: ClassVar[int] = 2

    def __init__(self, peers: Peers, me: str, garbler: str, evaluator: str, keys: NDArray[np.uint8]) -> None:
        self.me, self.garbler, self.evaluator = me, garbler, evaluator
        self._peer = evaluator if me == garbler else garbler
        self._channels = {use: peers.channel(name) for use, name in _CHANNELS.items()}
        self._hashing, self._stream = LabelHash(keys[:_LABEL].tobytes()), opened(keys[_LABEL:].tobytes())
        self._used = self._frames = 0
        self._frame, self._place = np.empty(4 * _FRAME, dtype=np.uint64), 0  # the place is in gates

    def _count(self, hashes: int) -> int:
        """The number of the next hash, and as many more are used."""
        self._used += hashes
        return self._used - hashes

    def zeros(self, shape: tuple[int, ...]) -> Wires:
        """Wires of the public value 0: the evaluator's label is the next one of the public stream."""
        count = 2 * int(np.prod(shape, dtype=int))
        return Wires(self, np.frombuffer(self._stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64).reshape(2, *shape))  # fmt: skip

    async def conjoin(self, x: Wires, y: Wires) -> Wires:
        """AND: a table of 32 bytes an entry, from the garbler to the evaluator."""
        require_shape(x, y)
        a, b = (np.ascontiguousarray(wires.data).reshape(2, -1) for wires in (x, y))
        made = np.empty_like(a)
        start = 0
        while start < a.shape[1]:
            await self._turn_frame()
            size = min(_BLOCK, a.shape[1] - start, _FRAME - self._place)
            part = (slice(None), slice(start, start + size))
            self._compute(a[part], b[part], made[part])
            self._place += size
            start += size
        return Wires(self, made.reshape(2, *x.shape))

    async def _turn_frame(self) -> None:
        """Send or receive a frame of tables, if it is time for it."""
        raise NotImplementedError

    async def _end_frame(self) -> None:
        """Let the evaluator have all tables so far: the garbler may wait for it now. The next table begins a frame."""
        self._place = 0

    def _compute(self, a: Array, b: Array, out: Array) -> None:
        """Garble or evaluate a block, whose tables lie at the current place of the frame."""
        raise NotImplementedError

    async def __aenter__(self) -> Gates:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is left to say."""

    def _own(self, values: Any, bits: int, rows: int) -> NDArray[np.bool_]:
        made = number_bits(values, bits)
        if made.shape[1] != rows:
            raise DataError(f"{made.shape[1]} values", where="share", remedy=f"share {rows}, as both parties expect")
        return made

    @staticmethod
    def read_parts(parts: Sequence[Any], count: int) -> NDArray[np.bool_]:
        """See `Gates.read_parts`: the garbler's words of both labels of each wire, and the evaluator's of the one that it has."""
        sizes = [2 * count, count]
        if len(parts) != 2 or any(not isinstance(one, np.ndarray) or one.dtype != np.uint64 or one.shape != (size,) for one, size in zip(parts, sizes, strict=False)):  # fmt: skip
            raise LetterError("the parts of a result have another form", where=_WHERE, remedy=_DAMAGED)
        zero, one, own = parts[0][:count], parts[0][count:], parts[1]
        wrong = int(((own != zero) & (own != one)).sum())
        if wrong:
            raise LetterError(f"{wrong} of {count} labels are none of their wires", where=_WHERE, remedy=_DAMAGED)
        return np.asarray(own == one)

    def _learns(self, to: str | None, role: str) -> bool:
        if to not in (None, self.garbler, self.evaluator):
            raise ConfigError(f"to={to!r}", where="reveal", remedy=f"use {self.garbler!r}, {self.evaluator!r}, or None for both")  # fmt: skip
        return to in (None, role)

    def _require_owner(self, owner: str, bits: int) -> None:
        if owner not in (self.garbler, self.evaluator) or not 1 <= bits <= 64:
            raise ConfigError(f"owner={owner!r} and bits={bits}", where="share", remedy=f"name {self.garbler!r} or {self.evaluator!r}, and 1 to 64 bits")  # fmt: skip


class Garbler(_Labels):
    """The party that garbles: its wires hold the labels of 0. See `begin_garbling`."""

    def __init__(self, peers: Peers, garbler: str, evaluator: str, keys: NDArray[np.uint8], code: CodeSender) -> None:
        super().__init__(peers, garbler, garbler, evaluator, keys)
        self._code, self._delta = code, code.choices.view("<u8").astype(np.uint64)

    @classmethod
    async def begin(cls, secret: Secret, peers: Peers, garbler: str, evaluator: str) -> Garbler:
        """Run the base transfers with the evaluator, whose seeds are chosen by the bits of ``R``."""
        delta = np.frombuffer(secret.bytes(_LABEL), dtype=np.uint8).copy()
        delta[0] |= 1
        bits = np.unpackbits(delta, bitorder="little").astype(bool)
        code = CodeSender(delta, await receive_seeds(secret, peers.channel(_CHANNELS["transfers"]), evaluator, bits))
        keys = np.frombuffer(secret.bytes(_KEYS), dtype=np.uint8)
        await peers.channel(_CHANNELS["keys"]).send(evaluator, keys)
        return cls(peers, garbler, evaluator, keys, code)

    def flip(self, x: Wires, bits: NDArray[np.bool_]) -> Wires:
        """What was the label of 0 becomes that of the bit."""
        delta = self._delta.reshape(2, *[1] * len(x.shape))
        return Wires(self, x.data ^ (delta if bits.all() else np.where(bits, delta, np.uint64(0))))

    async def share(self, values: Any = None, *, owner: str, bits: int, rows: int) -> Wires:
        """Its own numbers stand behind labels of the public stream; those of the evaluator come as rows of the extension."""
        self._require_owner(owner, bits)
        await self._end_frame()
        if owner == self.me:
            return self.zeros((bits, rows)) ^ self._own(values, bits, rows)
        made = np.empty((2, bits * rows), dtype=np.uint64)
        for part, size in _parts(bits * rows):
            told = await self._channels["transfers"].recv(self._peer)
            made[:, part] = _labels(self._code.extend(told, size, self._peer))
        return Wires(self, made.reshape(2, bits, rows))

    async def _turn_frame(self) -> None:
        if self._place == _FRAME:
            await self._end_frame()

    def _compute(self, a: Array, b: Array, out: Array) -> None:
        n = a.shape[1]
        tables = self._frame[4 * self._place : 4 * (self._place + n)].reshape(2, 2, n)
        garble_gates(self._hashing, self._delta, a, b, self._count(2 * n), out, tables)

    async def _end_frame(self) -> None:
        """Send the tables that are ready, as soon as the evaluator is not too far behind."""
        if not self._place:
            return
        if self._frames >= _AHEAD and self._frames % _CREDIT == 0:
            await self._take_credit()
        await self._channels["tables"].send(self._peer, self._frame[: 4 * self._place])
        self._frame, self._place = np.empty(4 * _FRAME, dtype=np.uint64), 0
        self._frames += 1

    async def _take_credit(self) -> None:
        check_rows(
            await self._channels["credits"].recv(self._peer), (1,), self._peer, "word of its progress", where=_WHERE
        )

    async def reveal(self, x: Wires, to: str | None = None) -> NDArray[np.uint64] | None:
        """Show numbers; see `Gates.reveal`.

        Raises:
            LetterError: the evaluator's labels are none of these wires.
        """
        await self._end_frame()
        labels, results = x.data.reshape(2, -1), self._channels["results"]
        if self._learns(to, self.evaluator):
            await results.send(self._peer, self._tell(labels))
        if not self._learns(to, self.garbler):
            return None
        count = labels.shape[1]
        told = check_rows(
            await results.recv(self._peer), (_DIGEST + -(-count // 8),), self._peer, "results", where=_WHERE
        )
        chosen = np.unpackbits(told[_DIGEST:], count=count, bitorder="little").astype(np.uint64)
        bits = chosen ^ (labels[0] & _ONE)
        if told[:_DIGEST].tobytes() != _digest(labels ^ (self._delta[:, None] * bits)):
            raise LetterError(
                f"party {self._peer!r} has labels that are none of these wires", where=_WHERE, remedy=_DAMAGED
            )
        return read_numbers(bits.reshape(x.shape))

    async def hand_out(self, x: Wires) -> NDArray[np.uint64]:
        """Words of both labels of each wire."""
        await self._end_frame()
        return self._tell(x.data.reshape(2, -1)).ravel()

    def _tell(self, labels: Array) -> Array:
        """Words of the hash of both labels of each wire: the evaluator knows its label by one of them, and what it stands for."""
        first = self._count(labels.shape[1])
        return np.stack([self._hashing.hash_labels(one, first)[0] for one in (labels, labels ^ self._delta[:, None])])

    async def __aexit__(self, *raised: object) -> None:
        """Send what is left, and take the words of progress that are still to come."""
        if raised[0] is None:
            await self._end_frame()
            taken = max(0, -(-(self._frames - _AHEAD) // _CREDIT))
            for _ in range(self._frames // _CREDIT - taken):
                await self._take_credit()


class Evaluator(_Labels):
    """The party that evaluates: its wires hold one label each. See `begin_garbling`."""

    def __init__(self, peers: Peers, garbler: str, evaluator: str, keys: NDArray[np.uint8], code: CodeReceiver) -> None:
        super().__init__(peers, evaluator, garbler, evaluator, keys)
        self._code = code

    @classmethod
    async def begin(cls, secret: Secret, peers: Peers, garbler: str, evaluator: str) -> Evaluator:
        """Run the base transfers with the garbler."""
        code = await CodeReceiver.begin(secret, peers.channel(_CHANNELS["transfers"]), garbler, _COLUMNS)
        keys = check_rows(await peers.channel(_CHANNELS["keys"]).recv(garbler), (_KEYS,), garbler, "keys", where=_WHERE)
        return cls(peers, garbler, evaluator, keys, code)

    def flip(self, x: Wires, bits: NDArray[np.bool_]) -> Wires:
        """Its label stays: only the garbler knows what it stands for."""
        del bits
        return x

    async def share(self, values: Any = None, *, owner: str, bits: int, rows: int) -> Wires:
        """Its own numbers choose rows of the extension; those of the garbler stand behind labels of the public stream."""
        self._require_owner(owner, bits)
        await self._end_frame()
        if owner != self.me:
            return self.zeros((bits, rows))
        chosen = self._own(values, bits, rows).ravel()
        made = np.empty((2, len(chosen)), dtype=np.uint64)
        for part, _ in _parts(len(chosen)):
            repeated = np.where(chosen[part, None], np.uint8(255), np.uint8(0))
            kept, corrections = self._code.extend(np.broadcast_to(repeated, (len(repeated), _LABEL)))
            await self._channels["transfers"].send(self._peer, corrections)
            made[:, part] = _labels(kept)
        return Wires(self, made.reshape(2, bits, rows))

    async def _turn_frame(self) -> None:
        if self._place % _FRAME == 0:
            await self._receive()

    def _compute(self, a: Array, b: Array, out: Array) -> None:
        n = a.shape[1]
        if 4 * (self._place + n) > len(self._frame):
            raise self._misfit(f"tables of {len(self._frame) // 4} gates", f"those of {self._place + n} or more")
        tables = self._frame[4 * self._place : 4 * (self._place + n)].reshape(2, 2, n)
        evaluate_gates(self._hashing, a, b, self._count(2 * n), tables, out)

    async def _receive(self) -> None:
        told = await self._channels["tables"].recv(self._peer)
        if not isinstance(told, np.ndarray) or told.dtype != np.uint64 or told.ndim != 1 or len(told) > 4 * _FRAME:
            found = f"{told.dtype}{told.shape}" if isinstance(told, np.ndarray) else type(told).__name__
            raise self._misfit(found, f"tables, at most uint64({4 * _FRAME},)")
        self._frame, self._place = told, 0
        self._frames += 1
        if self._frames % _CREDIT == 0:
            await self._channels["credits"].send(self._peer, np.zeros(1, dtype=np.uint8))

    def _misfit(self, found: str, expected: str) -> LetterError:
        return LetterError(
            f"party {self._peer!r} sent {found} in place of {expected}",
            where=_WHERE,
            remedy="stop working with this party until its operator has found out why: it does not run the same program",
        )

    async def reveal(self, x: Wires, to: str | None = None) -> NDArray[np.uint64] | None:
        """Show numbers; see `Gates.reveal`.

        Raises:
            LetterError: a label at this party is none of its wire.
        """
        labels, results, found = x.data.reshape(2, -1), self._channels["results"], None
        await self._end_frame()
        if self._learns(to, self.evaluator):
            told = await results.recv(self._peer)
            size = (2, labels.shape[1])
            tags = check_rows(told, size, self._peer, "words of labels", np.uint64, where=_WHERE)
            found = read_numbers(self._open(tags, labels).reshape(x.shape))
        if self._learns(to, self.garbler):
            packed = np.packbits((labels[0] & _ONE).astype(bool), bitorder="little")
            await results.send(self._peer, np.concatenate([np.frombuffer(_digest(labels), dtype=np.uint8), packed]))
        return found

    async def hand_out(self, x: Wires) -> NDArray[np.uint64]:
        """A word of the label of each wire: beside the garbler's it says which of the two it is."""
        await self._end_frame()
        labels = x.data.reshape(2, -1)
        return np.asarray(self._hashing.hash_labels(labels, self._count(labels.shape[1]))[0])

    def _open(self, tags: Array, labels: Array) -> NDArray[np.bool_]:
        count = labels.shape[1]
        own = self._hashing.hash_labels(labels, self._count(count))[0]
        wrong = np.flatnonzero((own != tags[0]) & (own != tags[1]))
        if len(wrong):
            raise LetterError(
                f"{len(wrong)} of {count} labels are none of their wires, the first at bit {wrong[0]}",
                where=_WHERE,
                remedy=f"do not use any result of this computation: tables or labels of party {self._peer!r} were altered, or the parties run different programs",
            )
        return np.asarray(own == tags[1])


async def begin_garbling(secret: Secret, peers: Peers, me: str, *, garbler: str, evaluator: str) -> Garbler | Evaluator:
    """Begin a computation of two roles: 128 base transfers, 4 KiB together. Both then run the same program in ``async with gates``.

    Args:
        secret: this party's entropy: ``island.secret``.
        peers: the session.
        me: this party's role.
        garbler: the role that garbles; it computes twice as many hashes, and sends the tables.
        evaluator: the other role.

    Raises:
        ConfigError: this party has neither role, or one party has both.
        LetterError: the other party sends something else than the protocol expects.
    """
    if me not in (garbler, evaluator) or garbler == evaluator:
        raise ConfigError(f"role {me!r} of {garbler!r} and {evaluator!r}", where="begin_garbling", remedy="name two roles, one of them this party's")  # fmt: skip
    kind = Garbler if me == garbler else Evaluator
    return await kind.begin(secret, peers, garbler, evaluator)


def garbling_contract(counted: GateCounter, *, protocol: str = "garbled circuit") -> Contract:
    """What two parties send each other for a program, and what they learn: `GateCounter.measure` counted it for the roles ``(garbler, evaluator)``."""
    garbler, evaluator = counted.roles
    frames = sum(-(-piece // _FRAME) for piece in counted.pieces)
    told = [
        ProtocolFrame(_CHANNELS["transfers"], evaluator, garbler, 1, POINT, "A = aG"),
        ProtocolFrame(_CHANNELS["transfers"], garbler, evaluator, _COLUMNS, POINT, "bG or bG + A, by secret bits"),
        ProtocolFrame(_CHANNELS["keys"], garbler, evaluator, 1, _KEYS, "a public key and a public seed"),
        ProtocolFrame(_CHANNELS["transfers"], evaluator, garbler, counted.shared[evaluator], _LABEL, "one row a bit of the evaluator's inputs, uniform"),
        ProtocolFrame(_CHANNELS["tables"], garbler, evaluator, counted.ands, 2 * _LABEL, "the table of an AND, uniform for the evaluator"),
        ProtocolFrame(_CHANNELS["credits"], evaluator, garbler, frames // _CREDIT, 1, "that frames were read"),
    ]  # fmt: skip
    for role, bits in counted.shown:
        if role == evaluator:
            told.append(ProtocolFrame(_CHANNELS["results"], garbler, role, 1, 2 * _TAG * bits, "a word of the hash of each label"))  # fmt: skip
        else:
            told.append(ProtocolFrame(_CHANNELS["results"], evaluator, role, 1, _DIGEST + -(-bits // 8), "which labels it has, and their digest"))  # fmt: skip
    assumed = "both follow the protocol"
    learns: list[Exposure] = []
    for role, other in ((garbler, evaluator), (evaluator, garbler)):
        learns.append(Exposure(role, "the sizes of the inputs and the circuit", assumed, "sizes", other))
        if any(to == role for to, _ in counted.shown):
            learns.append(Exposure(role, "the results that are shown to it", assumed, "sum", other))
    return Contract(protocol, tuple(told), tuple(learns))


def message_sizes(counted: GateCounter) -> Counter[int]:
    """Bytes of a message -> how many of them a program takes between the two parties; `GateCounter.measure` counted it for the roles ``(garbler, evaluator)``."""
    _, evaluator = counted.roles
    found = Counter({POINT: 1, _COLUMNS * POINT: 1, _KEYS: 1})

    def cut(rows: int, most: int, width: int) -> None:
        found[most * width] += rows // most
        if rows % most:
            found[rows % most * width] += 1

    cut(counted.shared[evaluator], _ROWS, _LABEL)
    frames = 0
    for piece in counted.pieces:
        cut(piece, _FRAME, 2 * _LABEL)
        frames += -(-piece // _FRAME)
    found[1] += frames // _CREDIT
    for role, bits in counted.shown:
        found[2 * _TAG * bits if role == evaluator else _DIGEST + -(-bits // 8)] += 1
    return +found


def _parts(count: int) -> Iterator[tuple[slice, int]]:
    """The transfers of each frame of corrections. Whole bytes of the columns are used up, so only the last frame is shorter."""
    for start in range(0, count, _ROWS):
        size = min(_ROWS, count - start)
        yield slice(start, start + size), size


def _labels(rows: NDArray[np.uint8]) -> Array:
    """Rows of 16 bytes as two planes of words."""
    return np.ascontiguousarray(rows).view("<u8").astype(np.uint64, copy=False).T


def _digest(labels: Array) -> bytes:
    return hashlib.blake2b(labels.astype("<u8").tobytes(), digest_size=_DIGEST).digest()
