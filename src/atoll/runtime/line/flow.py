"""The two halves of a channel: what was sent and not consumed yet, and what came and was not consumed yet. No waiting here."""

from __future__ import annotations

from collections import deque

from atoll.runtime.transport.base import BLOCK, Buffer

from .flight import DRAINED, Flight
from .frames import HEADER, OVERHEAD, Frame, Kind, Violation
from .pace import SHORTEST

__all__ = ["Inbox", "Outbox"]

_SLACK = 1 << 13  # OPEN, CLOSE and dropped messages do not wait for room


def _charge(size: int) -> int:
    """What content counts against the window where it is sent: as much as if it were cut into the shortest frames."""
    return size + OVERHEAD * max(1, -(-size // SHORTEST))


class Outbox:
    """Frames in order, kept until the other end has consumed them. One that was never written may still be cut into several.

    Attributes:
        first: number of the oldest frame that is kept.
        cursor: number of the frame that is written next.
        next: number that the next new frame gets.
        closed: whether the last frame of all is in.
        held: what the frames count against the window, in bytes.
    """

    def __init__(self, channel: int, window: int, flight: Flight) -> None:
        self.first = 0
        self.cursor = 0
        self.next = 0
        self.closed = False
        self._channel = channel
        self._written = 0  # frames from here on are not known at the other end
        self._window = window
        self._flight = flight
        self.held = 0
        self._frames: deque[Frame] = deque()

    def room(self, size: int) -> bool:
        """Whether content of so many bytes may be put in now."""
        held = self.held + _charge(size)
        return held <= self._window and held <= self._flight.share(self)

    def put(self, kind: Kind, flags: int, content: Buffer, *, settled: bool = False) -> None:
        """Number a frame and keep it.

        Args:
            kind: of the frame.
            flags: of the frame.
            content: what may change later is copied, once, to where it is sent from.
            settled: nobody will change it.
        """
        frame = Frame(kind, flags, self._channel, self.next, content)
        if not settled and not isinstance(content, bytes):
            whole = b"".join(frame.parts)
            frame = frame._replace(content=memoryview(whole)[HEADER.size :], whole=whole)
        self._frames.append(frame)
        if not self.held:
            self._flight.began(self)
        self.held += _charge(len(content))
        self.next += 1
        self.closed = kind is Kind.CLOSE

    def shorter(self, size: int) -> bool:
        """Whether the frame to write next has less content than that; false where there is none."""
        return self.cursor < self.next and len(self._frames[self.cursor - self.first].content) < size

    def take(self, most: int = BLOCK) -> Frame:
        """The frame to write next; there must be one: ``cursor < next``.

        Args:
            most: bytes of content after which it is cut; ``SHORTEST`` times a power of two.
        """
        index = self.cursor - self.first
        frame = self._frames[index]
        if frame.seq != self.cursor:  # one before it was cut
            frame = self._frames[index] = frame._replace(seq=self.cursor, whole=b"")
        if len(frame.content) > most and self.cursor >= self._written:
            frame = self._cut(index, frame, most)
        self.cursor += 1
        self._written = max(self._written, self.cursor)
        return frame

    def _cut(self, index: int, frame: Frame, most: int) -> Frame:
        content = memoryview(frame.content)
        head = frame._replace(flags=0, content=content[:most], whole=b"")
        self._frames[index] = head
        self._frames.insert(index + 1, frame._replace(seq=frame.seq + 1, content=content[most:], whole=b""))
        self.next += 1
        return head

    def consumed(self, count: int) -> None:
        """Forget the frames before number ``count``: the other end has consumed them.

        Raises:
            Violation: they were never written.
        """
        if count > self._written:
            raise Violation(f"frame {count} of channel {self._channel} is acknowledged, {self._written} were written")
        if self.first < count == self.next:
            self._flight.ended(self)
        while self.first < count:
            self.held -= _charge(len(self._frames.popleft().content))
            self.first += 1
        self.cursor = max(self.cursor, self.first)

    def rewind(self, received: int) -> None:
        """Write again from number ``received`` on: what was before has arrived.

        Raises:
            Violation: it was never written, or was consumed already.
        """
        if not self.first <= received <= self._written:
            raise Violation(
                f"channel {self._channel} cannot go on at frame {received}: {self.first} to {self._written}"
            )
        self.cursor = self._written = received


class Inbox:
    """Frames that came, in order, until they are consumed.

    Attributes:
        received: number of the frame that must come next.
        consumed: how many frames were consumed.
        told: how many the other end knows to be consumed.
        reason: why the other end closed the channel; None while it is open.
        discarding: whether everything is consumed as it comes.
        held: what counts against the window at the other end, in bytes.
    """

    def __init__(self, channel: int, window: int) -> None:
        self.received = 0
        self.consumed = 0
        self.told = 0
        self.reason: str | None = None
        self.discarding = False
        self._channel = channel
        self._window = window
        self._queue: deque[Frame] = deque()
        self.held = 0  # bytes that the other end must count as not consumed
        self._untold = 0  # of these, consumed

    def __len__(self) -> int:
        return len(self._queue)

    def arrived(self, frame: Frame) -> None:
        """Take a numbered frame.

        Raises:
            Violation: it came before, one before it is missing, it follows the end, or it is more than the window holds.
        """
        if frame.seq != self.received:
            what = "came before" if frame.seq < self.received else "follows a gap"
            raise Violation(f"frame {frame.seq} of channel {self._channel} {what}: {self.received} is due")
        if self.reason is not None:
            raise Violation(f"frame {frame.seq} of channel {self._channel} follows its end")
        if self.held + frame.cost > self._window + _SLACK:
            raise Violation(f"channel {self._channel} sends more than its window of {self._window} bytes")
        self.received += 1
        self.held += frame.cost
        if frame.kind is Kind.DATA and not self.discarding:
            self._queue.append(frame)
        else:
            self._count(frame.cost)

    def pop(self) -> Frame:
        """Consume the next frame of data."""
        frame = self._queue.popleft()
        self._count(frame.cost)
        return frame

    def discard(self) -> None:
        """Consume what is here, and all that is to come."""
        self.discarding = True
        while self._queue:
            self.pop()

    def _count(self, cost: int) -> None:
        self._untold += cost
        self.consumed = self.received - len(self._queue)

    def worth_telling(self) -> bool:
        """Whether enough was consumed that the other end should know: a third of the window, all of a larger message, or the end."""
        if 3 * self._untold >= self._window:
            return True
        return not self._queue and (self._untold >= DRAINED or self.reason is not None)

    def tell(self) -> int:
        """How many frames were consumed, for an acknowledgement that is sent now."""
        self.held -= self._untold
        self._untold = 0
        self.told = self.consumed
        return self.consumed
