"""Random streams of an island's secret."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from atoll.core.algebra.rng import Rng

if TYPE_CHECKING:
    import numpy as np

    from atoll.core.requests.island import Secret

__all__ = ["SecretStream", "seed_of"]


class SecretStream(Rng):
    """A random stream that no party can draw again: every generator starts from 256 fresh bits of an island's secret.

    Args:
        secret: the island's secret.
    """

    __slots__ = ("_secret",)

    def __init__(self, secret: Secret) -> None:
        super().__init__(0)
        self._secret = secret

    def child(self, *path: str | int) -> Rng:
        """Return the stream itself: a secret stream has no positions to return to."""
        del path
        return self

    def generator(self) -> np.random.Generator:
        """Return a generator with its own seed."""
        return self._secret.generator()

    def seed(self) -> bytes:
        """Return 32 fresh bytes of the secret."""
        return self._secret.bytes(32)


def seed_of(stream: Rng) -> bytes:
    """Return 32 bytes for a keystream: fresh ones of a secret stream; of any other, a function of its path, which hides nothing."""
    if isinstance(stream, SecretStream):
        return stream.seed()
    return hashlib.blake2b(stream.key.to_bytes(8, "little"), digest_size=32).digest()
