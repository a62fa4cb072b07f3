"""Galois rings: words modulo ``2^64`` with as many points as an erasure code needs.

A code whose any ``U`` of ``n`` shares give the message evaluates a polynomial at ``n`` points whose differences have inverses. Modulo ``2^p`` only two numbers are
such points. The ring ``GR(2^64, m) = Z_2^64[x] / h(x)``, for a polynomial ``h`` of degree ``m`` that is irreducible modulo 2, has ``2^m`` of them: the elements whose
coefficients are 0 and 1. An element is ``m`` words, so ``m`` words of a message make one element, and the code adds no byte (Abspoel et al. 2019, section 2).

Everything is linear over the words, so it holds modulo any ``2^p`` as well.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from .shares.domain import Array

__all__ = ["GaloisRing"]


@dataclass(frozen=True)
class GaloisRing:
    """``GR(2^64, m)``; elements are arrays of uint64 whose last axis has the ``m`` coefficients.

    Attributes:
        m: degree, 1 to 16.
    """

    m: int

    def __post_init__(self) -> None:
        if not 1 <= self.m <= 16:
            raise ConfigError(f"m={self.m}", where="GaloisRing", remedy="use a degree of 1 to 16")

    @classmethod
    def with_points(cls, n: int) -> GaloisRing:
        """The smallest ring with ``n`` points that are not 0."""
        return cls(max(1, n.bit_length()))

    @functools.cached_property
    def modulus(self) -> int:
        """``h`` modulo 2, as the bits of a number: the first irreducible one."""
        return next(
            h for h in range((1 << self.m) | 1, 2 << self.m, 2 if self.m > 1 else 1) if _is_irreducible(h, self.m)
        )

    @functools.cached_property
    def _powers(self) -> Array:
        """``x^m ... x^(2m-2)`` as elements, one a row: what a product's high coefficients become."""
        low = np.array([self.modulus >> i & 1 for i in range(self.m)], dtype=np.uint64)
        rows = [np.negative(low)]
        for _ in range(self.m - 2):
            last = rows[-1]
            shifted = np.concatenate([np.zeros(1, dtype=np.uint64), last[:-1]])
            rows.append(shifted + last[-1] * rows[0])
        return np.stack(rows) if self.m > 1 else np.zeros((0, 1), dtype=np.uint64)

    def points(self, n: int) -> Array:
        """``n`` elements, none 0, whose differences have inverses, ``(n, m)``.

        Raises:
            ConfigError: the ring has fewer.
        """
        if n >= 1 << self.m:
            raise ConfigError(f"{n} points", where=f"GaloisRing({self.m})", remedy=f"use m={n.bit_length()}")
        return (np.arange(1, n + 1, dtype=np.uint64)[:, None] >> np.arange(self.m, dtype=np.uint64)) & np.uint64(1)

    def mul(self, a: Array, b: Array) -> Array:
        """The product, entry by entry; leading axes broadcast."""
        m = self.m
        shape = np.broadcast_shapes(a.shape, b.shape)
        wide = np.zeros((*shape[:-1], 2 * m - 1), dtype=np.uint64)
        for i in range(m):
            wide[..., i : i + m] += a[..., i : i + 1] * b
        made = wide[..., :m].copy()
        for i in range(m - 1):
            made += wide[..., m + i : m + i + 1] * self._powers[i]
        return made

    def matrices(self, a: Array) -> Array:
        """For each element the matrix ``M`` with ``M b = a b`` for coefficients ``b``, ``(..., m, m)``."""
        columns = [self.mul(a, np.eye(self.m, dtype=np.uint64)[i]) for i in range(self.m)]
        return np.stack(columns, axis=-1)

    def inverse(self, a: Array) -> Array:
        """The inverse of elements that are not 0 modulo 2: of the residue field by Fermat, then lifted by Newton's ``b (2 - ab)``.

        Raises:
            ConfigError: an element has none.
        """
        residue = a & np.uint64(1)
        if not residue.any(axis=-1).all():
            raise ConfigError("an element that is 0 modulo 2 has no inverse", where="GaloisRing")
        made, square = self.one(residue.shape[:-1]), residue
        for _ in range(1, self.m):  # a^(2^m - 2) = a^2 a^4 ... a^(2^(m-1))
            square = self.mul(square, square) & np.uint64(1)
            made = self.mul(made, square) & np.uint64(1)
        if self.m == 1:
            made = residue
        two = self.one(residue.shape[:-1]) * np.uint64(2)
        for _ in range(6):  # right modulo 2, 4, 16, ... 2^64
            made = self.mul(made, two - self.mul(a, made))
        return made

    def one(self, shape: tuple[int, ...]) -> Array:
        """The element 1 in an array of a shape."""
        made = np.zeros((*shape, self.m), dtype=np.uint64)
        made[..., 0] = 1
        return made

    def vandermonde(self, points: Array, count: int) -> Array:
        """Powers ``0 ... count - 1`` of points, as one matrix over words, ``(points m, count m)``."""
        power, rows = self.one((len(points),)), list[Any]()
        for _ in range(count):
            rows.append(self.matrices(power))
            power = self.mul(power, points)
        return np.concatenate(
            np.moveaxis(np.stack(rows), 0, 2).reshape(len(points), self.m, -1, self.m).reshape(len(points), self.m, -1),
            axis=0,
        )

    def interpolation(self, points: Array) -> Array:
        """The inverse of the square `vandermonde` of points: from values to coefficients, as one matrix over words, ``(k m, k m)``.

        Coefficients of the Lagrange basis: ``prod (x - p_i)`` divided by ``x - p_j`` (Horner), over ``prod (p_j - p_i)``.
        """
        k = len(points)
        master = self.one((1,))  # highest coefficient first
        for p in points:
            master = np.concatenate([master, np.zeros((1, self.m), dtype=np.uint64)]) - np.concatenate(
                [np.zeros((1, self.m), dtype=np.uint64), self.mul(master, p)]
            )
        rows = [self.one((k,))]
        for i in range(1, k):
            rows.append(master[i] + self.mul(rows[-1], points))
        value = self.one((k,))
        for i in range(k):
            apart = points - points[i]
            apart[i] = self.one(())
            value = self.mul(value, apart)
        scaled = [self.mul(row, self.inverse(value)) for row in rows[::-1]]  # coefficient 0 first, one column a point
        return np.concatenate([np.concatenate(list(self.matrices(row)), axis=1) for row in scaled], axis=0)


def _is_irreducible(h: int, m: int) -> bool:
    """Whether a polynomial over F_2 of degree ``m`` has no factor of degree ``m / 2`` or less."""
    return all(_remainder(h, f) for f in range(2, 1 << (m // 2 + 1)))


def _remainder(a: int, b: int) -> int:
    while a.bit_length() >= b.bit_length():
        a ^= b << (a.bit_length() - b.bit_length())
    return a
