"""Keystream: the words that follow from a 32-byte seed, uniform in ``Z_2^p``.

The generator is AES-128 in counter mode (NIST SP 800-38A), of the library ``cryptography``: the first 16 bytes of the seed are the key, the others the first counter
block, and the words are the keystream's bytes, lowest first, in the dtype of words of ``p`` bits (1, 2, 4 or 8 bytes a word). Bits above ``p`` are keystream too. A
sum modulo ``2^p`` ignores them, so masking needs no masking of bits.

A seed is used for one stream only. `derived` makes independent seeds of one: HKDF-Expand of SHA-256 (RFC 5869), whose info names the use.

On two cores of a Xeon with AES instructions, AES-128-CTR of ``cryptography`` 50 makes 6.1 GB/s, AES-256-CTR 4.8 GB/s and ChaCha20 4.2 GB/s (the best of seven runs
of 8 MiB, ``benchmarks/secure_sums.py --keystream``); a new key costs 15 to 25 us.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.core.message import Words
from atoll.core.message.words import word_dtype

from .stream_kernel import StreamKernel

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

__all__ = [
    "SEED",
    "Keystream",
    "add_between",
    "add_masks",
    "add_stream",
    "add_streams",
    "derived",
    "keystream",
    "opened",
    "require_library",
]

SEED = 32
"""Bytes of a seed."""
_PIECE = 1 << 16
"""Bytes of keystream made at once: they stay in the processor's cache until they are added."""
_ZEROS = bytes(_PIECE)
_LONG = 1 << 26
"""Bytes of keystream from which native code is worth loading, and the first time compiling."""


def require_library() -> None:
    """Raise an error if the library is missing.

    Raises:
        MissingExtraError: cryptography is not installed.
    """
    _ciphers()


def derived(seed: bytes, use: str, context: bytes = b"") -> bytes:
    """Return an independent seed for one use: HKDF-Expand with SHA-256, one block.

    Args:
        seed: 32 secret bytes, uniform.
        use: names the use, so that two uses never share a stream.
        context: what the seed is bound to, such as a hash of a round's parameters; parties with other contexts get unrelated seeds.

    Raises:
        ConfigError: the seed does not have 32 bytes.
    """
    label = use.encode()
    info = b"atoll secure " + len(label).to_bytes(2, "big") + label + context
    return hmac.digest(_check_seed(seed), info + b"\x01", hashlib.sha256)


def keystream(seed: bytes, bits: int, count: int) -> Words:
    """Return the first words of a seed, uniform in ``[0, 2^bits)``.

    Args:
        seed: 32 secret bytes, for this stream only.
        bits: word length ``p``.
        count: number of words.

    Raises:
        ConfigError: the seed does not have 32 bytes.
        MissingExtraError: cryptography is not installed.
    """
    out = np.zeros(count, dtype=word_dtype(bits))
    add_stream(out, seed)
    return Words.of(Words.of(out, bits).reduced(), bits)


class Keystream:
    """The words of 64 bits of a seed, piece by piece: the source of a `atoll.privacy.discrete.DiscreteSampler`.

    Args:
        seed: 32 secret bytes, for this stream only.

    Raises:
        ConfigError: the seed does not have 32 bytes.
        MissingExtraError: cryptography is not installed.
    """

    def __init__(self, seed: bytes) -> None:
        self._cipher = opened(seed)

    def __call__(self, count: int) -> NDArray[np.uint64]:
        """Return the next words, uniform, shape ``(count,)``."""
        words = np.frombuffer(self._cipher.update(bytes(8 * count)), dtype="<u8")
        return words.astype(np.uint64, copy=False)


def add_stream(into: NDArray[Any], seed: bytes, *, subtract: bool = False) -> None:
    """Add the words of a seed to an array in place, modulo the dtype's ``2^(8 itemsize)``; see `add_streams`."""
    add_streams(into, [(seed, subtract)])


def add_streams(into: NDArray[Any], seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the words of many seeds to an array in place, modulo the dtype's ``2^(8 itemsize)``.

    Args:
        into: unsigned, one-dimensional, contiguous.
        seeds: 32 secret bytes each, for this stream only, and whether its words are subtracted.
    """
    add_between([into], ((seed, None, 0) if subtract else (seed, 0, None) for seed, subtract in seeds))


def add_between(rows: Sequence[NDArray[Any]], seeds: Iterable[tuple[bytes, int | None, int | None]]) -> None:
    """Add the words of each seed to one row and subtract them from another, in place: each stream is made once.

    Piece by piece, so that the pieces and the keystream of one seed at a time stay in the processor's cache. Long work is done in native code, with the same bits.

    Args:
        rows: unsigned arrays of one length and dtype, one-dimensional and contiguous.
        seeds: 32 secret bytes each, for this stream only; the row to which its words are added, and the one from which they are subtracted.
    """
    known = list(seeds)
    if not rows or not known:
        return
    if len(known) * rows[0].nbytes < _LONG or not _natively(rows, known):
        _by_library(rows, known)


def _by_library(rows: Sequence[NDArray[Any]], seeds: Sequence[tuple[bytes, int | None, int | None]]) -> None:
    """`add_between` with the library's cipher."""
    streams = [(opened(seed), plus, minus) for seed, plus, minus in seeds]
    first = rows[0]
    dtype = first.dtype if sys.byteorder == "little" else first.dtype.newbyteorder("<")
    step = _PIECE // dtype.itemsize
    buffer = bytearray(min(_PIECE, first.nbytes) + 16)
    for start in range(0, len(first), step):
        pieces = [row[start : start + step] for row in rows]
        zeros = _ZEROS if pieces[0].nbytes == _PIECE else _ZEROS[: pieces[0].nbytes]
        words = np.frombuffer(buffer, dtype=dtype, count=pieces[0].size)
        for stream, plus, minus in streams:
            stream.update_into(zeros, buffer)
            if plus is not None:
                np.add(pieces[plus], words, out=pieces[plus])
            if minus is not None:
                np.subtract(pieces[minus], words, out=pieces[minus])


def _natively(rows: Sequence[NDArray[Any]], seeds: Sequence[tuple[bytes, int | None, int | None]]) -> bool:
    """`add_between` in native code, and whether that was possible."""
    kernel = _sound_kernel()
    if kernel is None or not all(row.flags.c_contiguous and row.flags.writeable for row in rows):
        return False
    return kernel.add_between(
        rows,
        [_check_seed(seed) for seed, _, _ in seeds],
        [-1 if plus is None else plus for _, plus, _ in seeds],
        [-1 if minus is None else minus for _, _, minus in seeds],
    )


@functools.cache
def _sound_kernel() -> StreamKernel | None:
    """The native pass, if it makes the library's bits: for words of each length, with counters that carry into their upper half and around its end."""
    kernel = StreamKernel.here()
    if kernel is None:
        return None
    keys = [hashlib.sha256(bytes([i])).digest() for i in range(4)]
    ends = [b"\xff" * 16, bytes(8) + b"\xff" * 8, b"\xff" * 15 + b"\xf0", keys[0][:16]]
    seeds = [key[:16] + end for key, end in zip(keys, ends, strict=True)]
    ways = [(0, 1), (1, -1), (-1, 0), (1, 0)]
    for width in (1, 2, 4, 8):
        expected, found = (np.arange(2 * 1029 * 8, dtype=f"u{width}").reshape(2, -1) for _ in range(2))
        pairs = [
            (s, None if plus < 0 else plus, None if minus < 0 else minus)
            for s, (plus, minus) in zip(seeds, ways, strict=True)
        ]
        _by_library(list(expected), pairs)
        done = kernel.add_between(list(found), seeds, [plus for plus, _ in ways], [minus for _, minus in ways])
        if not done or not np.array_equal(expected, found):
            return None
    return kernel


def add_masks(lanes: Mapping[str, NDArray[Any]], seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the streams of many seeds to all lanes of a party, in place.

    A lane has its own seed, `derived` from that of the pair with the lane's name.

    Args:
        lanes: lane's name -> its words, changed in place.
        seeds: a seed, and whether its words are subtracted.
    """
    known = list(seeds)
    for name, words in lanes.items():
        add_streams(words.view(np.ndarray), ((derived(seed, f"lane {name}"), subtract) for seed, subtract in known))


def _check_seed(seed: bytes) -> bytes:
    if not isinstance(seed, bytes) or len(seed) != SEED:
        shown = f"{len(seed)} bytes" if isinstance(seed, bytes) else type(seed).__name__
        raise ConfigError(f"a seed of {shown}", where="keystream", remedy=f"use {SEED} bytes of island.secret")
    return seed


def _ciphers() -> Any:
    return need("cryptography.hazmat.primitives.ciphers", "secure", "masking sums")


def opened(seed: bytes) -> Any:
    """Return the cipher of a seed's stream: ``update_into(zeros, buffer)`` writes its next bytes.

    Raises:
        ConfigError: the seed does not have 32 bytes.
        MissingExtraError: cryptography is not installed.
    """
    ciphers = _ciphers()
    known = _check_seed(seed)
    return ciphers.Cipher(ciphers.algorithms.AES(known[:16]), ciphers.modes.CTR(known[16:])).encryptor()
