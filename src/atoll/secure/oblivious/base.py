"""Base transfers: a few random seeds by public keys, of which the receiver has one of each pair.

The protocol of Chou and Orlandi (2015, "The simplest protocol for oblivious transfer") on ristretto255 (RFC 9496), a group of prime order. The sender draws ``a`` and
sends ``A = aG``. For a choice ``c`` the receiver draws ``b`` and sends ``B = bG + cA``, which is uniform for both choices. The sender's seeds are ``H(i, A, B, aB)`` and
``H(i, A, B, a(B - A))``; the receiver computes the one of its choice as ``H(i, A, B, bA)``. Semi-honest parties learn no more; the other seed is a Diffie-Hellman value.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import LetterError
from atoll.core.extras import need

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.session import PeerChannel
    from atoll.core.requests.island import Secret

__all__ = ["SEED", "POINT", "check_rows", "receive_seeds", "send_seeds"]

SEED = 32
"""Bytes of a seed."""
POINT = 32
"""Bytes of an encoded point."""


async def send_seeds(secret: Secret, channel: PeerChannel, peer: str, count: int) -> NDArray[np.uint8]:
    """Make pairs of seeds of which the peer gets one each, by its choice.

    Args:
        secret: this party's entropy.
        channel: a stream of the session that nothing else uses meanwhile.
        peer: the role that runs `receive_seeds`.
        count: number of pairs.

    Returns:
        Shape ``(count, 2, 32)``.

    Raises:
        LetterError: the peer's points are not ``count`` elements of the group.
        MissingExtraError: rbcl is not installed.
    """
    group = _group()
    a = group.crypto_core_ristretto255_scalar_reduce(secret.bytes(64))
    public = group.crypto_scalarmult_ristretto255_base(a)
    square = group.crypto_scalarmult_ristretto255(a, public)
    await channel.send(peer, np.frombuffer(public, dtype=np.uint8))
    points = _read_points(await channel.recv(peer), count, peer)
    seeds = bytearray()
    for i, point in enumerate(points):
        shared = group.crypto_scalarmult_ristretto255(a, point)
        seeds += _seed(i, public, point, shared)
        seeds += _seed(i, public, point, group.crypto_core_ristretto255_sub(shared, square))
    return np.frombuffer(bytes(seeds), dtype=np.uint8).reshape(count, 2, SEED)


async def receive_seeds(
    secret: Secret, channel: PeerChannel, peer: str, choices: NDArray[np.bool_]
) -> NDArray[np.uint8]:
    """Take one seed of each of the peer's pairs.

    Args:
        secret: this party's entropy.
        channel: a stream of the session that nothing else uses meanwhile.
        peer: the role that runs `send_seeds`.
        choices: which seed of each pair, ``(count,)``.

    Returns:
        Shape ``(count, 32)``.

    Raises:
        LetterError: the peer's point is not an element of the group.
        MissingExtraError: rbcl is not installed.
    """
    group = _group()
    (public,) = _read_points(await channel.recv(peer), 1, peer)
    seeds, sent = bytearray(), bytearray()
    for i, choice in enumerate(choices.tolist()):
        b = group.crypto_core_ristretto255_scalar_reduce(secret.bytes(64))
        point = group.crypto_scalarmult_ristretto255_base(b)
        if choice:
            point = group.crypto_core_ristretto255_add(point, public)
        sent += point
        seeds += _seed(i, public, point, group.crypto_scalarmult_ristretto255(b, public))
    await channel.send(peer, np.frombuffer(bytes(sent), dtype=np.uint8))
    return np.frombuffer(bytes(seeds), dtype=np.uint8).reshape(len(choices), SEED)


def check_rows(
    received: Any,
    shape: tuple[int, ...],
    peer: str,
    what: str,
    dtype: Any = np.uint8,
    where: str = "oblivious transfer",
) -> NDArray[Any]:
    """Return a received array if it is exactly what the protocol expects.

    Raises:
        LetterError: it is not; names the peer, and both shapes.
    """
    if isinstance(received, np.ndarray) and received.shape == shape and received.dtype == np.dtype(dtype):
        return received
    found = f"{received.dtype}{received.shape}" if isinstance(received, np.ndarray) else type(received).__name__
    raise LetterError(
        f"party {peer!r} sent {found} in place of {what}, {np.dtype(dtype)}{shape}",
        where=where,
        remedy="stop working with this party until its operator has found out why: it does not run the same protocol",
    )


def _read_points(received: Any, count: int, peer: str) -> list[bytes]:
    """The points of a frame: encoded canonically, and not the neutral element."""
    raw = check_rows(received, (POINT * count,), peer, f"{count} points").tobytes()
    valid, points = _group().crypto_core_ristretto255_is_valid_point, []
    for i in range(count):
        point = raw[POINT * i : POINT * (i + 1)]
        if not valid(point) or not any(point):
            raise LetterError(
                f"party {peer!r} sent 32 bytes that are no point of ristretto255, or the neutral one, in place of point {i}",
                where="oblivious transfer",
                remedy="stop working with this party until its operator has found out why: such points probe secrets",
            )
        points.append(point)
    return points


def _seed(place: int, public: bytes, point: bytes, shared: bytes) -> bytes:
    content = place.to_bytes(8, "little") + public + point + shared
    return hashlib.blake2b(content, digest_size=SEED, person=b"atoll base OT").digest()


def _group() -> Any:
    return need("rbcl", "secure", "oblivious transfer")
