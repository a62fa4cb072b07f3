"""Domains: the finite rings in which shares live, on whole arrays.

| domain | elements | used for |
| --- | --- | --- |
| `WordRing` | ``Z_2^k``, as uint64 | integers and fixed point: sums wrap, truncation and comparison are cheap |
| `Field` | ``F_p``, as uint64 | Shamir's scheme, equality tests by inversion, authenticated shares |
| `Binary` | bits, 64 a word | comparisons: addition is XOR, multiplication AND |

A negative number ``-x`` is the element ``2^k - x`` or ``p - x``: `of` and `signed` convert.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from atoll.core.errors import ConfigError, DataError

from ..keystream import Keystream, derived

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Array", "Binary", "Domain", "Field", "MERSENNE", "SeededWords", "WordRing", "WordSource", "limbs"]


# ------------------------------------------------------------------ domains: the finite rings in which shares live, on whole arrays


Array = np.ndarray[Any, np.dtype[np.uint64]]


class WordSource(Protocol):
    """Where uniform words come from: a party's secret, or a stream that two parties draw alike."""

    def uint64(self, shape: int | tuple[int, ...]) -> Array:
        """Uniform 64-bit words."""
        ...


class SeededWords:
    """Words that follow from a seed and a use: whoever has the seed draws the same.

    Args:
        seed: 32 bytes.
        use: names the use, so that two uses never share a stream.
    """

    def __init__(self, seed: bytes, use: str) -> None:
        self._words = Keystream(derived(seed, use))

    def uint64(self, shape: int | tuple[int, ...]) -> Array:
        """The next words."""
        return self._words(int(np.prod(shape, dtype=int))).reshape(shape)


@dataclass(frozen=True)
class Domain:
    """Base class: a finite commutative ring with one element, on arrays of uint64."""

    name: ClassVar[str] = ""

    @property
    def order(self) -> int:
        """Number of elements."""
        raise NotImplementedError

    @property
    def bits(self) -> int:
        """Bits of an element."""
        return (self.order - 1).bit_length()

    @property
    def two_is_zero(self) -> bool:
        """Whether ``x + x = 0``, so that addition of bits is XOR."""
        return False

    def random(self, secret: WordSource, shape: tuple[int, ...]) -> Array:
        """Uniform elements."""
        raise NotImplementedError

    def add(self, x: Array, y: Array) -> Array:
        """``x + y``."""
        raise NotImplementedError

    def neg(self, x: Array) -> Array:
        """``-x``."""
        raise NotImplementedError

    def sub(self, x: Array, y: Array) -> Array:
        """``x - y``."""
        return self.add(x, self.neg(y))

    def mul(self, x: Array, y: Array) -> Array:
        """``x y``, entry by entry."""
        raise NotImplementedError

    def dot(self, x: Array, y: Array) -> Array:
        """The matrix product ``x @ y``."""
        raise NotImplementedError

    def total(self, x: Array, axis: int = 0) -> Array:
        """The sum along an axis."""
        rows = np.moveaxis(x, axis, 0)
        made = np.zeros(rows.shape[1:], dtype=np.uint64)
        for row in rows:
            made = self.add(made, row)
        return made

    def are_elements(self, found: Any, shape: tuple[int, ...], *, packed: bool = False) -> bool:
        """Whether what another party sent is an array of elements.

        Args:
            found: what it sent.
            shape: of the array.
            packed: whether elements may have travelled in narrower words.
        """
        fits = isinstance(found, np.ndarray) and found.shape == shape
        fits = fits and (found.dtype.kind == "u" if packed else found.dtype == np.uint64)
        return fits and int(found.max(initial=0)) < self.order

    def narrow(self, row: Array) -> NDArray[Any]:
        """Elements as they travel: in 4 bytes where they fit."""
        return row.astype(np.uint32) if self.bits <= 32 else row

    def of(self, numbers: Any) -> Array:
        """Whole numbers, negative ones too, as elements.

        Raises:
            DataError: they are not whole numbers, or do not fit.
        """
        array = np.asarray(numbers)
        if array.dtype.kind == "b":
            return array.astype(np.uint64)
        if array.dtype.kind == "u":
            array = array.astype(np.uint64)
            if array.size and int(array.max()) >= self.order:
                raise self._unfit(int(array.max()))
            return array
        if array.dtype.kind != "i":
            raise DataError(
                f"values of type {array.dtype}",
                where=self.title,
                remedy="share whole numbers; encode others in fixed point",
            )
        array = array.astype(np.int64)
        # The numbers that come back: -order/2 is one, +order/2 is not.
        most, least = (int(array.max()), int(array.min())) if array.size else (0, 0)
        if most > (self.order - 1) // 2 or -least > self.order // 2:
            raise self._unfit(max(most, -least))
        return self._embedded(array)

    def _unfit(self, value: int) -> DataError:
        remedy = f"use numbers below {self.order // 2} in size, or a larger domain"
        return DataError(f"a number of size {value}", where=self.title, remedy=remedy)

    def _embedded(self, array: NDArray[np.int64]) -> Array:
        raise NotImplementedError

    def signed(self, x: Array) -> NDArray[np.int64]:
        """Elements as numbers in ``[-order/2, order/2)``."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The domain in messages."""
        return repr(self)

    def spec(self) -> dict[str, Any]:
        """The domain as plain values, for arguments of tasks."""
        return {"domain": self.name}


_MAGIC = 2.0**52
"""A number from 0, below ``2^52``, is the mantissa of its sum with this one: faster than a conversion."""
_MANTISSA = np.uint64(2**52 - 1)
_ENTRIES = 1 << 16
"""Entries of a product of matrices: they stay in the processor's cache."""


def limbs(x: Array, bits: int, count: int) -> NDArray[np.float64]:
    """Pieces of ``bits`` bits, lowest first, in floating point, ``(count, *shape of x)``: products of small ones are exact there."""
    made = np.empty((count, *x.shape), dtype=np.uint64)
    low, magic = np.uint64((1 << bits) - 1), np.float64(_MAGIC).view(np.uint64)
    for i, piece in enumerate(made):
        np.right_shift(x, np.uint64(bits * i), out=piece)
    np.bitwise_or(np.bitwise_and(made, low, out=made), magic, out=made)
    found = made.view(np.float64)
    return np.subtract(found, _MAGIC, out=found)


# ------------------------------------------------------------------ bits, 64 in a word


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


# ------------------------------------------------------------------ whole numbers modulo a prime


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
        """The matrix product modulo ``p``, in floating point: from 16-bit limbs, or for ``2^61 - 1`` from 21-bit ones.

        For ``y = sum_k 2^(bits k) y_k`` of limbs ``y_k``, ``x y = sum_k (2^(bits k) x) y_k``. So the limbs of the residues ``2^(bits k) x`` side by side are one matrix, whose product with the ``y_k`` one above the
        other has a row for each limb of the result. Sums are so short that each is a whole number below ``2^52``, hence exact in any order. The smaller of the two matrices is taken for ``x``.
        """
        rows, columns = x.reshape(-1, x.shape[-1]), y.reshape(len(y), -1)
        turned = rows.size > columns.size
        made = self._product(columns.T, rows.T).T if turned else self._product(rows, columns)
        return np.ascontiguousarray(made).reshape(*x.shape[:-1], *y.shape[1:])

    def _product(self, few: Array, many: Array) -> Array:
        bits = 21 if self.prime == MERSENNE else 16
        count = -(-self.bits // bits)
        block = 256 if self.prime == MERSENNE else 1 << 14  # 3 2^42 2^8 < 2^52, and 2 2^32 2^14 < 2^52
        made = np.zeros((len(few), many.shape[1]), dtype=np.uint64)
        for begin in range(0, few.shape[1], block):
            inner = slice(begin, begin + block)
            shifted = [few[:, inner]]
            while len(shifted) < count:
                shifted.append(self.times(shifted[-1], 1 << bits))
            left = np.concatenate([np.concatenate(row, axis=1) for row in zip(*(limbs(one, bits, count) for one in shifted), strict=True)])  # fmt: skip
            width = max(64, _ENTRIES // max(left.shape))
            for start in range(0, many.shape[1], width):
                columns = slice(start, start + width)
                right = limbs(many[inner, columns], bits, count).reshape(-1, min(width, many.shape[1] - start))
                total = self._placed(left @ right, len(few))
                made[:, columns] = self.add(made[:, columns], total) if begin else total
        return made

    def _placed(self, sums: NDArray[np.float64], rows: int) -> Array:
        """``sum 2^(bits i) sums_i`` modulo ``p``, of whole numbers from 0, below ``2^52``; each ``sums_i`` has so many rows."""
        np.add(sums, _MAGIC, out=sums)
        whole = np.bitwise_and(sums.view(np.uint64), _MANTISSA)
        parts = [whole[begin : begin + rows] for begin in range(0, len(whole), rows)]
        if self.prime != MERSENNE:
            high = self._cut(parts[1]) << np.uint64(16) if len(parts) > 1 else np.uint64(0)
            return self._cut(np.add(parts[0], high))
        total = parts[0]  # 2^61 = 1: what is shifted out comes in again at the other end; all together are below 2^63
        for part, shift in zip(parts[1:], (21, 42), strict=True):
            left = 61 - shift
            total = total + (part >> np.uint64(left)) + ((part & np.uint64((1 << left) - 1)) << np.uint64(shift))
        return self._cut(total)

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


# ------------------------------------------------------------------ whole numbers modulo a power of two


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

    @functools.cached_property
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
