"""The exact size of an encoded message, computed without writing it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message.arrays import (
    NUMPY_SCALARS,
    BFloat16,
    Bits,
    BytesArray,
    Masked,
    StringArray,
    find_exact,
    offset_of,
)
from atoll.core.message.wire import (
    DEFAULT_LIMITS,
    INLINE,
    PROLOGUE,
    Limits,
    align_size,
    dtype_form,
    enter,
    fault,
    finish,
    shown_key,
)
from atoll.core.message.words import Words

__all__ = ["nbytes", "total_size"]


def nbytes(tree: object, *, limits: Limits = DEFAULT_LIMITS) -> int:
    """Return ``len(encode(tree))`` without encoding.

    ``24 + header`` without buffers; with them ``aligned(24 + header) + sum(aligned(buffer))``, where
    ``align_size`` rounds up to 64 bytes. The time grows with the number of leaves (and of characters that
    are not ASCII), not with the size of arrays.

    Args:
        tree: a message tree.
        limits: only ``max_depth`` is checked.

    Raises:
        MessageError: the tree has a value that cannot be sent, or is too deep.
    """
    meter = _Meter(limits.max_depth)
    try:
        header = meter.node(tree, 0)
    except MessageError as error:
        raise finish(error) from None
    return total_size(header, meter.body)


def total_size(header: int, body: int) -> int:
    """Return the size of a message in bytes from those of its header and body."""
    start = PROLOGUE.size + header
    return align_size(start) + body if body else start


class _Meter:
    """Sums the bytes of the body; the methods return bytes of the header."""

    __slots__ = ("body", "max_depth")

    def __init__(self, max_depth: int) -> None:
        self.body = 0
        self.max_depth = max_depth

    def node(self, value: Any, depth: int) -> int:
        measure = _MEASURES.get(type(value))
        if measure is None:
            value = find_exact(value)
            measure = _MEASURES[type(value)]
        return measure(self, value, depth)

    def text(self, value: str, _: int) -> int:
        return self.long_or_short(len(value) if value.isascii() else len(utf8(value)))

    def raw(self, value: bytes, _: int) -> int:
        return self.long_or_short(len(value))

    def long_or_short(self, size: int) -> int:
        if size <= INLINE:
            return 5 + size
        self.body += (size + 63) & -64
        return 9

    def array(self, value: np.ndarray[Any, Any], _: int) -> int:
        self.body += (value.nbytes + 63) & -64
        return 2 + len(dtype_form(value.dtype).wire) + 8 * value.ndim

    def bfloat16(self, value: BFloat16, _: int) -> int:
        self.body += align_size(value.bits.nbytes)
        return 2 + 8 * value.bits.ndim

    def bits(self, value: Bits, _: int) -> int:
        self.body += align_size(value.packed.nbytes)
        return 2 + 8 * len(value.shape)

    def words(self, value: Words, depth: int) -> int:
        if not value.is_words:
            return self.array(value, depth)
        self.body += align_size(value.packed_nbytes)
        return 3 + 8 * value.ndim

    def texts(self, value: BytesArray, _: int) -> int:
        self.body += align_size(value.offsets.nbytes) + align_size(value.data.nbytes)
        return 10 + 8 * len(value.shape)

    def measure_masked(self, value: Masked, depth: int) -> int:
        self.body += align_size((value.mask.size + 7) // 8)
        return 1 + self.node(value.values, depth)

    def sequence(self, value: list[Any] | tuple[Any, ...], depth: int) -> int:
        self.deeper(depth)
        header = 5
        if len(value) > 3:
            alike = _of_one_kind(value)
            if alike:
                return header + alike
        place = 0
        try:
            for place, item in enumerate(value):  # noqa: B007 - for the error
                header += self.node(item, depth + 1)
        except MessageError as error:
            enter(error, place)
            raise
        return header

    def mapping(self, value: dict[Any, Any], depth: int) -> int:
        self.deeper(depth)
        header = 5
        key = None
        try:
            for key, item in value.items():
                if type(key) is not str:
                    key = text_key(key)
                measure = _MEASURES.get(type(item), _Meter.node)
                header += 4 + (len(key) if key.isascii() else len(utf8(key))) + measure(self, item, depth + 1)
        except MessageError as error:
            enter(error, shown_key(key))
            raise
        return header

    def deeper(self, depth: int) -> None:
        if depth >= self.max_depth:
            raise too_deep(self.max_depth)


def too_deep(max_depth: int) -> MessageError:
    """Return the error for a tree of more levels than allowed."""
    return fault(
        f"containers are nested more than {max_depth} deep",
        "flatten the tree (does it contain itself?), or raise Limits.max_depth",
    )


def text_key(key: object) -> str:
    """Return a dict key that is a plain ``str`` (from NumPy's ``str_`` too).

    Raises:
        MessageError: the key is of another type. Converting could merge two keys: ``1`` and ``"1"``.
    """
    if isinstance(key, np.str_) or type(key) is str:
        return str(key)
    raise fault(
        f"a dict key of type {type(key).__name__}, str expected",
        "convert the keys: {str(key): value for key, value in items}",
    )


def utf8(text: str) -> bytes:
    """Return ``text`` in UTF-8.

    Raises:
        MessageError: the text has a lone surrogate, which is not Unicode text.
    """
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise fault(
            f"text that is not Unicode: {error.reason}",
            "send bytes, or text.encode(errors='replace').decode()",
        ) from None


def _of_one_kind(items: list[Any] | tuple[Any, ...]) -> int:
    """Return the bytes of short names or of whole numbers, as in a list of parties, all at once; 0 for other items."""
    kinds = set(map(type, items))
    if kinds == {str}:
        text = "".join(items)
        if text.isascii() and max(map(len, items)) <= INLINE:
            return 5 * len(items) + len(text)
    elif kinds == {int}:
        return 6 * len(items) + (
            0 if min(items) > -128 and max(items) < 128 else sum(item.bit_length() // 8 for item in items)
        )
    return 0


def _int_size(_: _Meter, value: int, __: int) -> int:
    return 6 + value.bit_length() // 8


def _datetime_size(_: _Meter, value: dt.datetime, __: int) -> int:
    return 10 if offset_of(value) is None else 17


def _scalar_size(_: _Meter, value: np.generic, __: int) -> int:
    return 1 + len(dtype_form(value.dtype).wire) + value.dtype.itemsize


def _always(size: int) -> Callable[[_Meter, Any, int], int]:
    return lambda _, __, ___: size


_MEASURES: dict[type, Callable[[_Meter, Any, int], int]] = {
    type(None): _always(1),
    bool: _always(1),
    int: _int_size,
    float: _always(9),
    complex: _always(17),
    str: _Meter.text,
    bytes: _Meter.raw,
    dt.date: _always(5),
    dt.datetime: _datetime_size,
    dt.timedelta: _always(13),
    **dict.fromkeys(NUMPY_SCALARS, _scalar_size),
    np.ndarray: _Meter.array,
    BFloat16: _Meter.bfloat16,
    Bits: _Meter.bits,
    Words: _Meter.words,
    StringArray: _Meter.texts,
    BytesArray: _Meter.texts,
    Masked: _Meter.measure_masked,
    list: _Meter.sequence,
    tuple: _Meter.sequence,
    dict: _Meter.mapping,
}
