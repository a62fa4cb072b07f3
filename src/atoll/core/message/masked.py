"""Arrays with missing values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message.arrays import Array, BFloat16, _expect, _set, read_only
from atoll.core.message.texts import BytesArray, StringArray

__all__ = ["Masked"]

Values: TypeAlias = Array | BFloat16 | BytesArray | StringArray


@dataclass(frozen=True, slots=True, eq=False)
class Masked:
    """Values and a null mask.

    Values in null slots must not leak: this class sets null slots to zero (or
    makes them empty), on a copy if that changes anything, and a received message with nonzero null slots
    is refused.

    Args:
        values: a NumPy array, StringArray, BytesArray or BFloat16.
        mask: bool, shape of ``values``; True where the value is missing (as in ``numpy.ma``, the
            opposite of Arrow's validity bitmap).

    Raises:
        MessageError: the values cannot be masked, or the mask has another dtype or shape.
    """

    values: Values
    mask: Array

    def __post_init__(self) -> None:
        if not isinstance(self.values, np.ndarray | BFloat16 | BytesArray):
            raise MessageError(
                f"{type(self.values).__name__} cannot have a null mask",
                where="Masked",
                remedy="give a NumPy array, StringArray, BytesArray or BFloat16",
            )
        mask = read_only(_expect(self.mask, "bool", "Masked"))
        if mask.shape != self.values.shape:
            raise MessageError(
                f"a mask of shape {mask.shape} for values of shape {self.values.shape}",
                where="Masked",
                remedy="give one mask element for each value",
            )
        _set(self, "mask", mask)
        _set(self, "values", blanked(self.values, mask))

    @classmethod
    def from_values(cls, values: Iterable[str | None] | Iterable[bytes | None]) -> Masked:
        """Build a one-dimensional StringArray or BytesArray in which None is a null.

        Without any text or bytes it is a StringArray.
        """
        items = list(values)
        is_bytes = isinstance(next((item for item in items if item is not None), None), bytes)
        kind, empty = (BytesArray, b"") if is_bytes else (StringArray, "")
        mask = np.array([item is None for item in items], np.bool_)
        return cls(kind.from_values(empty if item is None else item for item in items), mask)

    def tolist(self) -> list[object]:
        """Return the elements in C order as Python values, None for nulls."""
        values = self.values
        if isinstance(values, BFloat16):
            values = values.to_float32()
        flat = values.tolist() if isinstance(values, BytesArray) else values.reshape(-1).tolist()
        missing = self.mask.reshape(-1).tolist()
        return [None if null else item for item, null in zip(flat, missing, strict=True)]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of values and mask."""
        return tuple(self.mask.shape)


def leaks(values: Values, mask: Array) -> bool:
    """Return whether a slot under ``mask`` has nonzero bytes (or a nonempty element)."""
    if isinstance(values, BytesArray):
        return bool(values.lengths()[mask.reshape(-1)].any())
    array = values.bits if isinstance(values, BFloat16) else values
    if array.dtype.hasobject or array.dtype.itemsize == 0:
        return False  # sending refuses such an array, and names its path
    return bool(np.ascontiguousarray(array[mask]).reshape(-1).view(np.uint8).any())


def blanked(values: Values, mask: Array) -> Values:
    """Return ``values`` with zeros (or empty elements) under ``mask``, copied if that changes anything."""
    if not leaks(values, mask):
        return read_only(values) if isinstance(values, np.ndarray) else values
    if isinstance(values, BytesArray):
        return values.blanked(mask)
    array = np.array(values.bits if isinstance(values, BFloat16) else values)
    array[mask] = np.zeros((), array.dtype)
    return BFloat16(array) if isinstance(values, BFloat16) else read_only(array)
