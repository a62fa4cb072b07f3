"""From a tree to bytes, whole or in chunks."""

from __future__ import annotations

import datetime as dt
import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterator
from itertools import zip_longest
from typing import Any

import numpy as np

from ..errors import ConfigError, MessageError
from .arrays import (
    NUMPY_SCALARS,
    Array,
    BFloat16,
    Bits,
    BytesArray,
    Masked,
    StringArray,
    find_exact,
    offset_of,
    one_nan,
)
from .size import text_key, too_deep, total_size, utf8
from .wire import (
    ALIGN,
    DEFAULT_LIMITS,
    INLINE,
    MAGIC,
    MAX_NDIM,
    PROLOGUE,
    VERSION,
    Fields,
    Limits,
    Tag,
    align_size,
    dtype_form,
    enter,
    fault,
    finish,
    refuse_bad_text,
    shown_key,
)
from .words import Words

__all__ = ["Writer", "encode", "encode_blocks", "encode_chunks", "equal", "fingerprint", "frame_message", "pieces"]


_SHAPES = [struct.Struct(f"<B{ndim}Q") for ndim in range(MAX_NDIM + 1)]
_FIRST_DAY = dt.datetime.min
_MICROSECOND = dt.timedelta(microseconds=1)


class Writer:
    """Writes nodes to ``head`` and queues the buffers of the body.

    Args:
        limits: bounds on depth, leaves, integers, keys and text.
        canonical: sort dicts by key and write every NaN with the same bits.
    """

    __slots__ = ("body", "buffers", "canonical", "head", "leaves", "limits", "text_bytes")

    def __init__(self, limits: Limits, *, canonical: bool = False) -> None:
        self.head = bytearray()
        self.buffers: deque[Array | bytes] = deque()
        self.body = 0
        self.leaves = 0
        self.text_bytes = 0
        self.limits = limits
        self.canonical = canonical

    def node(self, value: Any, depth: int) -> None:
        """Write one node and its children.

        Raises:
            MessageError: a value cannot be sent, or exceeds the limits.
        """
        self.leaves += 1
        if self.leaves > self.limits.max_leaves:
            raise too_many(self.limits.max_leaves)
        put = _PUTS.get(type(value))
        if put is None:
            value = find_exact(value)
            put = _PUTS[type(value)]
        put(self, value, depth)

    def _buffer(self, buffer: Array | bytes, size: int) -> None:
        self.buffers.append(buffer)
        self.body += align_size(size)

    def _none(self, _: None, __: int) -> None:
        self.head.append(Tag.NONE)

    def _bool(self, value: bool, _: int) -> None:
        self.head.append(Tag.TRUE if value else Tag.FALSE)

    def _int(self, value: int, _: int) -> None:
        if value.bit_length() > self.limits.max_int_bits:
            raise fault(
                f"an int of {value.bit_length()} bits, above {self.limits.max_int_bits}",
                "raise Limits.max_int_bits, or send it as bytes",
            )
        size = value.bit_length() // 8 + 1
        self.head += Fields.counted.pack(Tag.INT, size)
        self.head += value.to_bytes(size, "little", signed=True)

    def _float(self, value: float, _: int) -> None:
        if self.canonical and value != value:
            value = float("nan")
        self.head += Fields.real.pack(Tag.FLOAT, value)

    def _complex(self, value: complex, _: int) -> None:
        if self.canonical:
            value = complex(one_nan(np.array([value]))[0])
        self.head += Fields.complex.pack(Tag.COMPLEX, value.real, value.imag)

    def _text(self, value: str, _: int) -> None:
        raw = utf8(value)
        self.text_bytes += len(raw)
        if self.text_bytes > self.limits.max_text_bytes:
            raise too_much_text(self.limits.max_text_bytes)
        self._short_or_long(raw, Tag.TEXT, Tag.LONG_TEXT)

    def _bytes(self, value: bytes, _: int) -> None:
        self._short_or_long(value, Tag.BYTES, Tag.LONG_BYTES)

    def _short_or_long(self, raw: bytes, short: Tag, long: Tag) -> None:
        if len(raw) <= INLINE:
            self.head += Fields.counted.pack(short, len(raw))
            self.head += raw
        else:
            self.head += Fields.long.pack(long, len(raw))
            self._buffer(raw, len(raw))

    def _date(self, value: dt.date, _: int) -> None:
        self.head += Fields.counted.pack(Tag.DATE, value.toordinal())

    def _datetime(self, value: dt.datetime, _: int) -> None:
        wall = (value.replace(tzinfo=None) - _FIRST_DAY) // _MICROSECOND
        offset = offset_of(value)
        if offset is None:
            self.head += Fields.naive.pack(Tag.NAIVE_DATETIME, wall, value.fold)
        else:
            self.head += Fields.aware.pack(Tag.AWARE_DATETIME, wall, offset // _MICROSECOND)

    def _timedelta(self, value: dt.timedelta, _: int) -> None:
        fields = (value.days, value.seconds, value.microseconds)
        self.head += Fields.delta.pack(Tag.TIMEDELTA, *fields)

    def _numpy_scalar(self, value: np.generic, _: int) -> None:
        form = dtype_form(value.dtype)
        array = np.asarray(value, dtype=form.little).reshape(-1)
        self.head.append(Tag.NUMPY_SCALAR)
        self.head += form.wire
        self.head += (one_nan(array) if self.canonical else array).tobytes()

    def _shape(self, shape: tuple[int, ...]) -> None:
        if len(shape) > MAX_NDIM:
            raise fault(f"an array of {len(shape)} dimensions, above {MAX_NDIM}", "reshape the array")
        self.head += _SHAPES[len(shape)].pack(len(shape), *shape)

    def _array(self, value: Array, _: int) -> None:
        form = dtype_form(value.dtype)
        if form.is_text:
            refuse_bad_text(np.ascontiguousarray(value, dtype=form.little))
        self.head.append(Tag.ARRAY)
        self.head += form.wire
        self._shape(value.shape)
        self._buffer(one_nan(value) if self.canonical else value, value.nbytes)

    def _bfloat16(self, value: BFloat16, _: int) -> None:
        self.head.append(Tag.BFLOAT16)
        self._shape(value.shape)
        bits = value.bits
        if self.canonical:
            is_nan = bits & np.uint16(0x7FFF) > 0x7F80
            bits = np.where(is_nan, np.uint16(0x7FC0), bits)
        self._buffer(bits, bits.nbytes)

    def _bits(self, value: Bits, _: int) -> None:
        self.head.append(Tag.BITS)
        self._shape(value.shape)
        self._buffer(value.packed, value.packed.nbytes)

    def _words(self, value: Words, depth: int) -> None:
        if not value.is_words:
            self._array(value.view(np.ndarray), depth)
            return
        self.head.append(Tag.WORDS)
        self.head.append(value.bits)
        self._shape(value.shape)
        packed = value.packed()
        self._buffer(packed, packed.nbytes)

    def _texts(self, value: BytesArray, _: int) -> None:
        is_text = isinstance(value, StringArray)
        self.head.append(Tag.STRING_ARRAY if is_text else Tag.BYTES_ARRAY)
        self._shape(value.shape)
        self.head += Fields.u64.pack(value.data.nbytes)
        self._buffer(value.offsets, value.offsets.nbytes)
        self._buffer(value.data, value.data.nbytes)

    def _write_masked(self, value: Masked, depth: int) -> None:
        self.head.append(Tag.MASKED)
        self.node(value.values, depth)
        packed = Bits.pack(value.mask).packed
        self._buffer(packed, packed.nbytes)

    def _open(self, tag: Tag, size: int, depth: int) -> None:
        if depth >= self.limits.max_depth:
            raise too_deep(self.limits.max_depth)
        self.head += Fields.counted.pack(tag, size)

    def _sequence(self, value: list[Any] | tuple[Any, ...], depth: int) -> None:
        self._open(Tag.LIST if type(value) is list else Tag.TUPLE, len(value), depth)
        place = 0
        try:
            for place, item in enumerate(value):  # noqa: B007 - for the error
                self.node(item, depth + 1)
        except MessageError as error:
            enter(error, place)
            raise

    def _mapping(self, value: dict[Any, Any], depth: int) -> None:
        self._open(Tag.DICT, len(value), depth)
        key: Any = None
        try:
            items = {}
            for key, item in value.items():
                items[text_key(key)] = item
            for key in sorted(items) if self.canonical else items:
                self._key(key)
                self.node(items[key], depth + 1)
        except MessageError as error:
            enter(error, shown_key(key))
            raise

    def _key(self, key: str) -> None:
        raw = utf8(key)
        if len(raw) > self.limits.max_key_bytes:
            raise fault(
                f"a dict key of {len(raw)} bytes, above {self.limits.max_key_bytes}",
                "send a list of (key, value) pairs, or raise Limits.max_key_bytes",
            )
        self.head += Fields.u32.pack(len(raw))
        self.head += raw


def too_many(max_leaves: int) -> MessageError:
    """Return the error for a tree with too many leaves."""
    return fault(f"more than {max_leaves} leaves", "put small values into arrays, or raise Limits.max_leaves")


def too_much_text(max_text_bytes: int) -> MessageError:
    """Return the error for too much text in ``str`` leaves."""
    return fault(
        f"str leaves of more than {max_text_bytes} bytes in total",
        "send long text as bytes or as a StringArray, or raise Limits.max_text_bytes",
    )


_PUTS: dict[type, Callable[[Writer, Any, int], None]] = {
    type(None): Writer._none,
    bool: Writer._bool,
    int: Writer._int,
    float: Writer._float,
    complex: Writer._complex,
    str: Writer._text,
    bytes: Writer._bytes,
    dt.date: Writer._date,
    dt.datetime: Writer._datetime,
    dt.timedelta: Writer._timedelta,
    **dict.fromkeys(NUMPY_SCALARS, Writer._numpy_scalar),
    np.ndarray: Writer._array,
    BFloat16: Writer._bfloat16,
    Bits: Writer._bits,
    Words: Writer._words,
    StringArray: Writer._texts,
    BytesArray: Writer._texts,
    Masked: Writer._write_masked,
    list: Writer._sequence,
    tuple: Writer._sequence,
    dict: Writer._mapping,
}


# ---------------------------------------------------------------------- whole messages


_ZEROS = bytes(ALIGN)
_WORTH_A_VIEW = 1 << 16


def encode(tree: object, *, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Return the message as one ``bytes``; each array is copied once.

    Args:
        tree: nested dict (str keys), list and tuple with leaves as listed in `atoll.core.message`.
        limits: bounds on the message; `decode` with the same limits accepts what they allow.

    Raises:
        MessageError: a value cannot be sent, or the message exceeds the limits.
    """
    return b"".join(pieces(tree, limits))


def frame_message(encoded: bytes) -> bytes:
    """An encoded message behind its length, 8 bytes little-endian: a file of several is read by `split_frames`."""
    return len(encoded).to_bytes(8, "little") + encoded


def encode_chunks(
    tree: object, chunk_size: int = 1 << 20, *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[bytes | memoryview]:
    """Return an iterator of chunks whose concatenation is ``encode(tree)``.

    The tree is checked before the first chunk. Chunks have 1 to ``chunk_size`` bytes. Long
    stretches of C-contiguous arrays are memoryviews of the arrays' own memory, and short pieces are
    gathered; arrays of another layout are copied one at a time.

    Args:
        tree: a message tree; it must not change until the last chunk is used.
        chunk_size: largest chunk in bytes.
        limits: bounds on the message.

    Raises:
        MessageError: a value cannot be sent, or the message exceeds the limits.
        ConfigError: ``chunk_size`` is below 1.
    """
    if chunk_size < 1:
        raise ConfigError(f"chunk_size is {chunk_size}", where="encode_chunks", remedy="give 1 byte or more")
    return _chunks(pieces(tree, limits), chunk_size)


def encode_blocks(
    tree: object, size: int = 1 << 20, *, limits: Limits = DEFAULT_LIMITS
) -> Iterator[tuple[memoryview, ...]]:
    """Return an iterator of blocks whose concatenation is ``encode(tree)``: each has ``size`` bytes, the last one the rest.

    A block is a tuple of pieces, views of the arrays' own memory if they are C-contiguous, for callers that copy it
    elsewhere in any case. The rest is as in ``encode_chunks``.

    Args:
        tree: a message tree; it must not change until the last block is used.
        size: size of a block in bytes.
        limits: bounds on the message.

    Raises:
        MessageError: a value cannot be sent, or the message exceeds the limits.
        ConfigError: ``size`` is below 1.
    """
    if size < 1:
        raise ConfigError(f"size is {size}", where="encode_blocks", remedy="give 1 byte or more")
    return _blocks(pieces(tree, limits), size)


def _blocks(source: Iterator[memoryview], size: int) -> Iterator[tuple[memoryview, ...]]:
    parts: list[memoryview] = []
    room = size
    for piece in source:
        done = 0
        while done < piece.nbytes:
            part = piece[done : done + room]
            parts.append(part)
            done, room = done + part.nbytes, room - part.nbytes
            if not room:
                yield tuple(parts)
                parts, room = [], size
    if parts:
        yield tuple(parts)


def _chunks(source: Iterator[memoryview], chunk_size: int) -> Iterator[bytes | memoryview]:
    gathered = bytearray()
    for piece in source:
        done = 0
        while done < piece.nbytes:
            part = piece[done : done + chunk_size - len(gathered)]
            if not gathered and part.nbytes >= min(chunk_size, _WORTH_A_VIEW):
                yield part
            elif gathered and part.nbytes >= _WORTH_A_VIEW:
                yield bytes(gathered)
                gathered.clear()
                continue
            else:
                gathered += part
            done += part.nbytes
            if len(gathered) == chunk_size:
                yield bytes(gathered)
                gathered.clear()
    if gathered:
        yield bytes(gathered)


def pieces(tree: object, limits: Limits = DEFAULT_LIMITS, *, canonical: bool = False) -> Iterator[memoryview]:
    """Return the pieces of the message (start, then buffers and padding), each as it is in memory.

    Args:
        tree: a message tree; checked before the first piece.
        limits: bounds on the message.
        canonical: sort dicts by key and write every NaN with the same bits.

    Raises:
        MessageError: a value cannot be sent, or the message exceeds the limits.
    """
    writer = Writer(limits, canonical=canonical)
    try:
        writer.node(tree, 0)
    except MessageError as error:
        raise finish(error) from None
    _check_totals(len(writer.head), writer.body, limits)
    return _laid_out(writer)


def _check_totals(header: int, body: int, limits: Limits) -> None:
    if header > limits.max_header_bytes:
        raise MessageError(
            f"the header takes {header} bytes, more than max_header_bytes={limits.max_header_bytes}",
            where="the header of the message",
            remedy="put small values into arrays, or raise Limits.max_header_bytes",
        )
    if (total := total_size(header, body)) > limits.max_bytes:
        raise MessageError(
            f"the message takes {total} bytes, more than max_bytes={limits.max_bytes}",
            where="the message",
            remedy="send it in several messages, or raise Limits.max_bytes",
        )


def _laid_out(writer: Writer) -> Iterator[memoryview]:
    start = PROLOGUE.pack(MAGIC, VERSION, 0, len(writer.head), writer.body) + writer.head
    if writer.body:
        start += _ZEROS[: align_size(len(start)) - len(start)]
    yield memoryview(start)
    while writer.buffers:  # popped, so that a copied buffer is freed once it is used
        buffer = writer.buffers.popleft()
        view = memoryview(buffer) if isinstance(buffer, bytes) else _flat(buffer)
        yield view
        if gap := -view.nbytes % ALIGN:
            yield memoryview(_ZEROS)[:gap]


def _flat(array: Array) -> memoryview:
    little = np.ascontiguousarray(array, dtype=dtype_form(array.dtype).little)
    return little.reshape(-1).view(np.uint8).data


# ---------------------------------------------------------------------- equality and fingerprints


_BLOCK = 1 << 20


def equal(a: object, b: object, *, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Return whether two trees have the same canonical encoding.

    Strict in type, dtype and shape (``1``, ``1.0``, ``True`` and ``np.int64(1)`` all differ, a list is
    not a tuple, ``0.0`` is not ``-0.0``), except for what has no meaning: the order of dict keys,
    the bits of a NaN (every NaN equals every other of its dtype), byte order and memory layout. Aware
    datetimes are equal if wall time and offset from UTC are.

    Raises:
        MessageError: a tree cannot be encoded.
    """
    pairs = zip_longest(pieces(a, limits, canonical=True), pieces(b, limits, canonical=True), fillvalue=None)
    return all(_same(one, other) for one, other in pairs)


def _same(one: memoryview | None, other: memoryview | None) -> bool:
    if one is None or other is None or one.nbytes != other.nbytes:
        return False
    return all(
        np.array_equal(one[start : start + _BLOCK], other[start : start + _BLOCK])
        for start in range(0, one.nbytes, _BLOCK)
    )


def fingerprint(tree: object, *, limits: Limits = DEFAULT_LIMITS) -> str:
    """Return the BLAKE2b-256 hash of the canonical encoding, in 64 hexadecimal digits.

    The canonical encoding is ``encode`` with dicts sorted by key (by code point) and one bit pattern
    for NaN. Equal trees (`equal`) have equal fingerprints, on every machine; unequal trees have
    unequal ones, as far as BLAKE2b resists collisions (RFC 7693).

    Raises:
        MessageError: the tree cannot be encoded.
    """
    state = hashlib.blake2b(digest_size=32)
    for piece in pieces(tree, limits, canonical=True):
        state.update(piece)
    return state.hexdigest()
