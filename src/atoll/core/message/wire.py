"""The binary form: constants and layout.

```
prologue   24 B   magic b"ATOL" | version u16 | reserved u16 = 0 | header bytes u64 | body bytes u64
header            the tree in depth-first order: one tag byte a node, then its fields
padding           zeros up to a multiple of 64 (only where there is a body)
body              the buffers in header order, each padded with zeros to a multiple of 64
```

All numbers are little-endian and of fixed width. The header is a binary schema, not JSON: its size
is a sum of constants (so `nbytes` is arithmetic), floats keep their bits, integers have no bound except
the limit, and there are no escapes, number forms or duplicate fields that readers could interpret differently.

Buffers have **no offsets on the wire**. Each begins where the previous one ended, and its length
follows from dtype and shape, so overlapping, misaligned or out-of-range buffers cannot be
expressed; only the sum of the lengths must be checked against the declared body. Each tree has
exactly one encoding (except for dict order): the reader requires minimal integers, zero padding and zeros
in null slots.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, fields
from enum import IntEnum
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError, MessageError

__all__ = [
    "ALIGN",
    "DEFAULT_LIMITS",
    "DtypeForm",
    "Fields",
    "INLINE",
    "Limits",
    "MAGIC",
    "MAX_NDIM",
    "PROLOGUE",
    "ROOT",
    "Tag",
    "VERSION",
    "align_size",
    "dtype_form",
    "dtype_from_form",
    "enter",
    "fault",
    "finish",
    "label",
    "refuse_bad_text",
    "shown_key",
]


MAGIC = b"ATOL"
VERSION = 1
PROLOGUE = struct.Struct("<4sHHQQ")
ALIGN = 64
"""Buffers begin at multiples of this many bytes from the start of the message: a cache line."""
INLINE = 256
"""``str`` and ``bytes`` leaves up to this many bytes are in the header, longer ones in the body."""
MAX_NDIM = 32
"""Maximum number of dimensions of an array (the bound of NumPy 1.26; NumPy 2 has 64)."""


class Fields:
    """The fixed-width fields of the header; those with a leading B begin with the tag."""

    u32 = struct.Struct("<I")
    u64 = struct.Struct("<Q")
    counted = struct.Struct("<BI")
    long = struct.Struct("<BQ")
    real = struct.Struct("<Bd")
    complex = struct.Struct("<Bdd")
    naive = struct.Struct("<BQB")
    aware = struct.Struct("<BQq")
    delta = struct.Struct("<Biii")


class Tag(IntEnum):
    """The first byte of a node in the header."""

    NONE = 0
    FALSE = 1
    TRUE = 2
    INT = 3
    FLOAT = 4
    COMPLEX = 5
    TEXT = 6
    BYTES = 7
    LONG_TEXT = 8
    LONG_BYTES = 9
    DATE = 10
    NAIVE_DATETIME = 11
    AWARE_DATETIME = 12
    TIMEDELTA = 13
    NUMPY_SCALAR = 14
    ARRAY = 15
    STRING_ARRAY = 16
    BYTES_ARRAY = 17
    BFLOAT16 = 18
    BITS = 19
    MASKED = 20
    LIST = 21
    TUPLE = 22
    DICT = 23
    WORDS = 24


def align_size(size: int) -> int:
    """Return ``size`` rounded up to a multiple of 64."""
    return (size + 63) & -64


# ---------------------------------------------------------------------- limits


# The tree is walked by recursion, with two frames per level; Python's own limit is 1000 frames.
_DEEPEST = 200


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on one message, checked before anything of that size is allocated.

    Decoding allocates at most ``max_bytes`` for the message itself. Array leaves are views of it.
    In addition there are the Python objects of the tree (some 300 bytes for each of ``max_leaves``), the
    ``str`` leaves (up to 4 bytes for a byte on the wire, in total at most ``4 * max_text_bytes``),
    the ``bytes`` leaves (a copy each) and unpacked null masks (at most one byte for an element).

    Attributes:
        max_bytes: size of the whole message in bytes.
        max_header_bytes: size of its header in bytes: the tree without its buffers.
        max_depth: depth of nested containers; at most 200.
        max_leaves: leaves of the tree; each list, tuple or dict counts too.
        max_int_bits: bits of one ``int``.
        max_key_bytes: bytes of one dict key in UTF-8.
        max_text_bytes: bytes of all ``str`` leaves together in UTF-8 (this does not limit text arrays:
            they are checked in place and stay bytes).

    Raises:
        ConfigError: a limit is not a positive integer, or ``max_depth`` is above 200.
    """

    max_bytes: int = 16 << 30
    max_header_bytes: int = 64 << 20
    max_depth: int = 64
    max_leaves: int = 1_000_000
    max_int_bits: int = 1 << 16
    max_key_bytes: int = 1 << 12
    max_text_bytes: int = 256 << 20

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ConfigError(
                    f"{field.name} is {value!r}",
                    where="Limits",
                    remedy="give a positive integer",
                )
        if self.max_depth > _DEEPEST:
            raise ConfigError(
                f"max_depth is {self.max_depth}, above {_DEEPEST}",
                where="Limits",
                remedy="flatten the tree: trees are walked by recursion",
            )


DEFAULT_LIMITS = Limits()
"""16 GiB a message, a 64 MiB header, depth 64, a million leaves."""


# ---------------------------------------------------------------------- faults


ROOT = "the root of the message"
_LONGEST_STEP = 60


def fault(what: str, remedy: str) -> MessageError:
    """Return a MessageError; the containers around it fill in its place (`enter`)."""
    return MessageError(what, where="", remedy=remedy)


def label(key: str) -> str:
    """Return a dict key as one step of a path, without control characters and of bounded length."""
    step = key if key.isprintable() and key else ascii(key)
    return step if len(step) <= _LONGEST_STEP else step[:_LONGEST_STEP] + "…"


def shown_key(key: object) -> str:
    """Return a dict key, which may have a wrong type, for a path."""
    if isinstance(key, str):
        return key
    if isinstance(key, int) and key.bit_length() > 64:  # Python refuses to print very large ones
        return "a large int"
    plain = key is None or isinstance(key, int | float | bytes | tuple)
    return repr(key) if plain else f"a {type(key).__name__}"


def enter(error: MessageError, step: str | int) -> None:
    """Prefix the place of ``error`` with one step: a dict key, or a position in a list or tuple."""
    head = f"[{step}]" if isinstance(step, int) else label(step)
    rest = error.where or ""
    error.where = head + (rest if not rest or rest.startswith("[") else "/" + rest)


def finish(error: MessageError) -> MessageError:
    """Name the root if no container added a place."""
    error.where = error.where or ROOT
    return error


# ---------------------------------------------------------------------- types of numbers


_PLAIN = ("|b1", "|i1", "<i2", "<i4", "<i8", "|u1", "<u2", "<u4", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16")  # fmt: skip
_CODES = {text: code for code, text in enumerate(_PLAIN, start=1)}
_DTYPES: dict[int, np.dtype[Any]] = {code: np.dtype(text) for text, code in _CODES.items()}
_TIMES = {"M": 32, "m": 33}
_TEXTS = {"S": 34, "U": 35}
_UNITS = ("generic", "Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as")
_TIME_FIELDS = struct.Struct("<BI")
_TEXT_FIELD = struct.Struct("<I")
_LARGEST = 2**31 - 1

_REMEDIES = {
    "O": "use a numeric dtype, or StringArray.from_values(...) for text (Masked.from_values(...) where some are None)",
    "V": "send a dict with one array for each field",
    "T": "use StringArray.from_values(array.ravel().tolist())",
    "f": "long doubles differ between machines: use array.astype(np.float64)",
    "c": "long doubles differ between machines: use array.astype(np.complex128)",
}


class DtypeForm(NamedTuple):
    """A dtype as the header has it.

    Attributes:
        wire: its bytes: a code, then unit and multiplier of a time or the width of a text.
        little: the dtype itself, little-endian and without metadata.
        is_text: whether it is fixed-width Unicode, whose code points are checked.
    """

    wire: bytes
    little: np.dtype[Any]
    is_text: bool


@lru_cache(maxsize=1024)
def dtype_form(dtype: np.dtype[Any]) -> DtypeForm:
    """Return the wire form of ``dtype``.

    Raises:
        MessageError: messages cannot carry the dtype (object, structured, long double, zero width).
    """
    kind = dtype.kind
    if kind in "biufc" and (text := _plain_text(dtype)) in _CODES:
        code = _CODES[text]
        return DtypeForm(bytes((code,)), _DTYPES[code], is_text=False)
    if kind in _TIMES:
        unit, multiple = np.datetime_data(dtype)
        wire = bytes((_TIMES[kind],)) + _TIME_FIELDS.pack(_UNITS.index(unit), multiple)
        return DtypeForm(wire, dtype_from_form(wire), is_text=False)
    if kind in _TEXTS and dtype.itemsize > 0:
        width = dtype.itemsize // (4 if kind == "U" else 1)
        wire = bytes((_TEXTS[kind],)) + _TEXT_FIELD.pack(width)
        return DtypeForm(wire, dtype_from_form(wire), is_text=kind == "U")
    raise fault(f"an array of dtype {dtype} cannot be sent", _REMEDIES.get(kind, "use a numeric dtype"))


def _plain_text(dtype: np.dtype[Any]) -> str:
    return f"{'|' if dtype.itemsize == 1 else '<'}{dtype.kind}{dtype.itemsize}"


def form_length(code: int) -> int:
    """Return the number of bytes of a wire form that begins with ``code``.

    Raises:
        MessageError: no dtype has this code.
    """
    if code in _DTYPES:
        return 1
    if code in _TIMES.values():
        return 1 + _TIME_FIELDS.size
    if code in _TEXTS.values():
        return 1 + _TEXT_FIELD.size
    raise fault(f"unknown dtype code {code}", "the sender's version of Atoll may be newer: update")


def dtype_from_form(wire: bytes) -> np.dtype[Any]:
    """Return the dtype of a wire form of the right length.

    Raises:
        MessageError: the code or unit is unknown, or a multiplier or width is out of range.
    """
    code = wire[0]
    if code in _DTYPES:
        return _DTYPES[code]
    if code in _TIMES.values():
        return _time_dtype("M" if code == _TIMES["M"] else "m", *_TIME_FIELDS.unpack(wire[1:]))
    kind = "S" if code == _TEXTS["S"] else "U"
    (width,) = _TEXT_FIELD.unpack(wire[1:])
    if not 1 <= width * (4 if kind == "U" else 1) <= _LARGEST:
        raise fault(f"fixed-width text of width {width}", "the message is damaged: send it again")
    return np.dtype(f"<{kind}{width}")


def _time_dtype(kind: str, unit: int, multiple: int) -> np.dtype[Any]:
    if unit >= len(_UNITS) or not 1 <= multiple <= _LARGEST or (unit == 0 and multiple != 1):
        raise fault(
            f"time unit code {unit} with multiplier {multiple}",
            "the message is damaged: send it again",
        )
    if unit == 0:
        return np.dtype(f"<{kind}8")
    return np.dtype(f"<{kind}8[{multiple}{_UNITS[unit]}]")


def refuse_bad_text(array: np.ndarray[Any, Any]) -> None:
    """Check the code points of a C-contiguous fixed-width Unicode array (dtype ``<U…``).

    Raises:
        MessageError: a code point above U+10FFFF or a lone surrogate.
    """
    points = array.reshape(-1).view("<u4")
    block = 1 << 16
    for start in range(0, points.size, block):
        part = points[start : start + block]
        # Unsigned wrap-around puts exactly the surrogates U+D800…U+DFFF below 0x800.
        if part.max() > 0x10FFFF or bool((part - np.uint32(0xD800) < 0x800).any()):
            raise fault(
                f"an array of dtype {array.dtype} holds code points that are not Unicode text",
                "send it as bytes, or encode it with errors='replace'",
            )
