"""Heartbeats: how long a frame takes there and back, and what the other end's clock says."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from .frames import Frame, Kind, Violation
from .settings import Stats

__all__ = ["Pulse"]

_CLOCKS = struct.Struct("<dd")


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
        self._asked: tuple[float, float] | None = None
        self._owed: float | None = None

    def ask(self) -> None:
        """Let the next frame be a question, unless one is unanswered."""
        self._wanted = True

    def due(self) -> Frame | None:
        """The answer that is owed, or the question that is wanted."""
        if self._owed is not None:
            stamp, self._owed = self._owed, None
            return Frame(Kind.PONG, 0, 0, 0, _CLOCKS.pack(stamp, self._wall()))
        if self._wanted and self._asked is None:
            self._wanted = False
            self._asked = self._clock(), self._wall()
            return Frame(Kind.PING, 0, 0, 0, _CLOCKS.pack(*self._asked))
        return None

    def asked(self, frame: Frame) -> None:
        """The other end asks.

        Raises:
            Violation: not in the form of a question.
        """
        self._owed = self._clocks(frame)[0]

    def answered(self, frame: Frame) -> None:
        """The other end answers.

        Raises:
            Violation: not in the form of an answer, or nothing was asked.
        """
        stamp, theirs = self._clocks(frame)
        if self._asked is None or stamp != self._asked[0]:
            raise Violation("PONG without a PING")
        began, wall = self._asked
        self._asked = None
        trip = self._clock() - began
        self._statistics.round_trip = trip
        self._statistics.skew = theirs - (wall + trip / 2)

    @staticmethod
    def _clocks(frame: Frame) -> tuple[float, float]:
        if len(frame.content) != _CLOCKS.size:
            raise Violation(f"{frame.kind.name} with {len(frame.content)} bytes")
        first, second = _CLOCKS.unpack(frame.content)
        return first, second
