"""Arrays of variable-length text and bytes, stored as offsets into one buffer (as in Arrow)."""

from __future__ import annotations

import codecs
import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message.arrays import Array, _expect, _set, read_only

__all__ = ["BytesArray", "StringArray"]

_BLOCK = 1 << 18


@dataclass(frozen=True, slots=True, eq=False, init=False)
class BytesArray:
    """An array of byte strings of any lengths.

    Args:
        offsets: ``int64``, shape ``(n + 1,)``, from 0, never decreasing, to ``len(data)``, where ``n`` is
            ``prod(shape)``: element ``i`` in C order is ``data[offsets[i]:offsets[i + 1]]``.
        data: ``uint8``, shape ``(bytes,)``.
        shape: shape of the array; by default ``(n,)``.

    Raises:
        MessageError: the offsets do not fit the data or the shape.
    """

    offsets: Array
    data: Array
    shape: tuple[int, ...]

    def __init__(self, offsets: Array, data: Array, shape: tuple[int, ...] | None = None) -> None:
        offsets = _expect(offsets, "int64", type(self).__name__)
        _set(self, "offsets", read_only(offsets))
        _set(self, "data", read_only(_expect(data, "uint8", type(self).__name__)))
        _set(self, "shape", (offsets.size - 1,) if shape is None else tuple(shape))
        self._check()

    def _check(self) -> None:
        offsets, data = self.offsets, self.data
        count = math.prod(self.shape)
        fits = data.ndim == 1 and offsets.shape == (count + 1,) and min(self.shape, default=0) >= 0
        if not fits or offsets[0] != 0 or offsets[-1] != data.size:
            self._refuse(f"offsets do not fit shape {self.shape} and {data.size} bytes of data")
        for start in range(0, count, _BLOCK):
            part = offsets[start : start + _BLOCK + 1]
            if bool((part[1:] < part[:-1]).any()):
                self._refuse("offsets fall")

    def _refuse(self, what: str) -> None:
        raise MessageError(what, where=type(self).__name__, remedy=f"build it with {type(self).__name__}.from_values")

    @classmethod
    def from_values(cls, values: Iterable[Any], shape: tuple[int, ...] | None = None) -> Self:
        """Build the array from Python values in C order.

        Args:
            values: ``bytes`` (for StringArray: ``str``).
            shape: shape of the array; by default one-dimensional.

        Raises:
            MessageError: a value is of another type, or text is not Unicode.
        """
        parts = [cls._raw(value, place) for place, value in enumerate(values)]
        offsets = np.zeros(len(parts) + 1, np.int64)
        np.cumsum([len(part) for part in parts], out=offsets[1:])
        return cls(offsets, np.frombuffer(b"".join(parts), np.uint8), shape)

    @classmethod
    def _raw(cls, value: object, place: int) -> bytes:
        if not isinstance(value, bytes):
            raise _wrong_value(cls.__name__, value, place, "bytes")
        return value

    def __len__(self) -> int:
        return self.offsets.size - 1

    def __getitem__(self, index: int) -> Any:
        """Return the element at a position in C order."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} in {type(self).__name__} of {len(self)}")
        at = index % len(self)
        return self._value(self.data[self.offsets[at] : self.offsets[at + 1]].tobytes())

    @staticmethod
    def _value(raw: bytes) -> Any:
        return raw

    def tolist(self) -> list[Any]:
        """Return the elements in C order."""
        raw, cuts = self.data.tobytes(), self.offsets.tolist()
        return [self._value(raw[a:b]) for a, b in pairwise(cuts)]

    def to_numpy(self) -> Array:
        """Return an object array of the elements, in shape (such an array cannot be sent)."""
        flat = np.empty(len(self), dtype=object)
        flat[:] = self.tolist()
        return flat.reshape(self.shape)

    def lengths(self) -> Array:
        """Return the number of bytes of each element: int64, shape ``(n,)``."""
        return np.diff(self.offsets)

    def blanked(self, mask: Array) -> Self:
        """Return the array with the elements under ``mask`` (bool, same shape) made empty."""
        flat = mask.reshape(-1)
        lengths = self.lengths()
        kept = np.repeat(~flat, lengths)
        offsets = np.zeros_like(self.offsets)
        np.cumsum(np.where(flat, 0, lengths), out=offsets[1:])
        return type(self)(offsets, self.data[kept], self.shape)

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        same = self.shape == other.shape and np.array_equal(self.offsets, other.offsets)
        return bool(same and np.array_equal(self.data, other.data))

    __hash__ = None  # type: ignore[assignment]


class StringArray(BytesArray):
    """An array of texts of any lengths, in UTF-8.

    Arguments and errors are those of BytesArray; the data must be UTF-8 and no offset may fall inside
    a character.
    """

    __slots__ = ()

    def _check(self) -> None:
        super()._check()
        decoder = codecs.getincrementaldecoder("utf-8")()
        size = self.data.size
        try:
            for start in range(0, size, _BLOCK):
                decoder.decode(self.data[start : start + _BLOCK].tobytes())
            decoder.decode(b"", final=True)
        except UnicodeDecodeError as error:
            self._refuse(f"the data is not UTF-8: {error.reason}")
        for start in range(0, self.offsets.size if size else 0, _BLOCK):
            cuts = self.offsets[start : start + _BLOCK]
            first = self.data[cuts[cuts < size]]
            if bool((first & 0xC0 == 0x80).any()):  # 10xxxxxx: not the first byte of a character
                self._refuse("an offset falls inside a character")

    @classmethod
    def _raw(cls, value: object, place: int) -> bytes:
        if not isinstance(value, str):
            raise _wrong_value(cls.__name__, value, place, "str")
        try:
            return value.encode()
        except UnicodeEncodeError as error:
            raise MessageError(
                f"the text at position {place} is not Unicode: {error.reason}",
                where=cls.__name__,
                remedy="send it as bytes: BytesArray.from_values",
            ) from None

    @staticmethod
    def _value(raw: bytes) -> Any:
        return raw.decode()


def _wrong_value(name: str, value: object, place: int, wanted: str) -> MessageError:
    nullable = "Masked.from_values(...) keeps None" if value is None else f"convert it to {wanted}"
    return MessageError(
        f"{type(value).__name__} at position {place}, {wanted} expected",
        where=f"{name}.from_values",
        remedy=nullable,
    )
