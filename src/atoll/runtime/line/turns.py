"""What a connection carries next: channels take turns, one frame each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from .frames import Frame, Kind, room_of
from .pace import FramePace
from .pulse import Pulse

if TYPE_CHECKING:
    from .channel import Channel
    from .settings import Settings, Stats

__all__ = ["Turns"]

_SHORT = 1 << 14  # bytes of content


class Turns:
    """The frames to send over one connection of a line: heartbeats first, then acknowledgements, questions, frames, and a farewell.

    Args:
        settings: of the line.
        statistics: of the line.
        told: called with a channel once the other end is told what was consumed of it.

    Attributes:
        pulse: its heartbeats.
        pace: how long its frames are.
        leaving: the farewell to say last, if there is one.
        left: whether it was said.
    """

    def __init__(self, settings: Settings, statistics: Stats, told: Callable[[Channel], None]) -> None:
        self.pulse = Pulse(statistics)
        self.pace = FramePace(None if settings.heartbeat is None else settings.silence)
        self.leaving: str | None = None
        self.left = False
        self._told = told
        self._ready: dict[int, Channel] = {}  # in turn
        self._untold: dict[int, Channel] = {}
        self._asking: dict[int, Channel] = {}  # once everything that they have is written
        self._questions: dict[int, Channel] = {}

    def ready(self, channel: Channel) -> None:
        """Note that a channel has something to write."""
        self._ready[channel.number] = channel

    def untold(self, channel: Channel) -> None:
        """Note that the other end should learn what was consumed of a channel."""
        self._untold[channel.number] = channel

    def ask(self, channel: Channel) -> None:
        """Note that a channel asks to hear when all that it has put in is consumed."""
        written = channel.outbox.cursor == channel.outbox.next
        (self._questions if written else self._asking)[channel.number] = channel

    def short(self) -> bool:
        """Tell whether the next frame of a channel whose turn it is is short."""
        channel = next(iter(self._ready.values()), None)
        return channel is not None and channel.outbox.shorter(_SHORT)

    @property
    def waiting(self) -> bool:
        """Tell whether a channel waits for its turn."""
        return bool(self._ready)

    def next(self) -> Frame | None:
        """Return the next frame; None if there is none, or after a farewell: the other end may be gone once it has heard it."""
        if self.left:
            return None
        if (beat := self.pulse.due()) is not None:
            return beat
        if self._untold:
            return self._acknowledgement()
        if self._questions:
            return self._question()
        while self._ready:
            if (frame := self._data()) is not None:
                return frame
        return self._parting()

    def _acknowledgement(self) -> Frame:
        channel = self._untold.pop(next(iter(self._untold)))
        inbox = channel.inbox
        frame = Frame(Kind.ACK, 0, channel.number, inbox.tell(), room_of(inbox.share))
        self._told(channel)
        return frame

    def _question(self) -> Frame:
        channel = self._questions.pop(next(iter(self._questions)))
        return Frame(Kind.ASK, 0, channel.number, 0, b"")

    def _data(self) -> Frame | None:
        channel = self._ready.pop(next(iter(self._ready)))
        outbox = channel.outbox
        if outbox.cursor == outbox.next:
            return None
        frame = outbox.take(self.pace.most)
        if outbox.cursor < outbox.next:
            self._ready[channel.number] = channel
        elif self._asking.pop(channel.number, None) is not None:
            self._questions[channel.number] = channel
        return frame

    def _parting(self) -> Frame | None:
        if self.leaving is None:
            return None
        self.left = True
        return Frame(Kind.CLOSE, 0, 0, 0, self.leaving.encode())
