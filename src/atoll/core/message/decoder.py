"""From bytes to a tree, whole or as the bytes arrive."""

from __future__ import annotations

import datetime as dt
import math
import struct
from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from ..errors import MessageError
from .arrays import Array, BFloat16, Bits, BytesArray, Masked, StringArray, leaks
from .encoder import too_many, too_much_text
from .size import too_deep, total_size
from .wire import (
    ALIGN,
    DEFAULT_LIMITS,
    INLINE,
    MAGIC,
    MAX_NDIM,
    PROLOGUE,
    VERSION,
    Limits,
    Tag,
    align_size,
    dtype_from_form,
    enter,
    fault,
    finish,
    form_length,
    refuse_bad_text,
)
from .words import Words

__all__ = [
    "Decoder",
    "SCALARS",
    "Source",
    "decode",
    "decode_text",
    "make_damage_error",
    "read_dtype",
    "read_tree",
    "split_frames",
]


_DAMAGED = "the message is damaged or was not written by Atoll: have it sent again"
_U32 = struct.Struct("<I")
_SHAPES = [struct.Struct(f"<{ndim}Q") for ndim in range(MAX_NDIM + 1)]
_ADDRESSABLE = 2**63
_ZEROS = bytes(ALIGN)


def make_damage_error(what: str) -> MessageError:
    """Return the error for bytes that the writer would not have written."""
    return fault(what, _DAMAGED)


def decode_text(raw: bytes) -> str:
    """Return UTF-8 as text.

    Raises:
        MessageError: it is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise make_damage_error(f"text that is not UTF-8: {error.reason} at byte {error.start}") from None


class Source:
    """Reads fields from the header and takes buffers from the body, and counts against the limits.

    Args:
        head: the header.
        body: the body, uint8; or None to check a header whose body has not arrived.
        body_size: the declared size of the body in bytes, a multiple of 64.
        limits: bounds on the message.
    """

    __slots__ = ("at", "body", "body_size", "head", "leaves", "limits", "taken", "text_bytes")

    def __init__(self, head: memoryview, body: Array | None, body_size: int, limits: Limits) -> None:
        self.head = head
        self.body = body
        self.body_size = body_size
        self.limits = limits
        self.at = 0
        self.taken = 0
        self.leaves = 0
        self.text_bytes = 0

    @property
    def room(self) -> int:
        """Bytes of header not read yet."""
        return self.head.nbytes - self.at

    def count(self) -> None:
        """Count one leaf or container."""
        self.leaves += 1
        if self.leaves > self.limits.max_leaves:
            raise too_many(self.limits.max_leaves)

    def count_text(self, size: int) -> None:
        """Count ``size`` bytes of a ``str`` leaf."""
        self.text_bytes += size
        if self.text_bytes > self.limits.max_text_bytes:
            raise too_much_text(self.limits.max_text_bytes)

    def skip(self, size: int) -> int:
        """Skip ``size`` bytes of header and return their offset."""
        at = self.at
        if size > self.head.nbytes - at:
            raise make_damage_error(f"the header ends {size - self.room} bytes too soon")
        self.at = at + size
        return at

    def byte(self) -> int:
        """Read one byte."""
        return self.head[self.skip(1)]

    def unpack(self, fields: struct.Struct) -> tuple[Any, ...]:
        """Read fixed-width fields."""
        return fields.unpack_from(self.head, self.skip(fields.size))

    def raw(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        at = self.skip(size)
        return self.head[at : at + size].tobytes()

    def u32(self) -> int:
        """Read a count."""
        (value,) = _U32.unpack_from(self.head, self.skip(4))
        return int(value)

    def shape(self, itemsize: int) -> tuple[tuple[int, ...], int]:
        """Read a shape and return it with the number of its elements.

        The product leaves out zeros, as NumPy's own check does, and cannot overflow because it is a Python
        integer.
        """
        ndim = self.byte()
        if ndim > MAX_NDIM:
            raise make_damage_error(f"an array of {ndim} dimensions, above {MAX_NDIM}")
        shape = self.unpack(_SHAPES[ndim])
        if math.prod(size for size in shape if size) * itemsize >= _ADDRESSABLE:
            raise make_damage_error(f"an array of shape {shape}, beyond what can be addressed")
        return shape, math.prod(shape)

    def take(self, size: int) -> Array | None:
        """Return the next buffer as a view, None if there is no body yet."""
        start, left = self.taken, self.body_size - self.taken
        if size > left:
            raise make_damage_error(f"a buffer of {size} bytes with {left} bytes of body left")
        end = start + align_size(size)  # within the body: its size is a multiple of 64, as start is
        self.taken = end
        if self.body is None:
            return None
        if end - start != size and self.body[start + size : end].tobytes() != _ZEROS[: end - start - size]:
            raise make_damage_error("padding that is not zero")
        return self.body[start : start + size]


# ---------------------------------------------------------------------- scalars


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
            raise make_damage_error("an int not written with the bytes it needs")
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
        raise make_damage_error(f"{size} bytes of text or bytes in the header, above {INLINE}")
    return source.raw(size)


def _long(source: Source) -> int:
    (size,) = source.unpack(_U64)
    if size <= INLINE:
        raise make_damage_error(f"{size} bytes of text or bytes in the body, where {INLINE} fit the header")
    return int(size)


def _text(source: Source) -> str:
    raw = _short(source)
    source.count_text(len(raw))
    return decode_text(raw)


def _long_text(source: Source) -> str | None:
    size = _long(source)
    source.count_text(size)
    raw = source.take(size)
    return None if raw is None else decode_text(raw.tobytes())


def _long_bytes(source: Source) -> bytes | None:
    raw = source.take(_long(source))
    return None if raw is None else raw.tobytes()


def _date(source: Source) -> dt.date:
    day = source.u32()
    if not 1 <= day <= _LAST_DAY:
        raise make_damage_error(f"day {day}, outside the calendar")
    return dt.date.fromordinal(day)


def _wall(wall: int) -> dt.datetime:
    if wall > _LAST_WALL:
        raise make_damage_error("a datetime outside the calendar")
    return _FIRST + dt.timedelta(microseconds=wall)


def _naive(source: Source) -> dt.datetime:
    wall, fold = source.unpack(_NAIVE)
    if fold > 1:
        raise make_damage_error(f"a datetime with fold {fold}")
    return _wall(wall).replace(fold=fold)


def _aware(source: Source) -> dt.datetime:
    wall, offset = source.unpack(_AWARE)
    if not -_ONE_DAY < offset < _ONE_DAY:
        raise make_damage_error("an offset from UTC of a day or more")
    return _wall(wall).replace(tzinfo=dt.timezone(dt.timedelta(microseconds=offset)))


def _timedelta(source: Source) -> dt.timedelta:
    days, seconds, micros = source.unpack(_DELTA)
    if not (abs(days) <= 999_999_999 and 0 <= seconds < 86_400 and 0 <= micros < 1_000_000):
        raise make_damage_error("a timedelta out of range")
    return dt.timedelta(days, seconds, micros)


def read_dtype(source: Source) -> np.dtype[Any]:
    """Read the wire form of a dtype."""
    code = source.byte()
    rest = form_length(code) - 1
    return dtype_from_form(bytes((code,)) + source.raw(rest) if rest else bytes((code,)))


def _numpy_scalar(source: Source) -> Any:
    dtype = read_dtype(source)
    if dtype.kind in "SU":
        raise make_damage_error(f"a NumPy scalar of dtype {dtype}")
    raw = source.raw(dtype.itemsize)
    if dtype.kind == "b" and raw[0] > 1:
        raise make_damage_error(f"a bool of value {raw[0]}")
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


# ---------------------------------------------------------------------- trees


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
        raise make_damage_error(f"{source.room} bytes of header after the tree")
    if source.taken != body_size:
        raise make_damage_error(f"{body_size - source.taken} bytes of body that no leaf uses")
    return tree


def _node(source: Source, depth: int) -> Any:
    source.count()
    tag = source.byte()
    if tag in SCALARS:
        return SCALARS[tag](source)
    if tag in _ARRAYS:
        return _ARRAYS[tag](source)[0]
    if tag == Tag.MASKED:
        return _read_masked(source)
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
        raise make_damage_error(f"{count} items in {source.room} bytes of header")
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
                raise make_damage_error("a key that occurs twice in its dict")
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
    return decode_text(source.raw(size))


# Arrays: each returns the value (None where there is no body yet) and its shape.


def _array(source: Source) -> _Sized:
    dtype = read_dtype(source)
    shape, count = source.shape(dtype.itemsize)
    flat = source.take(count * dtype.itemsize)
    if flat is None:
        return None, shape
    if dtype.kind == "b" and flat.size and flat.max() > 1:
        raise make_damage_error("a bool array with values other than 0 and 1")
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
        raise make_damage_error(f"words of {bits} bits")
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


def _read_masked(source: Source) -> Masked | None:
    source.count()
    tag = source.byte()
    if tag not in _ARRAYS or tag in (Tag.BITS, Tag.WORDS):
        raise make_damage_error(f"a null mask on a node of tag {tag}")
    values, shape = _ARRAYS[tag](source)
    packed = source.take((math.prod(shape) + 7) // 8)
    if packed is None:
        return None
    mask = Bits(packed, shape).unpack()
    if leaks(values, mask):
        raise make_damage_error("values in null slots")
    return Masked(values, mask)


_ARRAYS: dict[int, Callable[[Source], _Sized]] = {
    Tag.ARRAY: _array,
    Tag.BFLOAT16: _bfloat16,
    Tag.BITS: _bits,
    Tag.WORDS: _words,
    Tag.STRING_ARRAY: lambda source: _texts(source, StringArray),
    Tag.BYTES_ARRAY: lambda source: _texts(source, BytesArray),
}


# ---------------------------------------------------------------------- whole messages


BytesLike: TypeAlias = bytes | bytearray | memoryview | np.ndarray[Any, Any]

_NOT_ATOLL: Final = "check that the sender speaks Atoll's message format"
_AGAIN: Final = "the message is damaged or was cut off: have it sent again"


class _Prologue(NamedTuple):
    header: int
    body: int

    @property
    def start(self) -> int:
        """The offset of the body."""
        end = PROLOGUE.size + self.header
        return align_size(end) if self.body else end

    @property
    def total(self) -> int:
        """Bytes of the whole message."""
        return total_size(self.header, self.body)


def split_frames(content: bytes) -> list[bytes]:
    """The encoded messages of a file that `frame_message` has framed, such as a transcript, in their order.

    Raises:
        MessageError: it ends within one.
    """
    found, at = [], 0
    while at < len(content):
        end = at + 8 + int.from_bytes(content[at : at + 8], "little")
        if end > len(content):
            raise make_damage_error(f"a file of {len(content)} bytes ends within the message at byte {at}")
        found.append(content[at + 8 : end])
        at = end
    return found


def decode(buffer: BytesLike, *, limits: Limits = DEFAULT_LIMITS, copy: bool = False, align: bool = False) -> Any:
    """Return the tree of a whole message.

    Args:
        buffer: the message: any C-contiguous bytes-like object.
        limits: bounds on the message, checked before anything is allocated.
        copy: False: array leaves are read-only views of ``buffer`` and keep it alive (if it does not
            begin at a multiple of 64 bytes in memory, they may be unaligned, which NumPy supports at some
            cost in speed). True: ``buffer`` is copied once to aligned memory and NumPy array leaves
            are writable.
        align: as ``copy``, but array leaves are read-only: what a `Decoder` gives.

    Raises:
        MessageError: the bytes are not exactly one message, or the message exceeds the limits.
    """
    view = _bytes_view(buffer)
    prologue = _read_prologue(view, limits)
    if view.nbytes != prologue.total:
        raise _wrong_length(view.nbytes, prologue.total)
    if copy or align:
        view, source = _allocate(prologue.total), view
        view[:] = source
    return _read(view, prologue, limits, writable=copy)


def _bytes_view(buffer: object) -> memoryview:
    try:
        view = memoryview(buffer)  # type: ignore[arg-type]
        return view if view.format == "B" and view.ndim == 1 else view.cast("B")
    except (TypeError, ValueError) as error:
        raise MessageError(
            f"{type(buffer).__name__} is not a contiguous bytes-like object: {error}",
            where="decode",
            remedy="give bytes, bytearray, memoryview or a uint8 array",
        ) from None


def _read_prologue(view: memoryview, limits: Limits) -> _Prologue:
    if view.nbytes < PROLOGUE.size:
        raise _wrong_length(view.nbytes, None)
    magic, version, reserved, header, body = PROLOGUE.unpack_from(view)
    where = "the prologue"
    if magic != MAGIC:
        raise MessageError(f"it begins with {magic!r}, not {MAGIC!r}", where=where, remedy=_NOT_ATOLL)
    if version != VERSION or reserved:
        raise MessageError(
            f"format version {version} (flags {reserved}), but this is version {VERSION}",
            where=where,
            remedy="use the same version of Atoll on both sides",
        )
    # Both lengths are the sender's word, so they are bounded before anything of that size is allocated.
    if header > limits.max_header_bytes:
        raise MessageError(
            f"a header of {header} bytes, more than max_header_bytes={limits.max_header_bytes}",
            where=where,
            remedy="raise Limits.max_header_bytes if the sender is trusted",
        )
    prologue = _Prologue(header, body)
    if prologue.total > limits.max_bytes:
        raise MessageError(
            f"a message of {prologue.total} bytes, more than max_bytes={limits.max_bytes}",
            where=where,
            remedy="raise Limits.max_bytes if the sender is trusted",
        )
    if body % ALIGN:
        raise MessageError(f"a body of {body} bytes, not a multiple of {ALIGN}", where=where, remedy=_AGAIN)
    return prologue


def _wrong_length(found: int, wanted: int | None) -> MessageError:
    if wanted is None:
        what = f"the message ends after {found} bytes, before the end of its prologue"
    elif found < wanted:
        what = f"the message ends after {found} of {wanted} bytes"
    else:
        what = f"{found - wanted} bytes follow the {wanted} bytes of the message"
    return MessageError(what, where="the message", remedy=_AGAIN)


def _allocate(size: int) -> memoryview:
    """Return ``size`` bytes that begin at a multiple of 64 in memory.

    The operating system commits them on writing, not here.
    """
    try:
        memory = np.empty(size + ALIGN, np.uint8)
    except MemoryError:
        raise MessageError(
            f"no memory for a message of {size} bytes",
            where="the message",
            remedy="lower Limits.max_bytes to what this machine can hold",
        ) from None
    start = -memory.ctypes.data % ALIGN
    return memory[start : start + size].data


def _read(view: memoryview, prologue: _Prologue, limits: Limits, *, writable: bool = False) -> Any:
    end = PROLOGUE.size + prologue.header
    if any(view[end : prologue.start]):
        raise MessageError("padding that is not zero", where="the end of the header", remedy=_AGAIN)
    body = view[prologue.start :]
    body = body if writable else body.toreadonly()
    try:
        return read_tree(view[PROLOGUE.size : end], body, prologue.body, limits)
    except MessageError as error:
        raise finish(error) from None


class Decoder:
    """Decodes a message as it arrives.

    Prologue and header are checked as soon as they are complete, so a message that exceeds the limits
    or has a damaged header is refused before memory for its body is allocated. The memory is then
    allocated once, in the declared size: chunks are copied to their place and array leaves are views of it. After an
    error every further call raises that error again.

    Args:
        limits: bounds on the message.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._start = bytearray()
        self._prologue: _Prologue | None = None
        self._whole: memoryview | None = None
        self._received = 0
        self._error: MessageError | None = None

    @property
    def received(self) -> int:
        """Bytes fed so far."""
        return self._received

    @property
    def declared(self) -> int | None:
        """Bytes of the whole message, None until its prologue has arrived."""
        return None if self._prologue is None else self._prologue.total

    @property
    def done(self) -> bool:
        """Whether the message is complete."""
        return self._whole is not None and self._received == self.declared

    def feed(self, chunk: BytesLike) -> None:
        """Take the next bytes.

        Raises:
            MessageError: the message is refused, or bytes follow its end.
        """
        self._raise_again()
        try:
            self._feed(_bytes_view(chunk))
        except MessageError as error:
            self._fail(error)
            raise

    def result(self) -> Any:
        """Return the tree of the complete message; array leaves are read-only views.

        Raises:
            MessageError: the message is incomplete, damaged, or was refused before.
        """
        self._raise_again()
        if self._whole is None or self._prologue is None or not self.done:
            raise _wrong_length(self._received, self.declared)
        try:
            return _read(self._whole, self._prologue, self._limits)
        except MessageError as error:
            self._fail(error)
            raise

    def _fail(self, error: MessageError) -> None:
        self._error = error
        self._whole = None
        self._start = bytearray()

    def _raise_again(self) -> None:
        if self._error is not None:
            raise MessageError(self._error.what, where=self._error.where, remedy=self._error.remedy)

    def _feed(self, chunk: memoryview) -> None:
        if self._whole is None:
            chunk = self._feed_start(chunk)
        if self._whole is None or not chunk.nbytes:
            return
        end = self._received + chunk.nbytes
        if end > self._whole.nbytes:
            raise _wrong_length(end, self._whole.nbytes)
        self._whole[self._received : end] = chunk
        self._received = end

    def _feed_start(self, chunk: memoryview) -> memoryview:
        """Take the bytes of prologue and header, and return the rest."""
        if self._prologue is None:
            chunk = self._gather(chunk, PROLOGUE.size)
            if len(self._start) < PROLOGUE.size:
                return chunk
            self._prologue = _read_prologue(memoryview(self._start), self._limits)
        end = PROLOGUE.size + self._prologue.header
        chunk = self._gather(chunk, end)
        if len(self._start) == end:
            self._open_body(self._prologue)
        return chunk

    def _gather(self, chunk: memoryview, size: int) -> memoryview:
        part = chunk[: size - len(self._start)]
        self._start += part
        self._received += part.nbytes
        return chunk[part.nbytes :]

    def _open_body(self, prologue: _Prologue) -> None:
        head = memoryview(self._start)[PROLOGUE.size :]
        try:
            read_tree(head, None, prologue.body, self._limits)
        except MessageError as error:
            raise finish(error) from None
        self._whole = _allocate(prologue.total)
        self._whole[: len(self._start)] = self._start
        self._start = bytearray()
