"""Domains: the finite rings in which shares live, on whole arrays.

| domain | elements | used for |
| --- | --- | --- |
| `WordRing` | ``Z_2^k``, as uint64 | integers and fixed point: sums wrap, truncation and comparison are cheap |
| `Field` | ``F_p``, as uint64 | Shamir's scheme, equality tests by inversion, authenticated shares |
| `Binary` | bits, 64 a word | comparisons: addition is XOR, multiplication AND |

A negative number ``-x`` is the element ``2^k - x`` or ``p - x``: `of` and `signed` convert.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from atoll.core.errors import DataError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Array", "Domain", "WordSource", "limbs"]

Array = np.ndarray[Any, np.dtype[np.uint64]]


class WordSource(Protocol):
    """Where uniform words come from: a party's secret, or a stream that two parties draw alike."""

    def uint64(self, shape: int | tuple[int, ...]) -> Array:
        """Uniform 64-bit words."""
        ...


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


def limbs(x: Array, bits: int, count: int) -> list[NDArray[np.float64]]:
    """Pieces of ``bits`` bits, lowest first, in floating point: products of small ones are exact there."""
    low = np.uint64((1 << bits) - 1)
    return [((x >> np.uint64(bits * i)) & low).astype(np.float64) for i in range(count)]
