"""Reading the leaves that are not arrays."""

from __future__ import annotations

import datetime as dt
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core.message.dtypes import dtype_from_form, form_length
from atoll.core.message.faults import fault
from atoll.core.message.source import Source, damaged, decoded
from atoll.core.message.wire import INLINE, Tag

__all__ = ["SCALARS", "read_dtype"]

_U64 = struct.Struct("<Q")
_REAL = struct.Struct("<d")
_COMPLEX = struct.Struct("<dd")
_NAIVE = struct.Struct("<QB")
_AWARE = struct.Struct("<Qq")
_DELTA = struct.Struct("<iii")
_FIRST = dt.datetime.min
_LAST_DAY = dt.date.max.toordinal()
_LAST_WALL = (dt.datetime.max - _FIRST) // dt.timedelta(microseconds=1)
_ONE_DAY = 86_400_000_000


def _int(source: Source) -> int:
    size = source.u32()
    bound = source.limits.max_int_bits
    if size <= bound // 8 + 1:
        value = int.from_bytes(source.raw(size), "little", signed=True)
        if value.bit_length() // 8 + 1 != size:
            raise damaged("an int not written with the bytes it needs")
        if value.bit_length() <= bound:
            return value
    raise fault(
        f"an int of {size} bytes, above {bound} bits",
        "raise Limits.max_int_bits if the sender is trusted",
    )


def _float(source: Source) -> float:
    (value,) = source.unpack(_REAL)
    return float(value)


def _complex(source: Source) -> complex:
    return complex(*source.unpack(_COMPLEX))


def _short(source: Source) -> bytes:
    size = source.u32()
    if size > INLINE:
        raise damaged(f"{size} bytes of text or bytes in the header, above {INLINE}")
    return source.raw(size)


def _long(source: Source) -> int:
    (size,) = source.unpack(_U64)
    if size <= INLINE:
        raise damaged(f"{size} bytes of text or bytes in the body, where {INLINE} fit the header")
    return int(size)


def _text(source: Source) -> str:
    raw = _short(source)
    source.count_text(len(raw))
    return decoded(raw)


def _long_text(source: Source) -> str | None:
    size = _long(source)
    source.count_text(size)
    raw = source.take(size)
    return None if raw is None else decoded(raw.tobytes())


def _long_bytes(source: Source) -> bytes | None:
    raw = source.take(_long(source))
    return None if raw is None else raw.tobytes()


def _date(source: Source) -> dt.date:
    day = source.u32()
    if not 1 <= day <= _LAST_DAY:
        raise damaged(f"day {day}, outside the calendar")
    return dt.date.fromordinal(day)


def _wall(wall: int) -> dt.datetime:
    if wall > _LAST_WALL:
        raise damaged("a datetime outside the calendar")
    return _FIRST + dt.timedelta(microseconds=wall)


def _naive(source: Source) -> dt.datetime:
    wall, fold = source.unpack(_NAIVE)
    if fold > 1:
        raise damaged(f"a datetime with fold {fold}")
    return _wall(wall).replace(fold=fold)


def _aware(source: Source) -> dt.datetime:
    wall, offset = source.unpack(_AWARE)
    if not -_ONE_DAY < offset < _ONE_DAY:
        raise damaged("an offset from UTC of a day or more")
    return _wall(wall).replace(tzinfo=dt.timezone(dt.timedelta(microseconds=offset)))


def _timedelta(source: Source) -> dt.timedelta:
    days, seconds, micros = source.unpack(_DELTA)
    if not (abs(days) <= 999_999_999 and 0 <= seconds < 86_400 and 0 <= micros < 1_000_000):
        raise damaged("a timedelta out of range")
    return dt.timedelta(days, seconds, micros)


def read_dtype(source: Source) -> np.dtype[Any]:
    """Read the wire form of a dtype."""
    code = source.byte()
    rest = form_length(code) - 1
    return dtype_from_form(bytes((code,)) + source.raw(rest) if rest else bytes((code,)))


def _numpy_scalar(source: Source) -> Any:
    dtype = read_dtype(source)
    if dtype.kind in "SU":
        raise damaged(f"a NumPy scalar of dtype {dtype}")
    raw = source.raw(dtype.itemsize)
    if dtype.kind == "b" and raw[0] > 1:
        raise damaged(f"a bool of value {raw[0]}")
    return np.frombuffer(raw, dtype)[0]


SCALARS: dict[int, Callable[[Source], Any]] = {
    Tag.NONE: lambda _: None,
    Tag.FALSE: lambda _: False,
    Tag.TRUE: lambda _: True,
    Tag.INT: _int,
    Tag.FLOAT: _float,
    Tag.COMPLEX: _complex,
    Tag.TEXT: _text,
    Tag.BYTES: _short,
    Tag.LONG_TEXT: _long_text,
    Tag.LONG_BYTES: _long_bytes,
    Tag.DATE: _date,
    Tag.NAIVE_DATETIME: _naive,
    Tag.AWARE_DATETIME: _aware,
    Tag.TIMEDELTA: _timedelta,
    Tag.NUMPY_SCALAR: _numpy_scalar,
}
