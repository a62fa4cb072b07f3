"""Transfers of bits and words by the million: random, correlated and chosen, over one channel of a session.

The sender has two values for each transfer, the receiver a choice ``c``; afterwards it has the value of its choice. In a *random* transfer both values are drawn by the
protocol, in a *correlated* one ``x1 = x0 + d`` for the sender's ``d`` (``x0 ^ d`` for bits), in a *chosen* one the sender gives both. Each costs the receiver 16 bytes,
a correlated word the sender 8 more a word, a chosen one 16. A *product* of a sender's words and a receiver's word (Gilboa 1999) is 64 correlated transfers, of which the i-th
is of ``2^i`` times the words: the lowest i bits say nothing, and whole bytes of them are not sent. It costs the receiver 1024 bytes, and the sender 288 a word.

Values are hashes of extension rows: ``H(i, x) = P(P(x) ^ i) ^ P(x)`` with AES under a public key as ``P`` (Guo, Katz, Wang, Yu 2020, "Efficient and secure multiparty
computation from fixed-key block ciphers", TMMO). A tweak ``i`` is used once in a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

from .base import check_rows
from .extension import CodeReceiver, CodeSender, encrypt_blocks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

__all__ = ["TransferReceiver", "TransferSender"]

_WIDTH = 128
"""Columns: the security parameter of the extension."""
_KEY = b"atoll OT hashing"
"""The public key of the permutation: a nothing-up-my-sleeve number."""
_BLOCK = 1 << 17
"""Transfers in one frame of corrections: 2 MiB."""
_PADS = 1 << 21
"""Words of pads that products hold at once: 16 MiB, twice at the sender."""
_PLACES = np.arange(64, dtype=np.uint64)


def _hash_words(rows: NDArray[np.uint8], first: int, words: int) -> NDArray[np.uint64]:
    """``words`` words of 64 bits of each row, ``(rows, words)``; ``first`` is the number of the first row."""
    blocks = -(-words // 2)
    once = encrypt_blocks(_KEY, rows)
    out = np.empty((len(rows), blocks, 2), dtype="<u8")
    number = np.arange(first, first + len(rows), dtype=np.uint64)
    for block in range(blocks):
        tweaked = once.view("<u8").copy()
        tweaked[:, 0] ^= number
        tweaked[:, 1] ^= np.uint64(block)
        out[:, block] = (encrypt_blocks(_KEY, tweaked.view(np.uint8)) ^ once).view("<u8")
    return out.reshape(len(rows), 2 * blocks)[:, :words].astype(np.uint64, copy=False)


class TransferSender:
    """The side with two values; the peer runs the method of the same name of a `TransferReceiver`, in the same order with the same counts.

    Args:
        code: its side of the extension, 128 columns.
        channel: a stream of the session that nothing else uses.
        peer: the receiver's role.
    """

    def __init__(self, code: CodeSender, channel: PeerChannel, peer: str) -> None:
        _require_width(8 * len(code.choices))
        self.code, self._channel, self._peer = code, channel, peer

    @classmethod
    async def begin(cls, secret: Secret, channel: PeerChannel, peer: str) -> TransferSender:
        """Run the base transfers: 128 public keys each way, once a session."""
        return cls(await CodeSender.begin(secret, channel, peer, _WIDTH), channel, peer)

    @classmethod
    def restored(cls, state: Mapping[str, Any], channel: PeerChannel, peer: str) -> TransferSender:
        """The sender of a captured state."""
        return cls(CodeSender.restored(state), channel, peer)

    def captured(self) -> dict[str, Any]:
        """The state as a message, for `peers.checkpoint`; it is secret."""
        return self.code.captured()

    async def draw_words(self, count: int, words: int = 1) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Random transfers: both values, ``(count, words)`` each, uniform words of 64 bits.

        Raises:
            LetterError: the peer's corrections are not ``count`` rows.
        """
        zero, one = (np.empty((count, words), dtype=np.uint64) for _ in range(2))
        for start, size, first in _blocks(count, self.code.passed):
            rows = self.code.extend(await self._channel.recv(self._peer), size, self._peer)
            zero[start : start + size] = _hash_words(rows, first, words)
            one[start : start + size] = _hash_words(rows ^ self.code.choices, first, words)
        return zero, one

    async def draw_bits(self, count: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Random transfers of one bit: both values, ``(count,)`` each."""
        zero, one = await self.draw_words(count)
        return _lowest_bits(zero), _lowest_bits(one)

    async def correlate_words(self, differences: ArrayLike) -> NDArray[np.uint64]:
        """Transfers of ``x0`` and ``x1 = x0 + d`` modulo 2^64, for this side's ``d``, ``(count,)`` or ``(count, words)``; return ``x0`` in its shape.

        With ``d = 2^i a`` for the bits ``i`` of the receiver's ``b`` the sums of both sides are shares of ``a b`` (Gilboa 1999).
        """
        made = np.asarray(differences, dtype=np.uint64)
        flat = _as_rows(made)
        zero, one = await self.draw_words(len(flat), flat.shape[1])
        await self._channel.send(self._peer, zero + flat - one)
        return zero.reshape(made.shape)

    async def correlate_bits(self, differences: ArrayLike) -> NDArray[np.bool_]:
        """Transfers of bits ``x0`` and ``x0 ^ d``, for this side's ``d``, ``(count,)``; return ``x0``. The sides then have shares of ``c & d``."""
        made = np.asarray(differences, dtype=bool)
        zero, one = await self.draw_bits(len(made))
        await self._channel.send(self._peer, np.packbits(zero ^ made ^ one, bitorder="little"))
        return zero

    async def multiply_words(self, factors: ArrayLike) -> NDArray[np.uint64]:
        """Products of this side's words, ``(count, words)``, and the receiver's words, one for each row: return ``(count, words)``.

        With what the receiver gets they add up to the products modulo 2^64 (Gilboa 1999).
        """
        made = np.asarray(factors, dtype=np.uint64)
        out = np.empty_like(made)
        for rows in _products(*made.shape):
            part = made[rows]
            zero, one = (_cut_pads(pads, part.shape) for pads in await self.draw_words(64 * len(part), part.shape[1]))
            await self._channel.send(self._peer, _cut_bytes((part << _PLACES[:, None, None]) + zero - one))
            out[rows] = -zero.sum(axis=0, dtype=np.uint64)
        return out

    async def send_words(self, zero: ArrayLike, one: ArrayLike) -> None:
        """Chosen transfers of words of 64 bits: both values, ``(count,)`` or ``(count, words)``.

        Raises:
            ConfigError: the shapes differ.
        """
        values = [np.asarray(value, dtype=np.uint64) for value in (zero, one)]
        if values[0].shape != values[1].shape:
            raise ConfigError(
                f"values of shapes {values[0].shape} and {values[1].shape}",
                where="send_words",
                remedy="give as many of both",
            )
        flat = [_as_rows(value) for value in values]
        pads = await self.draw_words(*flat[0].shape)
        await self._channel.send(self._peer, np.stack([value ^ pad for value, pad in zip(flat, pads, strict=True)]))


class TransferReceiver:
    """The side with choices; see `TransferSender`.

    Args:
        code: its side of the extension, 128 columns.
        channel: a stream of the session that nothing else uses.
        peer: the sender's role.
    """

    def __init__(self, code: CodeReceiver, channel: PeerChannel, peer: str) -> None:
        _require_width(len(code.seeds))
        self.code, self._channel, self._peer = code, channel, peer

    @classmethod
    async def begin(cls, secret: Secret, channel: PeerChannel, peer: str) -> TransferReceiver:
        """Run the base transfers: 128 public keys each way, once a session."""
        return cls(await CodeReceiver.begin(secret, channel, peer, _WIDTH), channel, peer)

    @classmethod
    def restored(cls, state: Mapping[str, Any], channel: PeerChannel, peer: str) -> TransferReceiver:
        """The receiver of a captured state."""
        return cls(CodeReceiver.restored(state), channel, peer)

    def captured(self) -> dict[str, Any]:
        """The state as a message, for `peers.checkpoint`; it is secret."""
        return self.code.captured()

    async def draw_words(self, choices: ArrayLike, words: int = 1) -> NDArray[np.uint64]:
        """Random transfers: the chosen value of each, ``(count, words)``."""
        chosen = np.asarray(choices, dtype=bool)
        out = np.empty((len(chosen), words), dtype=np.uint64)
        for start, size, first in _blocks(len(chosen), self.code.passed):
            repeated = np.where(chosen[start : start + size, None], np.uint8(255), np.uint8(0))
            rows, corrections = self.code.extend(repeated)
            await self._channel.send(self._peer, corrections)
            out[start : start + size] = _hash_words(rows, first, words)
        return out

    async def draw_bits(self, choices: ArrayLike) -> NDArray[np.bool_]:
        """Random transfers of one bit: the chosen value of each, ``(count,)``."""
        return _lowest_bits(await self.draw_words(choices))

    async def correlate_words(self, choices: ArrayLike, words: int | None = None) -> NDArray[np.uint64]:
        """Transfers of ``x0`` and ``x0 + d``: ``x0 + c d`` modulo 2^64, ``(count,)``, or ``(count, words)`` if words are given.

        Raises:
            LetterError: the sender's frame has another shape or type.
        """
        chosen = np.asarray(choices, dtype=bool)
        kept = await self.draw_words(chosen, words or 1)
        told = check_rows(await self._channel.recv(self._peer), kept.shape, self._peer, "differences", np.uint64)
        kept += np.where(chosen[:, None], told, np.uint64(0))
        return kept[:, 0] if words is None else kept

    async def correlate_bits(self, choices: ArrayLike) -> NDArray[np.bool_]:
        """Transfers of bits ``x0`` and ``x0 ^ d``: ``x0 ^ (c & d)``, ``(count,)``."""
        chosen = np.asarray(choices, dtype=bool)
        kept = await self.draw_bits(chosen)
        told = check_rows(await self._channel.recv(self._peer), (-(-len(chosen) // 8),), self._peer, "differences")
        return np.asarray(kept ^ (chosen & np.unpackbits(told, count=len(chosen), bitorder="little").astype(bool)))

    async def multiply_words(self, factors: ArrayLike, words: int) -> NDArray[np.uint64]:
        """Products of this side's words, ``(count,)``, and so many words of the sender each: return its shares, ``(count, words)``.

        Raises:
            LetterError: the sender's frame has another shape or type.
        """
        made = np.asarray(factors, dtype=np.uint64)
        out = np.empty((len(made), words), dtype=np.uint64)
        for rows in _products(len(made), words):
            part = made[rows]
            chosen = ((part >> _PLACES[:, None]) & np.uint64(1)).astype(bool)
            pads = _cut_pads(await self.draw_words(chosen.ravel(), words), (len(part), words))
            size = (_PRODUCT * len(part) * words,)
            told = check_rows(await self._channel.recv(self._peer), size, self._peer, "differences of products")
            pads += np.where(chosen[..., None], _joined_bytes(told, pads.shape), np.uint64(0))
            out[rows] = pads.sum(axis=0, dtype=np.uint64)
        return out

    async def receive_words(self, choices: ArrayLike, words: int | None = None) -> NDArray[np.uint64]:
        """Chosen transfers: the chosen words, ``(count,)``, or ``(count, words)`` if words are given.

        Raises:
            LetterError: the sender's frame has another shape or type.
        """
        chosen = np.asarray(choices, dtype=bool)
        pads = await self.draw_words(chosen, words or 1)
        told = check_rows(await self._channel.recv(self._peer), (2, *pads.shape), self._peer, "values", np.uint64)
        pads ^= np.where(chosen[:, None], told[1], told[0])
        return pads[:, 0] if words is None else pads


def _blocks(count: int, passed: int) -> list[tuple[int, int, int]]:
    """Start and size of each frame, and the number of its first row in the session."""
    return [(start, min(_BLOCK, count - start), 8 * passed + start) for start in range(0, count, _BLOCK)]


_PRODUCT = sum(8 * (8 - group) for group in range(8))
"""Bytes of the 64 differences of a product: those of ``2^i a`` without the ``i // 8`` lowest ones, which are 0."""


def _products(count: int, words: int) -> list[slice]:
    """Rows whose products are made at once."""
    step = max(1, _PADS // (64 * max(1, words)))
    return [slice(start, min(start + step, count)) for start in range(0, count, step)]


def _cut_pads(pads: NDArray[np.uint64], shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """Pads ``(64, count, words)`` with zeros in the bytes that are not sent, so that sums carry nothing out of them."""
    low = ((_PLACES // np.uint64(8)) * np.uint64(8))[:, None, None]
    return np.asarray(pads.reshape(64, *shape) >> low << low)


def _cut_bytes(told: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Differences ``(64, count, words)`` as bytes, without the ``i // 8`` lowest ones of row ``i``."""
    raw = told.astype("<u8").view(np.uint8).reshape(8, -1, 8)
    return np.concatenate([raw[group, :, group:].ravel() for group in range(8)])


def _joined_bytes(told: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[np.uint64]:
    """The inverse of `_cut_bytes`, with zeros in their place."""
    entries = int(np.prod(shape)) // 8
    raw, at = np.zeros((8, entries, 8), dtype=np.uint8), 0
    for group in range(8):
        size = entries * (8 - group)
        raw[group, :, group:] = told[at : at + size].reshape(entries, 8 - group)
        at += size
    return raw.view("<u8").astype(np.uint64, copy=False).reshape(shape)


def _as_rows(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Values with an axis of words; NumPy cannot infer its length where there are no rows."""
    return values[:, None] if values.ndim == 1 else values


def _lowest_bits(words: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.asarray((words[:, 0] & np.uint64(1)).astype(bool))


def _require_width(width: int) -> None:
    if width != _WIDTH:
        raise ConfigError(f"an extension of {width} columns", where="transfers", remedy=f"use {_WIDTH}")
