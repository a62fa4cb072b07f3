"""Blocks in a stream of bytes, each after its length; bytes are read straight into place and written from where they lie."""

from __future__ import annotations

import struct

import numpy as np

from .base import Buffer, PipeClosed

__all__ = ["IncomingFrames", "after", "frame_block"]

_LENGTH = struct.Struct("<I")
_SMALL = 1 << 14  # blocks shorter than this are joined before they are written


class IncomingFrames:
    """Decides where incoming bytes go.

    Args:
        largest: bytes of one block, at most.

    Attributes:
        places: memory to fill, in order: the rest of a length, or the rest of a block and the length after it.
    """

    def __init__(self, largest: int) -> None:
        self._largest = largest
        self._length = memoryview(bytearray(_LENGTH.size))
        self._block = self._length[:0]
        self._in_length = True
        self.places: tuple[memoryview, ...] = (self._length,)

    @property
    def between(self) -> bool:
        """Tell whether no block has begun."""
        return self._in_length and len(self.places[0]) == _LENGTH.size

    def took(self, count: int) -> memoryview | None:
        """Count bytes that are in place; return the block if it is complete now. Then call ``go_on``.

        Raises:
            PipeClosed: as in ``go_on``.
        """
        rest = self.places[0]
        more = count - len(rest)
        if more < 0:
            self.places = (rest[count:], *self.places[1:])
        elif self._in_length:
            self._expect_block()
        else:
            block, self._block = self._block, self._length[:0]
            self._in_length = True
            self.places = (self._length[more:],)
            return block
        return None

    def go_on(self) -> None:
        """Expect the next block, if its length arrived with the one before.

        Raises:
            PipeClosed: the length is out of bounds; read nothing more.
        """
        if self._in_length and not self.places[0]:
            self._expect_block()

    def _expect_block(self) -> None:
        (size,) = _LENGTH.unpack(self._length)
        if not 0 < size <= self._largest:
            raise PipeClosed(f"a block of {size} bytes was announced, 1 to {self._largest} are allowed")
        self._block = np.empty(size, np.uint8).data  # nothing is written before the bytes arrive
        self._in_length = False
        self.places = (self._block, self._length)


def frame_block(parts: tuple[Buffer, ...], size: int) -> list[Buffer]:
    """Return what to write for a block of ``size`` bytes: a short block in one piece."""
    start = (_LENGTH.pack(size), *parts)
    return [b"".join(start)] if size < _SMALL else [b"".join(start[:-1]), start[-1]]


def after(parts: list[Buffer], count: int) -> list[Buffer]:
    """Return the rest of the parts after ``count`` bytes of them are written."""
    for index, part in enumerate(parts):
        if count < len(part):
            return [memoryview(part)[count:], *parts[index + 1 :]]
        count -= len(part)
    return []
