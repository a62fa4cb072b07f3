"""Whole numbers modulo a power of two."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.errors import ConfigError

from .domain import Array, Domain, limbs

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .domain import WordSource

__all__ = ["WordRing"]

_BLAS = 4096
"""Multiplications of a matrix product from which it runs in floating point, limb by limb."""


@dataclass(frozen=True)
class WordRing(Domain):
    """``Z_2^k``: integers modulo ``2^k``.

    Attributes:
        k: bits of an element, 2 to 64.
    """

    name: ClassVar[str] = "ring"
    k: int = 64

    def __post_init__(self) -> None:
        if not 2 <= self.k <= 64:
            raise ConfigError(f"k={self.k}", where="WordRing", remedy="use 2 to 64 bits")

    @property
    def order(self) -> int:
        """``2^k``."""
        return 1 << self.k

    @property
    def mask(self) -> np.uint64:
        """``2^k - 1``."""
        return np.uint64(self.order - 1)

    def _cut(self, x: Array) -> Array:
        return np.asarray(x if self.k == 64 else x & self.mask)

    def random(self, secret: WordSource, shape: tuple[int, ...]) -> Array:
        """Uniform elements."""
        return self._cut(secret.uint64(shape))

    def add(self, x: Array, y: Array) -> Array:
        """``x + y`` modulo ``2^k``."""
        return self._cut(np.add(x, y))

    def neg(self, x: Array) -> Array:
        """``2^k - x``."""
        return self._cut(np.negative(x))

    def mul(self, x: Array, y: Array) -> Array:
        """``x y`` modulo ``2^k``."""
        return self._cut(np.multiply(x, y))

    def dot(self, x: Array, y: Array) -> Array:
        """The matrix product modulo ``2^k``; large ones in floating point, from products of 16-bit limbs: ten for 64 bits."""
        inner = x.shape[-1]
        if x.ndim != 2 or y.ndim != 2 or x.shape[0] * y.shape[1] * inner < _BLAS or inner > 1 << 20:
            return self._cut(np.asarray(x @ y))
        count = -(-self.k // 16)
        a, b = limbs(x, 16, count), limbs(y, 16, count)
        made = np.zeros((x.shape[0], y.shape[1]), dtype=np.uint64)
        for place in range(count):
            for i in range(place + 1):
                made += (a[i] @ b[place - i]).astype(np.uint64) << np.uint64(16 * place)
        return self._cut(made)

    def total(self, x: Array, axis: int = 0) -> Array:
        """The sum along an axis."""
        return self._cut(np.asarray(x.sum(axis=axis, dtype=np.uint64)))

    def _embedded(self, array: NDArray[np.int64]) -> Array:
        return self._cut(array.view(np.uint64) if array.ndim else np.asarray(array).astype(np.uint64))

    def signed(self, x: Array) -> NDArray[np.int64]:
        """Elements as numbers in ``[-2^(k-1), 2^(k-1))``."""
        shift = np.uint64(64 - self.k)
        return np.asarray((x << shift).astype(np.int64) >> shift.astype(np.int64))

    def spec(self) -> dict[str, Any]:
        """The domain as plain values."""
        return {"domain": self.name, "k": self.k}
