"""From bytes to a tree: everything is checked before it is used or allocated."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message.arrays import Array, BFloat16, Bits
from atoll.core.message.dtypes import refuse_bad_text
from atoll.core.message.faults import enter, fault
from atoll.core.message.limits import Limits
from atoll.core.message.masked import Masked, leaks
from atoll.core.message.scalars import SCALARS, read_dtype
from atoll.core.message.size import too_deep
from atoll.core.message.source import Source, damaged, decoded
from atoll.core.message.texts import BytesArray, StringArray
from atoll.core.message.wire import Tag
from atoll.core.message.words import Words

__all__ = ["read_tree"]

_Sized: TypeAlias = tuple[Any, tuple[int, ...]]


def read_tree(head: memoryview, body: memoryview | None, body_size: int, limits: Limits) -> Any:
    """Read a whole tree.

    Args:
        head: the header.
        body: the body, read-only, of which array leaves become views; or None to check a header whose
            body has not arrived: leaves in the body are then None in the tree.
        body_size: the declared size of the body in bytes.
        limits: bounds on the message.

    Raises:
        MessageError: the bytes are not what the writer would have written.
    """
    source = Source(head, None if body is None else np.frombuffer(body, np.uint8), body_size, limits)
    tree = _node(source, 0)
    if source.room:
        raise damaged(f"{source.room} bytes of header after the tree")
    if source.taken != body_size:
        raise damaged(f"{body_size - source.taken} bytes of body that no leaf uses")
    return tree


def _node(source: Source, depth: int) -> Any:
    source.count()
    tag = source.byte()
    if tag in SCALARS:
        return SCALARS[tag](source)
    if tag in _ARRAYS:
        return _ARRAYS[tag](source)[0]
    if tag == Tag.MASKED:
        return _masked(source)
    if tag == Tag.DICT:
        return _mapping(source, depth)
    if tag == Tag.LIST:
        return _sequence(source, depth)
    if tag == Tag.TUPLE:
        return tuple(_sequence(source, depth))
    raise fault(f"unknown tag {tag}", "the sender's version of Atoll may be newer: update")


def _open(source: Source, depth: int, least: int) -> int:
    """Return the number of items, each of which takes at least ``least`` bytes of header."""
    if depth >= source.limits.max_depth:
        raise too_deep(source.limits.max_depth)
    count = source.u32()
    if count * least > source.room:
        raise damaged(f"{count} items in {source.room} bytes of header")
    return count


def _sequence(source: Source, depth: int) -> list[Any]:
    items: list[Any] = []
    count = _open(source, depth, 1)
    try:
        for _ in range(count):
            items.append(_node(source, depth + 1))  # noqa: PERF401 - the error tells the place
    except MessageError as error:
        enter(error, len(items))
        raise
    return items


def _mapping(source: Source, depth: int) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for _ in range(_open(source, depth, 5)):
        key = _key(source)
        try:
            if key in items:
                raise damaged("a key that occurs twice in its dict")
            items[key] = _node(source, depth + 1)
        except MessageError as error:
            enter(error, key)
            raise
    return items


def _key(source: Source) -> str:
    size = source.u32()
    if size > source.limits.max_key_bytes:
        raise fault(
            f"a dict key of {size} bytes, above {source.limits.max_key_bytes}",
            "raise Limits.max_key_bytes if the sender is trusted",
        )
    return decoded(source.raw(size))


# Arrays: each returns the value (None where there is no body yet) and its shape.


def _array(source: Source) -> _Sized:
    dtype = read_dtype(source)
    shape, count = source.shape(dtype.itemsize)
    flat = source.take(count * dtype.itemsize)
    if flat is None:
        return None, shape
    if dtype.kind == "b" and flat.size and flat.max() > 1:
        raise damaged("a bool array with values other than 0 and 1")
    array = flat.view(dtype)
    if dtype.kind == "U":
        refuse_bad_text(array)
    return array.reshape(shape), shape


def _bfloat16(source: Source) -> _Sized:
    shape, count = source.shape(2)
    flat = source.take(2 * count)
    return None if flat is None else BFloat16(_native(flat, "<u2").reshape(shape)), shape


def _bits(source: Source) -> _Sized:
    shape, count = source.shape(1)
    flat = source.take((count + 7) // 8)
    return None if flat is None else Bits(flat, shape), shape


def _words(source: Source) -> _Sized:
    bits = source.byte()
    if not 1 <= bits <= 64:
        raise damaged(f"words of {bits} bits")
    shape, count = source.shape(-(-bits // 8))
    flat = source.take(-(-count * bits // 8))
    return None if flat is None else Words.unpacked(flat, bits, shape, count), shape


def _texts(source: Source, kind: type[BytesArray]) -> _Sized:
    shape, count = source.shape(8)
    size = int.from_bytes(source.raw(8), "little")
    offsets = source.take(8 * (count + 1))
    data = source.take(size)
    if offsets is None or data is None:
        return None, shape
    return kind(_native(offsets, "<i8"), data, shape), shape


def _native(flat: Array, dtype: str) -> Array:
    """Return ``flat`` as ``dtype`` in this machine's byte order (the same memory if possible)."""
    array = flat.view(dtype)
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _masked(source: Source) -> Masked | None:
    source.count()
    tag = source.byte()
    if tag not in _ARRAYS or tag in (Tag.BITS, Tag.WORDS):
        raise damaged(f"a null mask on a node of tag {tag}")
    values, shape = _ARRAYS[tag](source)
    packed = source.take((math.prod(shape) + 7) // 8)
    if packed is None:
        return None
    mask = Bits(packed, shape).unpack()
    if leaks(values, mask):
        raise damaged("values in null slots")
    return Masked(values, mask)


_ARRAYS: dict[int, Callable[[Source], _Sized]] = {
    Tag.ARRAY: _array,
    Tag.BFLOAT16: _bfloat16,
    Tag.BITS: _bits,
    Tag.WORDS: _words,
    Tag.STRING_ARRAY: lambda source: _texts(source, StringArray),
    Tag.BYTES_ARRAY: lambda source: _texts(source, BytesArray),
}
