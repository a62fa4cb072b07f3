"""OT extension: a row of pseudo-random bits each for millions of transfers, from one base transfer a column.

The receiver has both seeds of each of ``w`` columns, the sender one of each, by its secret bits ``s``. A seed's AES stream is a column. For each row ``j`` the receiver has
a codeword ``C(r_j)`` of ``w`` bits and sends the correction ``u_j = t_j ^ t'_j ^ C(r_j)``, where ``t`` and ``t'`` are the rows of its two column matrices. The
sender's row is then ``q_j = t_j ^ (C(r_j) & s)``. So for every word ``x`` the sender knows ``q_j ^ (C(x) & s)``, which is the receiver's ``t_j`` exactly where ``C(x) =
C(r_j)``, and otherwise hides behind as many bits of ``s`` as the codewords differ in.

* With ``w = 128`` and the codewords 0 and 1 repeated this is the extension of Ishai, Kilian, Nissim and Petrank (2003, "Extending oblivious transfers efficiently").
* With a pseudo-random code of 512 bits it is that of Kolesnikov, Kumaresan, Rosulek and Trieu (2016, "Efficient batched oblivious PRF with applications to private set
  intersection"): 1 out of any number. Two codewords differ in fewer than 128 places with a probability below 2^-100.

Semi-honest: a receiver whose correction rows are no codewords learns bits of ``s``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.extras import need

from ..keystream import opened
from .base import check_rows, receive_seeds, send_seeds

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

__all__ = ["CODE_BITS", "CodeReceiver", "CodeSender", "PseudoRandomCode", "encrypt_blocks", "transpose_bits"]

CODE_BITS = 512
"""Bits of a codeword of the pseudo-random code."""
_SWAPS = tuple((np.uint64(shift), np.uint64(mask)) for shift, mask in (
    (7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0x00000000F0F0F0F0)
))  # fmt: skip
_TILE = 1 << 8
"""Bytes of each column that are transposed at once: a tile of 512 columns stays in the processor's cache."""


def transpose_bits(columns: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The rows of a bit matrix that is given by columns: bit ``r`` of column ``c`` becomes bit ``c`` of row ``r``; lowest bits first.

    Squares of 8 x 8 bits are turned in words of 64 bits (Warren, "Hacker's Delight", section 7-3).

    Args:
        columns: packed bits, ``(w, rows / 8)`` with ``w`` a multiple of 8.

    Returns:
        Packed bits, ``(rows, w / 8)``.
    """
    width, length = columns.shape
    out = np.empty((length, 8, width // 8), dtype=np.uint8)
    for start in range(0, length, _TILE):
        tile = columns[:, start : start + _TILE].reshape(width // 8, 8, -1)
        x = np.ascontiguousarray(tile.transpose(2, 0, 1)).view("<u8")[..., 0]
        for shift, mask in _SWAPS:
            swap = (x ^ (x >> shift)) & mask
            x ^= swap
            x ^= swap << shift
        out[start : start + _TILE] = x.view(np.uint8).reshape(*x.shape, 8).transpose(0, 2, 1)
    return out.reshape(8 * length, width // 8)


def encrypt_blocks(key: bytes, blocks: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """AES-128 of each block of 16 bytes, under one key: a public permutation of blocks, computed for a whole array."""
    ciphers = need("cryptography.hazmat.primitives.ciphers", "secure", "oblivious transfer")
    cipher = ciphers.Cipher(
        ciphers.algorithms.AES(key), ciphers.modes.ECB()
    ).encryptor()  # a permutation is wanted, not secrecy
    return np.frombuffer(cipher.update(np.ascontiguousarray(blocks)), dtype=np.uint8).reshape(blocks.shape)


class PseudoRandomCode:
    """A code of 512 bits: ``C(x)`` is AES of the 16 bytes ``x`` under four public keys.

    Args:
        key: 32 bytes that both parties know, and that are drawn independently of the inputs.
    """

    def __init__(self, key: bytes) -> None:
        stream = opened(key).update(bytes(CODE_BITS // 8))
        self._keys = [stream[i : i + 16] for i in range(0, CODE_BITS // 8, 16)]

    def encode(self, words: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """The codewords ``(n, 64)`` of words ``(n, 16)``."""
        out = np.empty((len(words), CODE_BITS // 8), dtype=np.uint8)
        for i, key in enumerate(self._keys):
            out[:, 16 * i : 16 * (i + 1)] = encrypt_blocks(key, words)
        return out


class _Columns:
    """The streams of some seeds, as rows."""

    def __init__(self, seeds: Sequence[bytes], passed: int) -> None:
        self._streams = [opened(seed) for seed in seeds]
        if passed:
            self._next(passed)

    def _next(self, length: int) -> NDArray[np.uint8]:
        zeros, out = bytes(length), np.empty((len(self._streams), length), dtype=np.uint8)
        for row, stream in zip(out, self._streams, strict=True):
            row[:] = np.frombuffer(stream.update(zeros), dtype=np.uint8)
        return out

    def rows(self, count: int) -> NDArray[np.uint8]:
        """The next rows; up to a multiple of 8 of them are used up."""
        return transpose_bits(self._next(-(-count // 8)))[:count]


class CodeReceiver:
    """The side that has words: after `extend` it has a pseudo-random row for each of them.

    Args:
        seeds: both seeds of each column, ``(w, 2, 32)``.
        passed: how many bytes of each column are used up, in a state that is restored.
    """

    def __init__(self, seeds: NDArray[np.uint8], passed: int = 0) -> None:
        if seeds.ndim != 3 or seeds.shape[1:] != (2, 32) or len(seeds) % 8 or not len(seeds):
            raise ConfigError(
                f"seeds of shape {seeds.shape}", where="CodeReceiver", remedy="use (w, 2, 32), w a multiple of 8"
            )
        self.seeds, self.passed = seeds, passed
        self._kept, self._other = (_Columns([seed.tobytes() for seed in seeds[:, i]], passed) for i in (0, 1))

    @classmethod
    async def begin(cls, secret: Secret, channel: PeerChannel, peer: str, width: int = CODE_BITS) -> CodeReceiver:
        """Run the base transfers with the party that begins as `CodeSender`."""
        return cls(await send_seeds(secret, channel, peer, width))

    def extend(self, codewords: NDArray[np.uint8]) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """The rows ``t`` of the next codewords, and the corrections to send; all ``(rows, w / 8)``."""
        count = len(codewords)
        kept, corrections = self._kept.rows(count), self._other.rows(count)
        self.passed += -(-count // 8)
        corrections ^= kept
        corrections ^= codewords
        return kept, corrections

    def captured(self) -> dict[str, Any]:
        """The state as a message, for `peers.checkpoint`; it is secret."""
        return {"seeds": self.seeds, "passed": self.passed}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> CodeReceiver:
        """The receiver of a captured state."""
        return cls(np.asarray(state["seeds"]), int(state["passed"]))


class CodeSender:
    """The side that can evaluate every word in every row.

    Args:
        choices: the secret ``s``, packed bits, ``(w / 8,)``.
        seeds: one seed of each column, by ``s``, ``(w, 32)``.
        passed: how many bytes of each column are used up, in a state that is restored.
    """

    def __init__(self, choices: NDArray[np.uint8], seeds: NDArray[np.uint8], passed: int = 0) -> None:
        if seeds.shape != (8 * len(choices), 32) or not len(choices):
            raise ConfigError(
                f"seeds of shape {seeds.shape} for {8 * len(choices)} choices", where="CodeSender", remedy="use (w, 32)"
            )
        self.choices, self.seeds, self.passed = choices, seeds, passed
        self._columns = _Columns([seed.tobytes() for seed in seeds], passed)

    @classmethod
    async def begin(cls, secret: Secret, channel: PeerChannel, peer: str, width: int = CODE_BITS) -> CodeSender:
        """Run the base transfers with the party that begins as `CodeReceiver`."""
        choices = np.frombuffer(secret.bytes(width // 8), dtype=np.uint8)
        bits = np.unpackbits(choices, bitorder="little").astype(bool)
        return cls(choices, await receive_seeds(secret, channel, peer, bits))

    def extend(self, received: Any, count: int, peer: str) -> NDArray[np.uint8]:
        """The rows ``q`` that belong to the peer's next corrections.

        Raises:
            LetterError: the corrections are not ``count`` rows of this width.
        """
        corrections = check_rows(received, (count, len(self.choices)), peer, f"{count} corrections")
        rows = self._columns.rows(count)
        self.passed += -(-count // 8)
        return np.asarray(rows ^ (corrections & self.choices))

    def evaluate(self, rows: NDArray[np.uint8], codewords: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """``q ^ (C & s)``: the receiver's row, if it has the same codeword there."""
        return np.asarray(rows ^ (codewords & self.choices))

    def captured(self) -> dict[str, Any]:
        """The state as a message, for `peers.checkpoint`; it is secret."""
        return {"choices": self.choices, "seeds": self.seeds, "passed": self.passed}

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> CodeSender:
        """The sender of a captured state."""
        return cls(np.asarray(state["choices"]), np.asarray(state["seeds"]), int(state["passed"]))
