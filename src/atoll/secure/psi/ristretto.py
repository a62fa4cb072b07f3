"""Points of ristretto255 (RFC 9496), many at once: keys hashed to the group, and raised to a secret.

The group has prime order, so a point betrays nothing of the key whose multiple it is. On bare X25519 a hash may lie on the curve or on its twist, of different
orders, which one exponent does not hide: an observer of ``h(x)^a`` learns one bit of each hash.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import LetterError
from atoll.core.extras import need

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["BYTES", "draw_scalar", "hash_keys", "invert_scalar", "raise_points", "require_points"]

BYTES = 32
"""Bytes of a point and of a scalar."""
_THREADED = 2048
"""From so many points on, threads share them: libsodium works outside the interpreter's lock."""
_DOMAIN = b"atoll psi keys"

Points = NDArray[np.uint8]


def _sodium() -> Any:
    return need("rbcl", "secure", "private set intersection on ristretto255")


def draw_scalar(secret: Secret) -> bytes:
    """A uniform scalar other than 0, as 32 bytes: 512 secret bits reduced modulo the order of the group."""
    while True:
        scalar = bytes(_sodium().crypto_core_ristretto255_scalar_reduce(secret.bytes(64)))
        if any(scalar):
            return scalar


def invert_scalar(scalar: bytes) -> bytes:
    """The scalar that undoes another one."""
    return bytes(_sodium().crypto_core_ristretto255_scalar_invert(scalar))


def hash_keys(keys: Sequence[str]) -> Points:
    """The point of each key, ``(keys, 32)``: Elligator of BLAKE2b with 64 bytes of the key in UTF-8 (RFC 9496, 4.3.4)."""
    to_point = _sodium().crypto_core_ristretto255_from_hash

    def point(key: str) -> bytes:
        return bytes(to_point(hashlib.blake2b(key.encode(), digest_size=64, person=_DOMAIN).digest()))

    return _mapped(point, keys)


def raise_points(points: Points, scalar: bytes, where: str = "psi") -> Points:
    """Each point times a scalar, ``(points, 32)``.

    Args:
        points: the points, ``(points, 32)``.
        scalar: the scalar.
        where: whose points they are, for the error.

    Raises:
        LetterError: a row is no point of the group, or its neutral element, which would betray the product of every key.
    """
    multiply = _sodium().crypto_scalarmult_ristretto255

    def raised(point: bytes) -> bytes:
        try:
            return bytes(multiply(scalar, point))
        except RuntimeError:
            raise LetterError("an invalid point of ristretto255", where=where, remedy="look at the party that sent it: it does not follow the protocol") from None  # fmt: skip

    return _mapped(raised, _rows(points))


def require_points(points: Points, where: str, *, raised: bool = False) -> None:
    """Refuse rows that are no points, are neutral, or stand twice: a key has one point, and no party has a key twice.

    Args:
        points: the points, ``(points, 32)``.
        where: whose points they are, for the error.
        raised: whether `raise_points` will refuse what is no point.

    Raises:
        LetterError: says which of them it is.
    """
    rows, valid = _rows(points), _sodium().crypto_core_ristretto255_is_valid_point
    if len(set(rows)) < len(rows):
        raise LetterError("a point stands twice", where=where, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip
    if not raised and not all(any(row) and valid(row) for row in rows):
        raise LetterError("an invalid point of ristretto255", where=where, remedy="look at the party that sent it: it does not follow the protocol")  # fmt: skip


def _rows(points: Points) -> list[bytes]:
    raw = np.ascontiguousarray(points).tobytes()
    return [raw[at : at + BYTES] for at in range(0, len(raw), BYTES)]


def _mapped(function: Callable[[Any], bytes], items: Sequence[Any]) -> Points:
    """The results as rows, ``(items, 32)``; in threads where there are many."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if len(items) < _THREADED or cores < 2:
        found = b"".join(map(function, items))
    else:
        step = -(-len(items) // cores)
        parts = [items[at : at + step] for at in range(0, len(items), step)]
        with ThreadPoolExecutor(cores) as pool:
            found = b"".join(pool.map(lambda part: b"".join(map(function, part)), parts))
    return np.frombuffer(found, dtype=np.uint8).reshape(len(items), BYTES)
