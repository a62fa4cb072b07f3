"""Equality of messages, and a fingerprint of their content."""

from __future__ import annotations

import hashlib
from itertools import zip_longest

import numpy as np

from atoll.core.message.encoder import pieces
from atoll.core.message.limits import DEFAULT_LIMITS, Limits

__all__ = ["equal", "fingerprint"]

_BLOCK = 1 << 20


def equal(a: object, b: object, *, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Return whether two trees have the same canonical encoding.

    Strict in type, dtype and shape (``1``, ``1.0``, ``True`` and ``np.int64(1)`` all differ, a list is
    not a tuple, ``0.0`` is not ``-0.0``), except for what has no meaning: the order of dict keys,
    the bits of a NaN (every NaN equals every other of its dtype), byte order and memory layout. Aware
    datetimes are equal if wall time and offset from UTC are.

    Raises:
        MessageError: a tree cannot be encoded.
    """
    pairs = zip_longest(pieces(a, limits, canonical=True), pieces(b, limits, canonical=True), fillvalue=None)
    return all(_same(one, other) for one, other in pairs)


def _same(one: memoryview | None, other: memoryview | None) -> bool:
    if one is None or other is None or one.nbytes != other.nbytes:
        return False
    return all(
        np.array_equal(one[start : start + _BLOCK], other[start : start + _BLOCK])
        for start in range(0, one.nbytes, _BLOCK)
    )


def fingerprint(tree: object, *, limits: Limits = DEFAULT_LIMITS) -> str:
    """Return the BLAKE2b-256 hash of the canonical encoding, in 64 hexadecimal digits.

    The canonical encoding is ``encode`` with dicts sorted by key (by code point) and one bit pattern
    for NaN. Equal trees (`equal`) have equal fingerprints, on every machine; unequal trees have
    unequal ones, as far as BLAKE2b resists collisions (RFC 7693).

    Raises:
        MessageError: the tree cannot be encoded.
    """
    state = hashlib.blake2b(digest_size=32)
    for piece in pieces(tree, limits, canonical=True):
        state.update(piece)
    return state.hexdigest()
