"""The sending half of a channel: what was sent and is not consumed yet. It never waits."""

from __future__ import annotations

from collections import deque

from atoll.runtime.transport.base import BLOCK, Buffer

from .flight import DRAINED, LATEST, LEAST, LineFlight
from .frames import END, HEADER, OVERHEAD, TELL, Frame, Kind, SharedContent, Violation
from .pace import SHORTEST

__all__ = ["Outbox"]

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
        if len(frame.content) > most and self.cursor >= self._written:
            frame = self._cut(index, frame, most)
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
