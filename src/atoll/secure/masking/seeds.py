"""Seeds of masks: agreed in pairs, split into shares that a threshold of holders can open, and committed to.

The sharing is Shamir's (1979) over the integers modulo the prime ``2^256 + 297``: a secret of 32 bytes is the value at 0 of a random polynomial of degree
``threshold - 1``, and holder ``x = 1, 2, ...`` gets its value at ``x``. Any ``threshold`` shares give the secret; fewer are independent of it.

A commitment is the SHA-256 of a share, a secret or a public key with its label. Shares are uniform over 256 bits, so a commitment tells nothing of them, and whoever
opens a sum can tell a wrong share from a right one.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.errors import ConfigError, LetterError
from atoll.core.extras import need

from ..keystream import SEED, derived

if TYPE_CHECKING:
    from atoll.core.requests.island import Secret

__all__ = ["PRIME", "SHARE", "commitment", "open_secret", "pair_seed", "public_key", "shares_of"]

PRIME = 2**256 + 297
SHARE = 33
"""Bytes of a share."""


def shares_of(secret: bytes, holders: int, threshold: int, entropy: Secret) -> list[bytes]:
    """Split a secret of 32 bytes; share ``i`` is the polynomial's value at ``i + 1``.

    Args:
        secret: 32 bytes.
        holders: number of shares.
        threshold: number of shares that give the secret.
        entropy: of the polynomial; one draw.

    Raises:
        ConfigError: the threshold is not 1 to ``holders``, or the secret has another length.
    """
    if len(secret) != SEED or not 1 <= threshold <= holders:
        raise ConfigError(
            f"{len(secret)} bytes for {holders} holders with a threshold of {threshold}",
            where="shares_of",
            remedy=f"share {SEED} bytes, with a threshold of 1 to {holders}",
        )
    raw = entropy.bytes(48 * (threshold - 1))  # 384 bits modulo a prime of 257: the bias is below 2^-127
    line = [int.from_bytes(raw[at : at + 48], "little") % PRIME for at in range(0, len(raw), 48)]
    made = []
    for x in range(1, holders + 1):
        value = 0
        for coefficient in line:
            value = (value + coefficient) * x % PRIME
        made.append(((value + int.from_bytes(secret, "little")) % PRIME).to_bytes(SHARE, "little"))
    return made


def open_secret(shares: Mapping[int, bytes]) -> bytes:
    """The secret, from ``threshold`` shares or more.

    Args:
        shares: holder's place, from 0 -> its share.

    Raises:
        LetterError: the shares do not give a secret of 32 bytes: one of them is wrong.
    """
    places = tuple(sorted(shares))
    factors = _lagrange(places)
    total = sum(f * int.from_bytes(shares[x], "little") for x, f in zip(places, factors, strict=True)) % PRIME
    if total >= 1 << (8 * SEED):
        raise LetterError("the shares of a seed do not fit together", remedy="check them against their commitments")
    return total.to_bytes(SEED, "little")


@functools.lru_cache(maxsize=4096)
def _lagrange(places: Sequence[int]) -> list[int]:
    """The factor of each share in the value at 0."""
    made = []
    for place in places:
        over = under = 1
        for other in places:
            if other != place:
                # Places count from 0 and points from 1, because the value at point 0 is the secret.
                over = over * (other + 1) % PRIME
                under = under * (other - place) % PRIME
        made.append(over * pow(under, -1, PRIME) % PRIME)
    return made


def commitment(use: str, value: bytes) -> bytes:
    """SHA-256 of a value with its use, 32 bytes."""
    return hashlib.sha256(b"atoll commitment " + use.encode() + b"\0" + value).digest()


def public_key(private: bytes) -> bytes:
    """The X25519 public key (RFC 7748) of 32 secret bytes.

    Raises:
        MissingExtraError: cryptography is not installed.
    """
    return bytes(_x25519().X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw())


def pair_seed(private: bytes, public: bytes, context: bytes) -> bytes:
    """The seed that two parties share: HKDF of their X25519 agreement, bound to a context.

    Both ends derive the same seed, and whoever opens one end's private key does too.

    Args:
        private: one end's private key.
        public: the other end's public key.
        context: what the masks are bound to.

    Raises:
        LetterError: the public key is not a usable point.
    """
    x25519 = _x25519()
    try:
        shared = x25519.X25519PrivateKey.from_private_bytes(private).exchange(
            x25519.X25519PublicKey.from_public_bytes(public)
        )
    except ValueError as error:
        raise LetterError(f"a public key is not usable: {error}", remedy="look at the party that sent it") from error
    return derived(hashlib.sha256(b"atoll pair" + shared).digest(), "pair", context)


def _x25519() -> Any:
    return need("cryptography.hazmat.primitives.asymmetric.x25519", "secure", "agreeing on masks")
