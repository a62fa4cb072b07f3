"""Safe primes: ``p = 2 p' + 1`` with p' prime."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from .paillier import gmp

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.requests.island import Secret

__all__ = ["safe_prime"]

_SPAN = 1 << 18


def safe_prime(bits: int, secret: Secret) -> Any:
    """Return a safe prime whose two highest bits are set.

    It sieves stretches of candidates p' by the primes below 2^18, for p' and ``2 p' + 1`` at once, and tests what is left. A stretch begins at a random place.
    """
    g = gmp()
    small = _small(min(1 << 18, 1 << (bits // 2 - 2)))
    while True:
        start = g.mpz(secret.integer(1 << (bits - 3)) | (3 << (bits - 3)) | 1)
        open_ = np.ones(_SPAN, dtype=bool)  # candidate i is start + 2 i
        for r in small.tolist():
            rest, half = int(start % r), (r + 1) // 2
            open_[(-rest * half) % r :: r] = False  # r divides p'
            open_[((half - 1 - rest) * half) % r :: r] = False  # r divides 2 p' + 1
        for i in np.flatnonzero(open_).tolist():
            half_prime = start + 2 * i
            if half_prime.bit_length() != bits - 1:
                break
            if not g.is_fermat_prp(half_prime, 2) or not g.is_fermat_prp(2 * half_prime + 1, 2):
                continue
            if g.is_prime(half_prime, 40) and g.is_prime(2 * half_prime + 1, 40):
                return 2 * half_prime + 1


@lru_cache(maxsize=4)
def _small(below: int) -> NDArray[np.int64]:
    """The odd primes below a number (Eratosthenes)."""
    sieve = np.ones(below, dtype=bool)
    sieve[:2] = False
    for i in range(2, int(below**0.5) + 1):
        if sieve[i]:
            sieve[i * i :: i] = False
    return np.flatnonzero(sieve)[1:]
