"""From a tree to bytes, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from atoll.core.errors import ConfigError, MessageError
from atoll.core.message.arrays import Array
from atoll.core.message.dtypes import dtype_form
from atoll.core.message.faults import finish
from atoll.core.message.limits import DEFAULT_LIMITS, Limits
from atoll.core.message.size import total_size
from atoll.core.message.wire import ALIGN, MAGIC, PROLOGUE, VERSION, aligned
from atoll.core.message.writer import Writer

__all__ = ["encode", "encode_blocks", "encode_chunks", "pieces"]

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
        start += _ZEROS[: aligned(len(start)) - len(start)]
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
