"""The leaves of messages that NumPy has no type for: bfloat16, packed bits, texts of any length, values with nulls; and what a leaf is written as."""

from __future__ import annotations

import codecs
import datetime as dt
import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, Final, Self, TypeAlias

import numpy as np

from ..errors import MessageError
from .wire import dtype_form, fault
from .words import Words

__all__ = [
    "BFloat16",
    "Bits",
    "BytesArray",
    "EXACT",
    "Masked",
    "NUMPY_SCALARS",
    "StringArray",
    "find_exact",
    "offset_of",
    "one_nan",
    "read_only",
]


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


# ---------------------------------------------------------------------- texts and bytes of any length


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


# ---------------------------------------------------------------------- values with nulls


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
        _set(self, "values", blank_values(self.values, mask))

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


def blank_values(values: Values, mask: Array) -> Values:
    """Return ``values`` with zeros (or empty elements) under ``mask``, copied if that changes anything."""
    if not leaks(values, mask):
        return read_only(values) if isinstance(values, np.ndarray) else values
    if isinstance(values, BytesArray):
        return values.blanked(mask)
    array = np.array(values.bits if isinstance(values, BFloat16) else values)
    array[mask] = np.zeros((), array.dtype)
    return BFloat16(array) if isinstance(values, BFloat16) else read_only(array)


# ---------------------------------------------------------------------- which leaves there are


NUMPY_SCALARS: Final[frozenset[type]] = frozenset(
    np.dtype(name).type
    for name in ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", "M8", "m8"]
)
EXACT: Final[frozenset[type]] = NUMPY_SCALARS | {
    type(None), bool, int, float, complex, str, bytes, list, tuple, dict, np.ndarray,
    dt.datetime, dt.date, dt.timedelta, BFloat16, Bits, Words, Masked, StringArray, BytesArray,
}  # fmt: skip

_REMEDIES: dict[type, str] = {
    set: "send a sorted list",
    frozenset: "send a sorted list",
    bytearray: "send bytes(value)",
    memoryview: "send bytes(value), or np.frombuffer(value, np.uint8)",
    range: "send list(value), or np.arange",
    dt.time: "send value.isoformat()",
}
_DEFAULT_REMEDY = "send numbers, text, bytes, dates, NumPy arrays, and lists, tuples and dicts of them"


def find_exact(value: object) -> Any:
    """Return ``value`` as one of the EXACT types.

    Subclasses of dict become dict (``OrderedDict``: a model's state), of ndarray (``memmap``) plain
    arrays, NumPy's own text scalars str and bytes, PyTorch tensors on the CPU NumPy arrays that share
    their memory. All other types that would come back as another type are refused.

    Raises:
        MessageError: the type cannot be sent.
    """
    kind = type(value)
    if kind in EXACT:
        return value
    if isinstance(value, dict):
        return dict(value)
    if isinstance(value, np.ndarray):
        if isinstance(
            value, np.ma.MaskedArray
        ):  # not looked up before, since the look-up makes NumPy load masked arrays
            raise _make_refusal(kind, "send Masked(array.filled(0), np.ma.getmaskarray(array))")
        return np.asarray(value)
    if isinstance(value, np.generic):
        return _numpy_scalar(value)
    if kind.__module__.partition(".")[0] == "torch" and hasattr(value, "numpy"):
        return _from_torch(value)
    raise _make_refusal(kind, _remedy(value))


def _numpy_scalar(value: np.generic) -> Any:
    if isinstance(value, np.str_ | np.bytes_):
        return value.item()
    if isinstance(value, np.void | np.object_):
        raise _make_refusal(type(value), "send value.item()")
    # np.longlong and similar: another name for a known type.
    return np.asarray(value).astype(dtype_form(value.dtype).little)[()]


def _remedy(value: object) -> str:
    for kind, remedy in _REMEDIES.items():
        if isinstance(value, kind):
            return remedy
    if isinstance(value, Enum):
        return "send value.value"
    if isinstance(value, tuple):
        return "send value._asdict() or tuple(value)"
    if hasattr(value, "__dataclass_fields__"):
        return "send dataclasses.asdict(value)"
    if callable(value):
        return "send the name of the function and its arguments"
    return _DEFAULT_REMEDY


def _make_refusal(kind: type, remedy: str) -> MessageError:
    return fault(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be sent", remedy)


def _from_torch(tensor: Any) -> Any:
    device = getattr(getattr(tensor, "device", None), "type", "cpu")
    if device != "cpu":
        raise fault(f"a tensor on device {device} cannot be sent", "send tensor.cpu()")
    try:
        if hasattr(tensor, "detach"):
            tensor = tensor.detach().resolve_conj().resolve_neg()
        if str(getattr(tensor, "dtype", "")) == "torch.bfloat16":
            # The tensor exists, so its module is loaded; this never imports it.
            int16 = sys.modules["torch"].int16
            return BFloat16(np.asarray(tensor.contiguous().view(int16).numpy()).view(np.uint16))
        return np.asarray(tensor.numpy())
    except (TypeError, RuntimeError, ValueError) as error:
        raise fault(
            f"NumPy cannot represent this tensor: {error}",
            "make it dense, of a NumPy dtype: tensor.to_dense().float()",
        ) from None


def offset_of(value: dt.datetime) -> dt.timedelta | None:
    """Return the offset from UTC of a datetime, None without a zone.

    Raises:
        MessageError: the zone object fails.
    """
    try:
        return value.utcoffset()
    except Exception as error:
        raise fault(
            f"the time zone of a datetime fails: {type(error).__name__}: {error}",
            "send value.astimezone(datetime.timezone.utc)",
        ) from None
