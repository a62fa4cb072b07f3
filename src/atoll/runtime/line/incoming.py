"""Messages from blocks."""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.core.message.size import total_size
from atoll.core.message.wire import PROLOGUE
from atoll.runtime.transport.base import Buffer

from .frames import DROP, END, Frame
from .settings import Settings
from .spool import create_unnamed, write

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Assembly", "IncomingBlocks"]


SHORT = 1 << 14
"""Bytes; a message in one block up to this size is decoded at once, without the steps that a long one needs."""


class IncomingBlocks:
    """Takes frames until a message is whole. A fault is kept for the caller that asks for the message.

    Attributes:
        whole: whether the message has ended, or was refused: take it before the next frame.
    """

    def __init__(self) -> None:
        self.whole = False
        self._short: Any = None  # a message that came in one block
        self._assembly: Assembly | None = None
        self._refused: Exception | None = None

    def add(self, frame: Frame, settings: Settings) -> None:
        """Take the next frame.

        Args:
            frame: of data; take a finished message first.
            settings: the limits of the message that begins with it.
        """
        if frame.flags & DROP:
            self.forget()
            return
        self.whole = bool(frame.flags & END)
        try:
            if self._assembly is None and self.whole and len(frame.content) <= SHORT:
                self._short = (M.decode(frame.content, limits=settings.limits, align=True),)
                return
            self._assembly = self._assembly or Assembly(settings)
            self._assembly.add(frame.content)
        except Exception as error:
            self._refused, self.whole = error, True

    def result(self) -> Any:
        """Return the message once it is complete; the next one may follow.

        Raises:
            MessageError: it is not a message, or is over the limits.
            OSError: there was no room for it.
        """
        try:
            if self._refused is not None:
                raise self._refused
            if self._short is not None:
                return self._short[0]
            if self._assembly is None or not self.whole:
                raise MessageError("the message has not ended", where="channel", remedy="wait for its last block")
            return self._assembly.result()
        finally:
            self.forget()

    def forget(self) -> None:
        """Drop what arrived of a message."""
        if self._assembly is not None:
            self._assembly.close()
        self._assembly = self._refused = self._short = None
        self.whole = False


class Assembly:
    """A message built from its blocks: in memory or, if long messages already hold their share of it, in an unnamed file that is then mapped.

    Args:
        settings: its limits and where long messages go.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._decoder: M.Decoder | None = None
        self._file: int | None = None
        self._memory: NDArray[np.uint8] | None = None
        self._total = 0
        self._done = 0

    def add(self, block: Buffer) -> None:
        """Take the next block.

        Raises:
            MessageError: it is not a message, over the limits, or longer than announced.
        """
        if self._decoder is None and self._file is None and self._memory is None:
            self._begin(block)
        if self._decoder is not None:
            self._decoder.feed(block)
            return
        self._done += len(block)
        if self._done > self._total:
            raise _make_damage_error(f"{self._done} bytes arrived of a message of {self._total}")
        if self._memory is not None:
            self._memory[self._done - len(block) : self._done] = np.frombuffer(block, dtype=np.uint8)
        elif self._file is not None:
            write(self._file, block)

    def _begin(self, block: Buffer) -> None:
        settings = self._settings
        if len(block) >= PROLOGUE.size and settings.spool is not None:
            _, _, _, header, body = PROLOGUE.unpack_from(block)
            self._total = total_size(header, body)
        if settings.spool is None or not settings.spool_over < self._total <= settings.limits.max_bytes:
            self._decoder = M.Decoder(settings.limits)
            return
        M.Decoder(settings.limits).feed(
            block[: PROLOGUE.size]
        )  # refuses what is not a message before memory is allocated for it
        if settings.held.take(self._total):
            self._memory = _room(self._total)
            weakref.finalize(self._memory, settings.held.give, self._total)
        else:
            self._file = create_unnamed(settings.spool)

    def result(self) -> Any:
        """Return the message; its arrays are read-only views.

        Raises:
            MessageError: it is damaged or incomplete.
        """
        if self._decoder is not None:
            return self._decoder.result()
        if self._done != self._total:
            raise _make_damage_error(f"the message ends after {self._done} of {self._total} bytes")
        if self._memory is not None:
            return M.decode(memoryview(self._memory.data).toreadonly(), limits=self._settings.limits)
        if self._file is None:
            raise _make_damage_error("no block of it arrived")
        mapped = mmap.mmap(self._file, self._total, prot=mmap.PROT_READ)  # lives as long as arrays use it
        return M.decode(memoryview(mapped), limits=self._settings.limits)

    def close(self) -> None:
        """Drop what arrived; a mapping in use stays."""
        self._decoder = self._memory = None
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _room(nbytes: int) -> NDArray[np.uint8]:
    """Return memory for a message, aligned as its arrays need it."""
    raw = np.empty(nbytes + 63, dtype=np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


def _make_damage_error(what: str) -> MessageError:
    return MessageError(what, where="the message", remedy="the message is damaged or was cut off: send it again")
