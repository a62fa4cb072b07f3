"""Shared arrays: what a party holds of an array that nobody sees."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .domain import Array, Domain
    from .sharing import Parts

__all__ = ["Computing", "SharedArray", "concatenated"]


class Computing(Protocol):
    """What a shared array and the circuits over it need of their computation; see `atoll.secure.shares.Computation`."""

    @property
    def domain(self) -> Domain:
        """Where the values live."""
        ...

    @property
    def arithmetic(self) -> Domain:
        """Where the parts live."""
        ...

    @property
    def bitwise(self) -> Computing:
        """The computation in which bits are shared."""
        ...

    def constant(self, values: Any) -> SharedArray:
        """Public values as a shared array."""
        ...

    def public_bits(self, bits: Any) -> Array:
        """Public rows of bits as elements."""
        ...

    async def open(self, x: SharedArray) -> Array:
        """Show masked values to every party."""
        ...

    async def reveal(self, x: SharedArray) -> Array:
        """Show a result to every party."""
        ...

    async def mul(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x y``, entry by entry."""
        ...

    async def dot(self, x: SharedArray, y: SharedArray) -> SharedArray:
        """``x @ y``."""
        ...

    async def lifted(self, bit: SharedArray, shape: tuple[int, ...]) -> SharedArray:
        """A row of the bitwise computation as numbers 0 and 1."""
        ...


@dataclass(frozen=True, eq=False)
class SharedArray:
    """A party's share of an array.

    ``+``, ``-`` and public factors act at each party alone. A product of two shared arrays needs messages: ``await mul(x, y)``.
    Public operands are whole numbers, or arrays of them.

    Attributes:
        by: the computation that it belongs to.
        parts: arrays of the same shape.
    """

    by: Computing
    parts: Parts

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        shape: tuple[int, ...] = self.parts[0].shape
        return shape

    @property
    def _ring(self) -> Domain:
        return self.by.arithmetic

    def _each(self, fn: Callable[[Array], Any]) -> SharedArray:
        return SharedArray(self.by, tuple(np.asarray(fn(part)) for part in self.parts))

    def _other(self, other: Any) -> SharedArray:
        if isinstance(other, SharedArray):
            if other.by is not self.by:
                raise ConfigError("shares of two computations", where="SharedArray", remedy="convert one of them first")
            return other
        values = np.broadcast_to(self._ring.of(other), self.shape)
        return self.by.constant(values)

    def __add__(self, other: Any) -> SharedArray:
        theirs = self._other(other).parts
        return SharedArray(self.by, tuple(self._ring.add(a, b) for a, b in zip(self.parts, theirs, strict=True)))

    def __neg__(self) -> SharedArray:
        return self._each(self._ring.neg)

    def __sub__(self, other: Any) -> SharedArray:
        return self + (-self._other(other))

    __radd__ = __add__

    def __rsub__(self, other: Any) -> SharedArray:
        return self._other(other) - self

    def __mul__(self, factor: Any) -> SharedArray:
        if isinstance(factor, SharedArray):
            raise ConfigError("x * y of two shared arrays", where="SharedArray", remedy="write: await mul(x, y)")
        values = self._ring.of(factor)
        return self._each(
            lambda part: self._ring.mul(part, np.broadcast_to(values, np.broadcast_shapes(part.shape, values.shape)))
        )

    __rmul__ = __mul__

    def __getitem__(self, index: Any) -> SharedArray:
        return self._each(lambda part: part[index])

    def __len__(self) -> int:
        return self.shape[0]

    def reshape(self, *shape: int) -> SharedArray:
        """The array in another shape."""
        return self._each(lambda part: part.reshape(*shape))

    @property
    def T(self) -> SharedArray:  # noqa: N802 - as NumPy has it
        """The array transposed."""
        return self._each(lambda part: part.T)

    def sum(self, axis: int = 0) -> SharedArray:
        """The sum along an axis."""
        return self._each(lambda part: self._ring.total(part, axis))


def concatenated(arrays: Sequence[SharedArray]) -> SharedArray:
    """Join shared arrays along their first axis."""
    first = arrays[0]
    rows = zip(*(array.parts for array in arrays), strict=True)
    return SharedArray(first.by, tuple(np.concatenate(row) for row in rows))
