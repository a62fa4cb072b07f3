"""Keystream: the words that follow from a 32-byte seed, uniform in ``Z_2^p``.

The generator is AES-256 in counter mode (NIST SP 800-38A), of the library ``cryptography``: the key is the seed, the counter begins at 0, and the words are the
keystream's bytes, lowest first, in the dtype of words of ``p`` bits (1, 2, 4 or 8 bytes a word). Bits above ``p`` are keystream too. A sum modulo ``2^p`` ignores
them, so masking needs no masking of bits.

A seed is used for one stream only. `derived` makes independent seeds of one: HKDF-Expand of SHA-256 (RFC 5869), whose info names the use.

On two cores of a Xeon with AES instructions, AES-256-CTR of ``cryptography`` 50 makes 4.8 GB/s, AES-128-CTR 6.1 GB/s and ChaCha20 4.2 GB/s (the best of seven runs
of 8 MiB, ``benchmarks/secure_sums.py --keystream``); a new key costs 15 to 25 us. So AES-256 is the choice.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.extras import need
from atoll.core.message import Words
from atoll.core.message.words import word_dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

__all__ = ["SEED", "add_masks", "add_stream", "derived", "keystream", "require_library"]

SEED = 32
"""Bytes of a seed."""
_PIECE = 1 << 18
"""Bytes of keystream made at once: they stay in the processor's cache until they are added."""
_ZEROS = bytes(_PIECE)


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
    return hmac.digest(_checked(seed), info + b"\x01", hashlib.sha256)


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


def add_stream(into: NDArray[Any], seed: bytes, *, subtract: bool = False) -> None:
    """Add the words of a seed to an array in place, modulo the dtype's ``2^(8 itemsize)``; never more than 256 KiB of them exist at once.

    Args:
        into: unsigned, one-dimensional, contiguous.
        seed: 32 secret bytes, for this stream only.
        subtract: whether to subtract them instead.
    """
    stream = _stream(seed)
    dtype = into.dtype.newbyteorder("<")
    buffer = bytearray(_PIECE + 16)
    step, work = _PIECE // dtype.itemsize, np.subtract if subtract else np.add
    for start in range(0, len(into), step):
        piece = into[start : start + step]
        nbytes = piece.size * dtype.itemsize
        stream.update_into(_ZEROS[:nbytes] if nbytes < _PIECE else _ZEROS, buffer)
        work(piece, np.frombuffer(buffer, dtype=dtype, count=piece.size), out=piece)


def add_masks(lanes: Mapping[str, NDArray[Any]], seeds: Iterable[tuple[bytes, bool]]) -> None:
    """Add the streams of many seeds to all lanes of a party, in place.

    A lane has its own seed, `derived` from that of the pair with the lane's name.

    Args:
        lanes: lane's name -> its words, changed in place.
        seeds: a seed, and whether its words are subtracted.
    """
    for seed, subtract in seeds:
        for name, words in lanes.items():
            add_stream(words.view(np.ndarray), derived(seed, f"lane {name}"), subtract=subtract)


def _checked(seed: bytes) -> bytes:
    if not isinstance(seed, bytes) or len(seed) != SEED:
        shown = f"{len(seed)} bytes" if isinstance(seed, bytes) else type(seed).__name__
        raise ConfigError(f"a seed of {shown}", where="keystream", remedy=f"use {SEED} bytes of island.secret")
    return seed


def _ciphers() -> Any:
    return need("cryptography.hazmat.primitives.ciphers", "secure", "masking sums")


def _stream(seed: bytes) -> Any:
    ciphers = _ciphers()
    return ciphers.Cipher(ciphers.algorithms.AES(_checked(seed)), ciphers.modes.CTR(bytes(16))).encryptor()
