"""The channels of a line: opened at either end, fed, resumed and forgotten."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from .channel import Bearer, Channel, plain
from .frames import Frame, Kind, Violation, room_in, text_of
from .hello import LineHello
from .settings import LineLost

__all__ = ["ChannelTable"]


class ChannelTable:
    """Every channel of a line that at least one end still needs.

    Args:
        line: carries them.
        dialled: whether this end numbers its channels 1, 3, ... (else 2, 4, ...).

    Attributes:
        on_open: called with each channel that the other end opens.
    """

    def __init__(self, line: Bearer, dialled: bool) -> None:
        self._line = line
        self._channels: dict[int, Channel] = {}
        self._next = 1 if dialled else 2  # the number of the next channel opened here
        self._due = 2 if dialled else 1  # the number of the next one opened there
        self._theirs = 0  # open channels that the other end opened
        self._unclaimed: deque[Channel] = deque()
        self._on_open: Callable[[Channel], None] | None = None

    def __iter__(self) -> Iterator[Channel]:
        return iter([self._channels[number] for number in sorted(self._channels)])

    def __len__(self) -> int:
        return len(self._channels)

    @property
    def on_open(self) -> Callable[[Channel], None] | None:
        """Called with each channel that the other end opens; until it is set, channels are kept."""
        return self._on_open

    @on_open.setter
    def on_open(self, handler: Callable[[Channel], None] | None) -> None:
        self._on_open = handler
        while handler is not None and self._unclaimed:
            handler(self._unclaimed.popleft())

    def open(self, name: str) -> Channel:
        """Open a channel at this end."""
        channel = Channel(self._line, self._next, name)
        self._next += 2
        self._channels[channel.number] = channel
        channel.outbox.put(Kind.OPEN, 0, plain(name).encode())
        return channel

    def take(self, frame: Frame) -> None:
        """Take a frame about a channel.

        Raises:
            Violation: it breaks the rules.
        """
        if frame.kind is Kind.OPEN:
            self._open_channel(frame)
            return
        channel = self._channels.get(frame.channel)
        if channel is None:
            self._about_the_past(frame)
        elif frame.kind is Kind.DATA:
            channel.take_frame(frame)
        elif frame.kind is Kind.ACK:
            channel.note_consumed(frame.seq, room_in(frame))
            self.tidy(channel)
        elif frame.kind is Kind.ASK:
            channel.note_question()
        else:
            channel.take_close(frame, text_of(frame))

    def _open_channel(self, frame: Frame) -> None:
        if frame.channel != self._due:
            raise Violation(f"channel {frame.channel} is opened, but {self._due} is due")
        if self._theirs >= self._line.settings.channels:
            raise Violation(f"more than {self._line.settings.channels} channels are open")
        channel = Channel(self._line, frame.channel, text_of(frame))
        channel.inbox.take_frame(frame)
        self._due += 2
        self._theirs += 1
        self._channels[channel.number] = channel
        if self._on_open is None:
            self._unclaimed.append(channel)
        else:
            self._on_open(channel)

    def _about_the_past(self, frame: Frame) -> None:
        """Check a frame about a closed channel: an acknowledgement or a question may cross its end, nothing else may."""
        ours = frame.channel % 2 == self._next % 2
        known = 0 < frame.channel < (self._next if ours else self._due)
        if frame.kind not in (Kind.ACK, Kind.ASK) or not known:
            raise Violation(f"{frame.kind.name} for channel {frame.channel}, which is not open")

    def tidy(self, channel: Channel) -> None:
        """Forget a channel that both ends have closed, once both know it."""
        if channel.finished and channel.inbox.told == channel.inbox.consumed:
            self._forget(channel)

    def _forget(self, channel: Channel) -> None:
        if self._channels.pop(channel.number, None) is not None and channel.number % 2 == self._due % 2:
            self._theirs -= 1

    def positions(self) -> tuple[int, dict[int, tuple[int, int]]]:
        """Return their state for ``LineHello``: the highest number seen, and what was received and consumed of each."""
        table = {}
        for channel in self:
            consumed = channel.inbox.tell()
            table[channel.number] = (channel.inbox.received, consumed)
            self.tidy(channel)
        return max(self._due - 2, 0), table

    def resume(self, theirs: LineHello) -> None:
        """Resume where the other end says that it is.

        Raises:
            Violation: that position is impossible.
        """
        if theirs.seen >= self._next:
            raise Violation(f"the other end has seen channel {theirs.seen}, which was never opened")
        for channel in self:
            known = theirs.channels.get(channel.number)
            if known is not None:
                channel.resume_line(*known)
                self.tidy(channel)
            elif channel.number % 2 == self._next % 2 and channel.number > theirs.seen:
                channel.resume_line(0, 0)  # the news that it was opened has not arrived
            else:  # the other end is done with it, and knew that this end was
                self._forget(channel)
                channel.lose(LineLost(f"the other end closed channel {channel.name!r}"))

    def lose(self, error: Exception) -> None:
        """Note that the line is lost: every task that waits learns so."""
        for channel in self:
            channel.lose(error)
        self._channels.clear()
