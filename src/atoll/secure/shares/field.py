"""Whole numbers modulo a prime."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from .domain import Array, Domain, limbs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .domain import WordSource

__all__ = ["MERSENNE", "Field"]

MERSENNE = 2**61 - 1
"""The default prime: reduction modulo it is a shift and an addition."""
_FULL = 2**64


@dataclass(frozen=True)
class Field(Domain):
    """``F_p``: integers modulo a prime.

    Attributes:
        prime: ``2^61 - 1``, or a prime below ``2^32``.
    """

    name: ClassVar[str] = "field"
    prime: int = MERSENNE

    def __post_init__(self) -> None:
        if self.prime != MERSENNE and not (2 < self.prime < 2**32 and _is_prime(self.prime)):
            raise ConfigError(f"prime={self.prime}", where="Field", remedy="use 2^61 - 1, or an odd prime below 2^32")

    @property
    def order(self) -> int:
        """The prime."""
        return self.prime

    def _cut(self, x: Array) -> Array:
        """Reduce numbers below ``2^64``."""
        p = np.uint64(self.prime)
        if self.prime != MERSENNE:
            return x % p
        made = np.add(x & p, x >> np.uint64(61))
        return np.asarray(np.minimum(made, np.subtract(made, p)))  # below p the difference wraps to a large number

    def random(self, secret: WordSource, shape: tuple[int, ...]) -> Array:
        """Uniform elements: bits of the secret, drawn again where they are not below the prime."""
        low = np.uint64((1 << self.bits) - 1)
        made = np.ravel(secret.uint64(shape) & low)
        while (over := np.flatnonzero(made >= np.uint64(self.prime))).size:
            made[over] = secret.uint64((over.size,)) & low
        return made.reshape(shape)

    def add(self, x: Array, y: Array) -> Array:
        """``x + y`` modulo ``p``."""
        made = np.add(x, y)
        return np.asarray(np.minimum(made, np.subtract(made, np.uint64(self.prime))))

    def neg(self, x: Array) -> Array:
        """``p - x``."""
        return np.where(x == 0, x, np.subtract(np.uint64(self.prime), x))

    def mul(self, x: Array, y: Array) -> Array:
        """``x y`` modulo ``p``; for ``2^61 - 1`` from the four products of 32-bit halves."""
        if self.prime != MERSENNE:
            return self._cut(np.multiply(x, y))
        half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
        a, b, c, d = x >> half, x & low, y >> half, y & low
        middle = a * d + b * c  # below 2^62
        # 2^64 = 8 and 2^61 = 1: middle 2^32 = (middle >> 29) 2^61 + (middle & (2^29 - 1)) 2^32.
        top = (a * c) << np.uint64(3)
        wrapped = (middle >> np.uint64(29)) + ((middle & np.uint64((1 << 29) - 1)) << half)
        return self._cut(self._cut(top) + self._cut(wrapped) + self._cut(b * d))

    def times(self, x: Array, factor: int) -> Array:
        """``x factor`` for a public factor below ``2^29``: fewer operations than `mul`."""
        if factor * (self.prime - 1) < _FULL:
            return self._cut(np.multiply(x, np.uint64(factor)))
        small, low = np.uint64(factor), np.uint64(0xFFFFFFFF)
        high = np.multiply(x >> np.uint64(32), small)  # below 2^58; 2^61 = 1
        wrapped = (high >> np.uint64(29)) + ((high & np.uint64((1 << 29) - 1)) << np.uint64(32))
        return self._cut(np.add(wrapped, np.multiply(x & low, small)))

    def dot(self, x: Array, y: Array) -> Array:
        """The matrix product modulo ``p``, in floating point: nine products of 21-bit limbs for each 1,024 inner entries."""
        made = np.zeros((*x.shape[:-1], *y.shape[1:]), dtype=np.uint64)
        for begin in range(0, x.shape[-1], 1024):
            a = limbs(x[..., begin : begin + 1024], 21, 3)
            b = limbs(y[begin : begin + 1024], 21, 3)
            for i in range(3):
                for j in range(3):
                    part = self._cut((a[i] @ b[j]).astype(np.uint64))
                    made = self.add(
                        made, self.mul(part, self._cut(np.array((1 << (21 * (i + j))) % self.prime, np.uint64)))
                    )
        return made

    def power(self, x: Array, exponent: int) -> Array:
        """``x^exponent``, by squaring."""
        made, square = np.ones_like(x), x
        while exponent:
            if exponent & 1:
                made = self.mul(made, square)
            square, exponent = self.mul(square, square), exponent >> 1
        return made

    def _embedded(self, array: NDArray[np.int64]) -> Array:
        return np.where(
            array < 0, np.subtract(np.uint64(self.prime), (-array).astype(np.uint64)), array.astype(np.uint64)
        )

    def signed(self, x: Array) -> NDArray[np.int64]:
        """Elements as numbers in ``(-p/2, p/2)``."""
        made = x.astype(np.int64)
        return np.where(x > np.uint64(self.prime // 2), made - np.int64(self.prime), made)

    def spec(self) -> dict[str, Any]:
        """The domain as plain values."""
        return {"domain": self.name, "prime": self.prime}


def _is_prime(n: int) -> bool:
    """Miller-Rabin, exact below 2^32 for the bases 2, 7 and 61 (Jaeschke 1993)."""
    if n % 2 == 0:
        return n == 2
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(base % n == 0 or _passes(n, base, odd, twos) for base in (2, 7, 61))


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    return any((x := x * x % n) == n - 1 for _ in range(twos - 1))
