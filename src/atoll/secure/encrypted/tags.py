"""Tags: how the key holder knows that what it opens is the sum of the parties that it was told of, each once and unaltered.

With numbers ``u_ij`` of party i, secret weights ``k_j`` that the holder shares with the parties, and a pad ``r_i`` that party i tells the holder alone,

    ``tag_i = sum_j k_j u_ij + r_i  mod q``,

travels encrypted beside the numbers and adds up with them. The holder requires ``sum_i tag_i = sum_j k_j (sum_i u_ij) + sum_i r_i``. A server that leaves out, repeats,
scales or mixes ciphertexts would have to guess a linear relation of values that it does not know. There are two tags with independent weights modulo each of two
primes just below 2^31, so a forgery passes with probability below 2^-61. With one prime q, a server could add q times a party's small number to the sum of its column: tags
modulo q do not see that, and the holder would open it. A multiple of both primes has 62 bits, more than the numbers that a slot holds. A party that colludes
with the server knows the weights, and voids this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..keystream import derived, keystream
from .digits import Digits

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

__all__ = ["PRIMES", "pads", "right", "tag_form", "tags"]

PRIMES = (2**31 - 1, 2**31 - 1, 2**31 - 19, 2**31 - 19)
"""The modulus of each tag; all are prime."""


def tag_form(parties: int) -> Digits:
    """Return the form of the tags."""
    return Digits(len(PRIMES), 31, parties)


def pads(secret: Secret) -> list[int]:
    """Return a party's pads, uniform modulo the primes."""
    return [secret.integer(prime) for prime in PRIMES]


def tags(seed: bytes, numbers: Sequence[NDArray[np.uint64]], pad: Sequence[int]) -> NDArray[np.uint64]:
    """Return a party's tags.

    Args:
        seed: 32 secret bytes, from which the weights follow.
        numbers: what the party encrypts.
        pad: from `pads`.
    """
    return np.array([(s + r) % q for s, r, q in zip(_sums(seed, numbers), pad, PRIMES, strict=True)], dtype=np.uint64)


def right(
    seed: bytes,
    sums: Sequence[NDArray[np.uint64]],
    tagged: NDArray[np.uint64],
    padding: Iterable[Sequence[Any]],
) -> bool:
    """Return whether sums have the tags that they must have.

    Args:
        seed: as in `tags`.
        sums: of the parties' numbers.
        tagged: sums of the parties' tags.
        padding: the pads of the parties that should be in them.
    """
    total = np.array([*padding], dtype=object).reshape(-1, len(PRIMES)).sum(axis=0)
    expected = [(s + int(r)) % q for s, r, q in zip(_sums(seed, sums), total, PRIMES, strict=True)]
    return expected == [int(t) % q for t, q in zip(tagged, PRIMES, strict=True)]


def _sums(seed: bytes, numbers: Sequence[NDArray[np.uint64]]) -> list[int]:
    """``sum_j k_j u_j mod q`` for each of the tags."""
    found = []
    for tag, modulus in enumerate(PRIMES):
        total, prime = 0, np.uint64(modulus)
        for i, row in enumerate(numbers):
            # 64 random bits modulo q are uniform up to 2^-33.
            weights = keystream(derived(seed, f"tag {tag} array {i}"), 64, row.size).view(np.ndarray) % prime
            total += int((weights * (row % prime) % prime).sum(dtype=np.uint64))
        found.append(total % modulus)
    return found
