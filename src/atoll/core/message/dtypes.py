"""The NumPy dtypes that messages can carry, and their short form on the wire."""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from atoll.core.message.faults import fault

__all__ = ["DtypeForm", "dtype_form", "dtype_from_form", "refuse_bad_text"]

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
