"""Packing of small whole numbers into bytes and back: ``width`` bits each, lowest bit first."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["index_width", "pack", "pack_trits", "packed_bytes", "unpack", "unpack_trits"]

Array = np.ndarray[Any, np.dtype[Any]]
_POWERS = np.array([1, 3, 9, 27, 81], dtype=np.uint8)
_TRITS = (np.arange(243, dtype=np.uint8)[:, None] // _POWERS % 3).astype(np.uint8)


def index_width(count: int) -> int:
    """Bits of a number below ``count``: ``ceil(log2 count)``."""
    return max(0, count - 1).bit_length()


def packed_bytes(count: int, width: int) -> int:
    """Bytes for ``count`` numbers: ``ceil(count * width / 8)``."""
    return -(-count * width // 8)


def pack(codes: Array, width: int) -> Array:
    """Pack along the last axis.

    Args:
        codes: whole numbers below ``2^width``, shape ``(..., count)``.
        width: bits each, up to 63.

    Returns:
        ``uint8``, shape ``(..., ceil(count * width / 8))``.
    """
    count = codes.shape[-1]
    if width in (8, 16, 32):
        return np.ascontiguousarray(codes.astype(f"<u{width // 8}")).view(np.uint8)
    if width == 1:
        return np.packbits(codes.astype(bool), axis=-1, bitorder="little")
    if width < 8:
        return _pack_words(codes, width)[..., : packed_bytes(count, width)]
    bits = (codes.astype(np.uint64)[..., None] >> np.arange(width, dtype=np.uint64)).astype(np.uint8) & np.uint8(1)
    return np.packbits(bits.reshape(*codes.shape[:-1], count * width), axis=-1, bitorder="little")


def _pack_words(codes: Array, width: int) -> Array:
    """Pack words: eight numbers take ``width`` bytes."""
    *lead, count = codes.shape
    padded = np.zeros((*lead, -(-count // 8) * 8), dtype=np.uint8)
    padded[..., :count] = codes
    eight = padded.reshape(*lead, -1, 8)
    word = np.zeros(eight.shape[:-1], dtype="<u8")
    for i in range(8):
        word |= eight[..., i].astype(np.uint64) << np.uint64(i * width)
    return np.ascontiguousarray(word[..., None].view(np.uint8)[..., :width]).reshape(*lead, -1)


def unpack(packed: Array, width: int, count: int) -> Array:
    """The inverse of ``pack``: unsigned integers of the smallest dtype, shape ``(..., count)``."""
    packed = np.ascontiguousarray(packed)
    lead = packed.shape[:-1]
    if width in (8, 16, 32):
        return packed.view(f"<u{width // 8}")
    if width == 1:
        return np.unpackbits(packed, axis=-1, count=count, bitorder="little")
    if 0 < width < 8:
        groups = -(-count // 8)
        words = np.zeros((*lead, groups, 8), dtype=np.uint8)
        body = np.zeros((*lead, groups * width), dtype=np.uint8)
        body[..., : packed.shape[-1]] = packed
        words[..., :width] = body.reshape(*lead, groups, width)
        word = words.view("<u8")[..., 0]
        mask = np.uint64((1 << width) - 1)
        codes = np.empty((*lead, groups, 8), dtype=np.uint8)
        for i in range(8):
            codes[..., i] = (word >> np.uint64(i * width)) & mask
        return codes.reshape(*lead, -1)[..., :count]
    bits = np.unpackbits(packed, axis=-1, count=count * width, bitorder="little").reshape(*lead, count, width)
    weights = np.uint64(1) << np.arange(width, dtype=np.uint64)
    return np.asarray((bits * weights).sum(axis=-1, dtype=np.uint64))


def pack_trits(trits: Array) -> Array:
    """Pack the numbers 0, 1 and 2, five a byte (``3^5 = 243``): 1.6 bits each."""
    *lead, count = trits.shape
    padded = np.zeros((*lead, -(-count // 5) * 5), dtype=np.uint8)
    padded[..., :count] = trits
    return np.asarray((padded.reshape(*lead, -1, 5) * _POWERS).sum(axis=-1, dtype=np.uint8))


def unpack_trits(packed: Array, count: int) -> Array:
    """The inverse of ``pack_trits``."""
    return np.asarray(_TRITS[packed].reshape(*packed.shape[:-1], -1)[..., :count])
