"""Bits, 64 in a word."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from .domain import Array, Domain

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .domain import WordSource

__all__ = ["Binary"]


@dataclass(frozen=True)
class Binary(Domain):
    """Bits, 64 in a word: addition is XOR and multiplication AND. `packed` and `unpacked` convert."""

    name: ClassVar[str] = "binary"

    @property
    def order(self) -> int:
        """``2^64``: an element is a word."""
        return 1 << 64

    @property
    def two_is_zero(self) -> bool:
        """True."""
        return True

    def random(self, secret: WordSource, shape: tuple[int, ...]) -> Array:
        """Uniform words."""
        return secret.uint64(shape)

    def add(self, x: Array, y: Array) -> Array:
        """``x XOR y``."""
        return x ^ y

    def neg(self, x: Array) -> Array:
        """Itself."""
        return x

    def mul(self, x: Array, y: Array) -> Array:
        """``x AND y``."""
        return x & y

    def total(self, x: Array, axis: int = 0) -> Array:
        """The XOR along an axis."""
        return np.asarray(np.bitwise_xor.reduce(x, axis=axis))

    def _embedded(self, array: NDArray[np.int64]) -> Array:
        return array.astype(np.uint64)

    @staticmethod
    def packed(bits: Any) -> Array:
        """Bits along the last axis as words, ``(..., n) -> (..., ceil(n / 64))``; the last word is filled up with zeros."""
        array = np.asarray(bits, dtype=bool)
        fill = -array.shape[-1] % 64
        padded = np.concatenate([array, np.zeros((*array.shape[:-1], fill), dtype=bool)], axis=-1) if fill else array
        return np.ascontiguousarray(np.packbits(padded, axis=-1, bitorder="little")).view("<u8").astype(np.uint64)

    @staticmethod
    def unpacked(words: Array, n: int) -> NDArray[np.bool_]:
        """The inverse of `packed`."""
        raw = np.ascontiguousarray(words.astype("<u8")).view(np.uint8)
        return np.unpackbits(raw, axis=-1, count=n, bitorder="little").astype(bool)
