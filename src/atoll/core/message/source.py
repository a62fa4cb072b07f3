"""The two halves of a received message, read in order and never past their ends."""

from __future__ import annotations

import math
import struct
from typing import Any

from atoll.core.errors import MessageError
from atoll.core.message.arrays import Array
from atoll.core.message.faults import fault
from atoll.core.message.limits import Limits
from atoll.core.message.wire import ALIGN, MAX_NDIM, aligned
from atoll.core.message.writer import too_many, too_much_text

__all__ = ["Source", "damaged", "decoded"]

_DAMAGED = "the message is damaged or was not written by Atoll: have it sent again"
_U32 = struct.Struct("<I")
_SHAPES = [struct.Struct(f"<{ndim}Q") for ndim in range(MAX_NDIM + 1)]
_ADDRESSABLE = 2**63
_ZEROS = bytes(ALIGN)


def damaged(what: str) -> MessageError:
    """Return the error for bytes that the writer would not have written."""
    return fault(what, _DAMAGED)


def decoded(raw: bytes) -> str:
    """Return UTF-8 as text.

    Raises:
        MessageError: it is not UTF-8.
    """
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise damaged(f"text that is not UTF-8: {error.reason} at byte {error.start}") from None


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
            raise damaged(f"the header ends {size - self.room} bytes too soon")
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
            raise damaged(f"an array of {ndim} dimensions, above {MAX_NDIM}")
        shape = self.unpack(_SHAPES[ndim])
        if math.prod(size for size in shape if size) * itemsize >= _ADDRESSABLE:
            raise damaged(f"an array of shape {shape}, beyond what can be addressed")
        return shape, math.prod(shape)

    def take(self, size: int) -> Array | None:
        """Return the next buffer as a view, None if there is no body yet."""
        start, left = self.taken, self.body_size - self.taken
        if size > left:
            raise damaged(f"a buffer of {size} bytes with {left} bytes of body left")
        end = start + aligned(size)  # within the body: its size is a multiple of 64, as start is
        self.taken = end
        if self.body is None:
            return None
        if end - start != size and self.body[start + size : end].tobytes() != _ZEROS[: end - start - size]:
            raise damaged("padding that is not zero")
        return self.body[start : start + size]
