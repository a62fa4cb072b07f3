"""Tags: how the key holder knows that what it opens is the sum of the parties that it was told of, each once and unaltered.

With numbers ``u_ij`` of party i, secret weights ``k_j`` that the holder shares with the parties, and a pad ``r_i`` that party i tells the holder alone,

    ``tag_i = sum_j k_j u_ij + r_i  mod q``,    q = 2^31 - 1,

travels encrypted beside the numbers and adds up with them. The holder requires ``sum_i tag_i = sum_j k_j (sum_i u_ij) + sum_i r_i``. A server that leaves out, repeats,
scales or mixes ciphertexts would have to guess a linear relation of values that it does not know. There are two tags with independent weights, so a forgery
passes with probability ``q^-2 < 2^-61``. A party that colludes with the server knows the weights, and voids this.
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

__all__ = ["PRIME", "pads", "right", "tag_form", "tags"]

PRIME = 2**31 - 1
_COUNT = 2


def tag_form(parties: int) -> Digits:
    """Return the form of the tags."""
    return Digits(_COUNT, 31, parties)


def pads(secret: Secret) -> list[int]:
    """Return a party's pads, uniform modulo q."""
    return [secret.integer(PRIME) for _ in range(_COUNT)]


def tags(seed: bytes, numbers: Sequence[NDArray[np.uint64]], pad: Sequence[int]) -> NDArray[np.uint64]:
    """Return a party's tags.

    Args:
        seed: 32 secret bytes, from which the weights follow.
        numbers: what the party encrypts.
        pad: from `pads`.
    """
    return np.array([(s + r) % PRIME for s, r in zip(_sums(seed, numbers), pad, strict=True)], dtype=np.uint64)


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
    total = np.array([*padding], dtype=object).reshape(-1, _COUNT).sum(axis=0)
    expected = [(s + int(r)) % PRIME for s, r in zip(_sums(seed, sums), total, strict=True)]
    return expected == [int(t) % PRIME for t in tagged]


def _sums(seed: bytes, numbers: Sequence[NDArray[np.uint64]]) -> list[int]:
    """``sum_j k_j u_j mod q`` for each of the tags."""
    prime, found = np.uint64(PRIME), []
    for tag in range(_COUNT):
        total = 0
        for i, row in enumerate(numbers):
            # 64 random bits modulo q are uniform up to 2^-33.
            weights = keystream(derived(seed, f"tag {tag} array {i}"), 64, row.size).view(np.ndarray) % prime
            total += int((weights * (row % prime) % prime).sum(dtype=np.uint64))
        found.append(total % PRIME)
    return found
