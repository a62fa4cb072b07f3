"""Heartbeats: how long a frame takes there and back, and what the other end's clock shows."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from .frames import Frame, Kind, Violation
from .settings import Stats

__all__ = ["Pulse"]

_CLOCKS = struct.Struct("<dd")
_MOST = 1000  # questions that may be unanswered


class Pulse:
    """Asks and answers; each question holds two clocks, each answer the question's first and the answerer's own.

    With ``t0`` and ``t1`` the times of question and answer by this end's clock, and ``s`` the other end's time in the answer, the round
    trip is ``t1 - t0`` and the skew ``s - (t0 + t1) / 2``, true to within half a round trip (as in NTP, RFC 5905).

    Args:
        statistics: where round trip and skew are kept.
        clock: seconds that never jump.
        wall: seconds since 1970.
    """

    def __init__(
        self,
        statistics: Stats,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._statistics = statistics
        self._clock = clock
        self._wall = wall
        self._wanted = False
        self._asked: dict[float, float] = {}  # unanswered questions: both clocks at each, oldest first
        self._owed: float | None = None

    def ask(self) -> None:
        """Make the next frame a question, even if others are unanswered: behind a long message an answer takes time."""
        self._wanted = True

    def due(self) -> Frame | None:
        """Return the answer that is due, or the question that is wanted."""
        if self._owed is not None:
            stamp, self._owed = self._owed, None
            return Frame(Kind.PONG, 0, 0, 0, _CLOCKS.pack(stamp, self._wall()))
        if self._wanted:
            self._wanted = False
            stamp, wall = self._clock(), self._wall()
            self._asked[stamp] = wall
            if len(self._asked) > _MOST:
                del self._asked[next(iter(self._asked))]
            return Frame(Kind.PING, 0, 0, 0, _CLOCKS.pack(stamp, wall))
        return None

    def take_question(self, frame: Frame) -> None:
        """Take a question from the other end.

        Raises:
            Violation: it does not have the form of a question.
        """
        self._owed = self._clocks(frame)[0]

    def take_answer(self, frame: Frame) -> None:
        """Take an answer from the other end; earlier questions need no answer any more.

        Raises:
            Violation: it does not have the form of an answer, or there was no question.
        """
        stamp, theirs = self._clocks(frame)
        if stamp not in self._asked:
            raise Violation("PONG without a PING")
        wall = self._asked[stamp]
        self._asked = {later: at for later, at in self._asked.items() if later > stamp}
        trip = self._clock() - stamp
        self._statistics.round_trip = trip
        # As in NTP: the answer is taken to have left half a round trip after the question.
        self._statistics.skew = theirs - (wall + trip / 2)

    @staticmethod
    def _clocks(frame: Frame) -> tuple[float, float]:
        if len(frame.content) != _CLOCKS.size:
            raise Violation(f"{frame.kind.name} with {len(frame.content)} bytes")
        first, second = _CLOCKS.unpack(frame.content)
        return first, second
