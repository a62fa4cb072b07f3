"""The receiving half of a channel: what arrived and is not consumed yet. It never waits."""

from __future__ import annotations

from collections import deque

from .flight import DRAINED, LATEST, LineFlight
from .frames import END, TELL, Frame, Kind, Violation

__all__ = ["Inbox"]

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
