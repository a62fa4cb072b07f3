"""Arrays in messages: read-only views, one NaN, and what NumPy has no dtype for: bfloat16 and packed bits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from atoll.core.errors import MessageError

__all__ = ["BFloat16", "Bits", "one_nan", "read_only"]

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]


def read_only(array: Array) -> Array:
    """Return a view of ``array`` that cannot be written through."""
    view = array.view()
    view.flags.writeable = False
    return view


def one_nan(array: Array) -> Array:
    """Return ``array`` with every NaN (of a complex number: every part) written with the same bits.

    NaN has many bit patterns, and the canonical encoding writes one. The array itself comes back where it holds no NaN.
    """
    if array.dtype.kind not in "fc":
        return array
    missing = np.isnan(array)
    if not missing.any():
        return array
    fixed = np.array(array, order="C")
    parts = fixed.reshape(-1).view(fixed.real.dtype)
    parts[np.isnan(parts)] = np.nan
    return fixed


def _set(holder: object, name: str, value: object) -> None:
    object.__setattr__(holder, name, value)


def _expect(value: object, dtype: str, where: str) -> Array:
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype(dtype):
        found = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else type(value)
        raise MessageError(
            f"expected an array of {dtype}, found {found}",
            where=where,
            remedy=f"convert it first: np.asarray(value).astype(np.{dtype})",
        )
    return value


@dataclass(frozen=True, slots=True, eq=False)
class BFloat16:
    """An array of bfloat16: the upper 16 bits of a float32 (sign, 8 exponent, 7 fraction bits).

    Args:
        bits: the bit patterns, ``uint16``, any shape. Kept as a read-only view, not copied.

    Raises:
        MessageError: ``bits`` is not a uint16 array.
    """

    bits: Array

    def __post_init__(self) -> None:
        _set(self, "bits", read_only(_expect(self.bits, "uint16", "BFloat16")))

    @classmethod
    def from_float32(cls, values: Array) -> BFloat16:
        """Round float32 to the nearest bfloat16, ties to even.

        With ``b`` the float32's bits, the result is ``(b + 0x7FFF + (b >> 16 & 1)) >> 16``: the added
        half unit carries into bit 16 exactly if rounding up is due. Values beyond the largest
        bfloat16 by half a unit become infinite, as IEEE 754 requires; NaN stays NaN, made quiet.

        Args:
            values: float32, any shape.

        Raises:
            MessageError: ``values`` is not float32 (float64 would be rounded twice).
        """
        flat = np.ascontiguousarray(_expect(values, "float32", "BFloat16.from_float32")).reshape(-1)
        word = flat.view(np.uint32)
        carry = (word >> np.uint32(16)) & np.uint32(1)
        carry += np.uint32(0x7FFF)
        carry += word
        carry >>= np.uint32(16)
        nan = np.isnan(flat)
        if nan.any():  # the carry could turn a NaN into an infinity
            carry[nan] = (word[nan] >> np.uint32(16)) | np.uint32(0x0040)
        return cls(carry.astype(np.uint16).reshape(values.shape))

    def to_float32(self) -> Array:
        """Return the values as float32; exact."""
        word = self.bits.reshape(-1).astype(np.uint32)
        word <<= np.uint32(16)
        return word.view(np.float32).reshape(self.bits.shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.bits.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, BFloat16):
            return NotImplemented
        return self.shape == other.shape and bool(np.array_equal(self.bits, other.bits))

    __hash__ = None  # type: ignore[assignment]


@dataclass(frozen=True, slots=True, eq=False)
class Bits:
    """A boolean array with one bit per element.

    Element ``i`` (in C order) is bit ``i % 8``, counted from the lowest, of byte ``i // 8``.

    Args:
        packed: ``uint8``, shape ``(ceil(prod(shape) / 8),)``; bits past the last element are zero.
        shape: shape of the boolean array.

    Raises:
        MessageError: the dtype is wrong, the length does not fit the shape, or bits are set past the last element.
    """

    packed: Array
    shape: tuple[int, ...]

    def __post_init__(self) -> None:
        packed = read_only(_expect(self.packed, "uint8", "Bits"))
        count = math.prod(self.shape)
        if any(size < 0 for size in self.shape) or packed.shape != ((count + 7) // 8,):
            raise MessageError(
                f"{packed.shape} packed bytes for a boolean array of shape {self.shape}",
                where="Bits",
                remedy="pack with Bits.pack(array)",
            )
        if count % 8 and int(packed[-1]) >> (count % 8):
            raise MessageError("bits are set past the last element", where="Bits", remedy="clear them")
        _set(self, "packed", packed)

    @classmethod
    def pack(cls, values: Array) -> Bits:
        """Pack a bool array.

        Raises:
            MessageError: ``values`` is not a bool array.
        """
        flat = _expect(values, "bool", "Bits.pack").reshape(-1)
        return cls(np.packbits(flat, bitorder="little"), values.shape)

    def unpack(self) -> Array:
        """Return the bool array."""
        count = math.prod(self.shape)
        flat = np.unpackbits(self.packed, count=count, bitorder="little")
        return flat.view(np.bool_).reshape(self.shape)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bits):
            return NotImplemented
        return self.shape == other.shape and bool(np.array_equal(self.packed, other.packed))

    __hash__ = None  # type: ignore[assignment]
