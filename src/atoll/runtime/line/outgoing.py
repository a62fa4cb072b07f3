"""The sending half of a channel: blocks from messages, and what was sent and is not consumed yet."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from atoll.core import message as M

from ..transport.base import BLOCK, Buffer
from .frames import END, HEADER, OVERHEAD, SHORTEST, TELL, Frame, Kind, SharedContent, Violation
from .incoming import create_unnamed, write
from .settings import DRAINED, LATEST, LEAST, LineFlight, Settings

__all__ = ["Outbox", "Outgoing", "PackedMessage"]


# ------------------------------------------------------------------ the sending half of a channel: what was sent and is not consumed yet. It never waits


_UNTOLD = 2 * BLOCK + DRAINED  # of a message that begins, before the other end has said how much room it has


def _charge(size: int) -> int:
    """Return what content counts against the window of the sender: as much as if it were cut into the shortest frames."""
    return size + OVERHEAD * max(1, -(-size // SHORTEST))


class Outbox:
    """Frames in order, kept until the other end has consumed them. One that was never written may still be cut into several.

    Args:
        channel: its number.
        window: bytes that may be in here.
        flight: what all channels together may have in transit.
        again: whether frames may have to be written again; if not, written frames only count, and their content is
            freed.

    Attributes:
        first: number of the oldest frame kept.
        cursor: number of the frame to write next.
        next: number of the next new frame.
        closed: whether the very last frame is in.
        held: what the frames count against the window, in bytes.
    """

    def __init__(self, channel: int, window: int, flight: LineFlight, *, again: bool = True) -> None:
        self.first = 0
        self.cursor = 0
        self.next = 0
        self.closed = False
        self._channel = channel
        self._written = 0  # frames from here on are unknown to the other end
        self._window = window
        self._flight = flight
        self._again = again
        self._granted = _UNTOLD
        self._whole = False  # the last message that was put in has ended
        self.held = 0
        self._frames: deque[Frame] = deque()
        self._sizes: deque[tuple[int, int]] = deque()  # of each content: its bytes, and what they count
        self._content = 0  # the sum of the first
        self._asked = 0  # the other end says when it has consumed the frames before this one

    def room(self, size: int) -> bool:
        """Tell whether content of ``size`` bytes may be put in now."""
        return self.held + _charge(size) <= min(self._window, self._granted, self._flight.share(self))

    def must_ask(self) -> bool:
        """Tell whether a sender that waits for room must ask what was consumed, since too little is in transit for an unasked reply; once is enough."""
        if self._content >= LATEST or self._asked == self.next:
            return False
        self._asked = self.next
        return True

    def put(
        self, kind: Kind, flags: int, *content: Buffer, settled: bool = False, shared: SharedContent | None = None
    ) -> None:
        """Number a frame and keep it.

        Args:
            kind: of the frame.
            flags: of the frame.
            content: its pieces. Content in several pieces, or content that may change later, is copied once.
            settled: the pieces never change.
            shared: content that others send too; it is the only piece.
        """
        size = sum(map(len, content))
        if kind is Kind.DATA and not flags & END and self._content + size < LATEST:
            flags |= 0 if self.room(size + BLOCK) else TELL
        whole, kept = b"", content[0]
        # What may still change is copied now: after a cut of the connection the same bytes must be written again.
        if len(content) > 1 or not (settled or isinstance(kept, bytes)):
            whole = b"".join((HEADER.pack(kind, flags, self._channel, self.next), *content))
            kept = memoryview(whole)[HEADER.size :]
        self._frames.append(Frame(kind, flags, self._channel, self.next, kept, whole, shared))
        if not self.held:
            self._flight.began(self)
        charge = _charge(size)
        self._sizes.append((size, charge))
        self._content += size
        self.held += charge
        self.next += 1
        self._asked = self.next if flags & TELL else self._asked
        self._whole = bool(flags & END)
        self.closed = kind is Kind.CLOSE

    def shorter(self, size: int) -> bool:
        """Tell whether the frame to write next has less content than ``size``; false if there is none."""
        return self.cursor < self.next and len(self._frames[self.cursor - self.first].content) < size

    def take(self, most: int = BLOCK) -> Frame:
        """Return the frame to write next; there must be one: ``cursor < next``.

        Args:
            most: bytes of content after which it is cut; ``SHORTEST`` times a power of two.
        """
        index = self.cursor - self.first
        frame = self._frames[index]
        if frame.seq != self.cursor:  # one before it was cut
            frame = self._frames[index] = frame._replace(seq=self.cursor, whole=b"")
        # Only what the other end has never been sent: it may know a written frame by its number, and a cut moves the numbers behind it.
        if len(frame.content) > most and self.cursor >= self._written:
            frame = self._cut(index, frame, most)
        # A local line never connects again, so nothing of a written frame is needed but its count.
        if not self._again:
            self._frames[index] = frame._replace(content=b"", whole=b"", shared=None)
        self.cursor += 1
        self._written = max(self._written, self.cursor)
        return frame

    def _cut(self, index: int, frame: Frame, most: int) -> Frame:
        content = memoryview(frame.content)
        frame = frame._replace(whole=b"", shared=None)
        head = self._frames[index] = frame._replace(flags=0, content=content[:most])
        self._frames.insert(index + 1, frame._replace(seq=frame.seq + 1, content=content[most:]))
        rest = len(content) - most
        self._sizes[index] = most, _charge(most)
        self._sizes.insert(index + 1, (rest, _charge(rest)))
        self._asked += self._asked > frame.seq
        self.next += 1
        return head

    def forget_consumed(self, count: int, room: int | None = None) -> None:
        """Forget the frames before number ``count``: the other end has consumed them.

        Args:
            count: a number of a frame.
            room: how many bytes the other end allows in transit now; None if it does not say.

        Raises:
            Violation: they were never written.
        """
        if count > self._written:
            raise Violation(
                f"frame {count} of channel {self._channel} is acknowledged, but only {self._written} were written"
            )
        if room is not None:
            self._granted = max(LEAST, room)
        if self.first < count == self.next:
            self._flight.note_consumed(self)
            if self._whole:  # the next message may follow others'
                self._granted = min(self._granted, _UNTOLD)
        while self.first < count:
            self._frames.popleft()
            size, charge = self._sizes.popleft()
            self._content -= size
            self.held -= charge
            self.first += 1
        self.cursor = max(self.cursor, self.first)

    def rewind(self, received: int) -> None:
        """Write again from number ``received`` on; earlier frames have arrived.

        Raises:
            Violation: it was never written, or was consumed already.
        """
        if not self.first <= received <= self._written:
            raise Violation(
                f"channel {self._channel} cannot resume at frame {received}: {self.first} to {self._written}"
            )
        self.cursor = self._written = received
        self._asked = 0  # the question may be lost


# ------------------------------------------------------------------ blocks from messages


class PackedMessage:
    """A message that is serialised once and sent to many parties.

    Its bytes are kept in memory or in an unnamed file; later changes to the tree do not affect it.

    Args:
        tree: the message.
        spool: a folder for the bytes of messages longer than ``spool_over``; None keeps them in memory.
        spool_over: bytes.
        limits: bounds on the message.

    Raises:
        MessageError: a value that cannot be sent, or a message over the limits.
    """

    def __init__(
        self,
        tree: Any,
        *,
        spool: Path | None = None,
        spool_over: int = Settings.spool_over,
        limits: M.Limits = M.DEFAULT_LIMITS,
    ) -> None:
        self.nbytes = M.nbytes(tree, limits=limits)
        self._file: int | None = None
        self._blocks: list[SharedContent] = []
        if spool is None or self.nbytes <= spool_over:
            self._blocks = [SharedContent(b"".join(parts)) for parts in M.encode_blocks(tree, BLOCK, limits=limits)]
            return
        self._file = create_unnamed(spool)
        for chunk in M.encode_chunks(tree, BLOCK, limits=limits):
            write(self._file, chunk)

    def blocks(self, size: int = BLOCK) -> Iterator[tuple[Buffer, SharedContent | None]]:
        """Yield its bytes in blocks of at most ``size``, each with its shared content."""
        if self._file is not None:
            for start in range(0, self.nbytes, size):
                yield os.pread(self._file, min(size, self.nbytes - start), start), None
        for block in self._blocks:
            content = memoryview(block.content)
            if len(content) <= size:
                yield content, block
            else:
                yield from ((content[start : start + size], None) for start in range(0, len(content), size))

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            os.close(self._file)  # type: ignore[arg-type]


class Outgoing:
    """The blocks of a message, with the next one ready. A fault in a later block is kept for the caller that sends the message.

    Args:
        tree: a message, or a ``PackedMessage``.
        size: bytes of a block.
        limits: bounds on the message.

    Attributes:
        next: the pieces of the next block; empty if all are sent, or after a fault.
        size: its bytes.
        begun: whether a block was sent.
        settled: whether the pieces cannot change before they are sent.
        shared: the block, if others send it too.
        fault: why there is no next block.

    Raises:
        MessageError: a value that cannot be sent, or a message over the limits.
    """

    def __init__(self, tree: Any, size: int, limits: M.Limits) -> None:
        self.settled = isinstance(tree, PackedMessage)
        self.begun = False
        self.fault: Exception | None = None
        self._left = tree.nbytes if self.settled else M.nbytes(tree, limits=limits)
        self._blocks = _blocks(tree, size, limits)
        self.next: tuple[Buffer, ...] = ()
        self.shared: SharedContent | None = None
        self._advance()

    @property
    def last(self) -> bool:
        """Tell whether no block follows the next one."""
        return not self._left

    @property
    def done(self) -> bool:
        """Tell whether all blocks are sent."""
        return not self.next and self.fault is None

    def note_sent(self) -> None:
        """Note that the next block is sent."""
        self.begun = True
        try:
            self._advance()
        except Exception as error:
            self.next, self.shared, self.fault = (), None, error

    def _advance(self) -> None:
        self.next, self.shared = next(self._blocks, ((), None))
        self.size = sum(map(len, self.next))
        self._left -= self.size


def _blocks(tree: Any, size: int, limits: M.Limits) -> Iterator[tuple[tuple[Buffer, ...], SharedContent | None]]:
    if isinstance(tree, PackedMessage):
        return (((content,), shared) for content, shared in tree.blocks(size))
    return ((pieces, None) for pieces in M.encode_blocks(tree, size, limits=limits))
