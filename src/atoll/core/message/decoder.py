"""From bytes to a tree, whole or as the bytes arrive."""

from __future__ import annotations

from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np

from atoll.core.errors import MessageError
from atoll.core.message.faults import finish
from atoll.core.message.limits import DEFAULT_LIMITS, Limits
from atoll.core.message.reader import read_tree
from atoll.core.message.size import total_size
from atoll.core.message.wire import ALIGN, MAGIC, PROLOGUE, VERSION, aligned

__all__ = ["Decoder", "decode"]

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
        return aligned(end) if self.body else end

    @property
    def total(self) -> int:
        """Bytes of the whole message."""
        return total_size(self.header, self.body)


def decode(buffer: BytesLike, *, limits: Limits = DEFAULT_LIMITS, copy: bool = False) -> Any:
    """Return the tree of a whole message.

    Args:
        buffer: the message: any C-contiguous bytes-like object.
        limits: bounds on the message, checked before anything is allocated.
        copy: False: array leaves are read-only views of ``buffer`` and keep it alive (if it does not
            begin at a multiple of 64 bytes in memory, they may be unaligned, which NumPy supports at some
            cost in speed). True: ``buffer`` is copied once to aligned memory and NumPy array leaves
            are writable.

    Raises:
        MessageError: the bytes are not exactly one message, or the message exceeds the limits.
    """
    view = _bytes_view(buffer)
    prologue = _read_prologue(view, limits)
    if view.nbytes != prologue.total:
        raise _wrong_length(view.nbytes, prologue.total)
    if copy:
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
