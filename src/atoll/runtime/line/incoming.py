"""The receiving half of a channel: what arrived and is not consumed yet, and messages from blocks."""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.core.message.size import total_size
from atoll.core.message.wire import PROLOGUE

from ..transport.base import Buffer
from .frames import DROP, END, TELL, Frame, Kind, Violation
from .settings import DRAINED, LATEST, LineFlight, Settings

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Assembly", "Inbox", "IncomingBlocks", "create_unnamed", "write"]


# ------------------------------------------------------------------ files that hold long messages


def create_unnamed(folder: Path) -> int:
    """Create an unnamed file in a folder; it is gone with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=folder, prefix="message-")
    Path(name).unlink()
    return number


def write(file: int, data: Buffer) -> None:
    """Append all of ``data``."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(file, view) :]


# ------------------------------------------------------------------ the receiving half of a channel: what arrived and is not consumed yet. It never waits


_SLACK = 1 << 13  # OPEN, CLOSE and dropped messages do not wait for room


class Inbox:
    """Frames that arrived, in order, until they are consumed.

    Attributes:
        received: number of the frame expected next.
        consumed: how many frames were consumed.
        told: how many the other end knows are consumed.
        reason: why the other end closed the channel; None while it is open.
        discarding: whether everything is consumed on arrival.
        held: what counts against the window at the other end, in bytes.
    """

    def __init__(self, channel: int, window: int, intake: LineFlight) -> None:
        self.received = 0
        self.consumed = 0
        self.told = 0
        self.reason: str | None = None
        self.discarding = False
        self._channel = channel
        self._window = window
        self._intake = intake
        self._whole = True  # the last message that arrived has ended
        self._queue: deque[Frame] = deque()
        self._lent = 0  # cost of the frame that is lent out and not passed on yet
        self.held = 0  # bytes that the other end must count as not consumed
        self._untold = 0  # the consumed part of these
        self._asked = False  # whether the other end asks to hear once all of it is consumed

    def __len__(self) -> int:
        return len(self._queue)

    def take_frame(self, frame: Frame) -> None:
        """Take a numbered frame.

        Raises:
            Violation: it arrived before, one before it is missing, it follows the end, or it overfills the window.
        """
        if frame.seq != self.received:
            what = "came before" if frame.seq < self.received else "follows a gap"
            raise Violation(f"frame {frame.seq} of channel {self._channel} {what}: {self.received} is due")
        if self.reason is not None:
            raise Violation(f"frame {frame.seq} of channel {self._channel} follows its end")
        cost, data = frame.cost, frame.kind is Kind.DATA
        if self.held + cost > self._window + _SLACK:
            raise Violation(f"channel {self._channel} sends more than its window of {self._window} bytes")
        if data:
            self._intake.began(self)
        self._whole = bool(frame.flags & END) or not data
        self._asked |= bool(frame.flags & TELL)
        self.received += 1
        self.held += cost
        if data and not self.discarding:
            self._queue.append(frame)
        else:
            self._count(cost)

    def note_question(self) -> None:
        """Note that the other end waits to hear that everything that arrived is consumed."""
        self._asked = True

    @property
    def first(self) -> Frame:
        """Return the frame that is next; there must be one."""
        return self._queue[0]

    def pop(self) -> Frame:
        """Consume the next frame of data."""
        frame = self._queue.popleft()
        self._count(frame.cost)
        return frame

    def lend(self) -> Frame:
        """Return the next frame of data, which ``settle`` consumes; the last one of a message is consumed at once."""
        frame = self._queue[0]
        if frame.flags & END:
            return self.pop()
        self._lent = frame.cost
        return self._queue.popleft()

    def settle(self) -> bool:
        """Consume the lent frame, which has been passed on; return whether one was lent."""
        cost, self._lent = self._lent, 0
        if cost:
            self._count(cost)
        return cost > 0

    def discard(self) -> None:
        """Consume everything that is here or still arrives."""
        self.settle()
        self.discarding = True
        while self._queue:
            self.pop()

    def _count(self, cost: int) -> None:
        self._untold += cost
        self.consumed = self.received - len(self._queue) - (self._lent > 0)

    @property
    def share(self) -> int:
        """Return how many bytes may be in transit to here now."""
        return min(self._window, self._intake.share(self))

    def worth_telling(self) -> bool:
        """Tell whether enough was consumed to acknowledge it.

        Enough is a third of the window, half of the share, or ``LATEST``; or everything, if a larger message ends with
        it, or the other end asked or closed.
        """
        if self._untold >= min(self._window // 3, self.share // 2, LATEST):
            return True
        if self._queue:
            return False
        if self.reason is not None or (self._asked and self._untold):
            return True
        return self._whole and self._untold >= DRAINED

    def tell(self) -> int:
        """Return how many frames are consumed, for an acknowledgement sent now."""
        self.held -= self._untold
        self._untold = 0
        self._asked &= self.held > 0
        if self._whole and not self.held:
            self._intake.note_consumed(self)
        self.told = self.consumed
        return self.consumed


# ------------------------------------------------------------------ messages from blocks


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
