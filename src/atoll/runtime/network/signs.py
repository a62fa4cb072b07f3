"""When a site says that its work goes on."""

from __future__ import annotations

from collections.abc import Callable

from atoll.core.time.effort import Effort

__all__ = ["Signs"]


class Signs:
    """Decides now and then whether to send a sign of life.

    While a task works, it sends a sign if the process has used the processor since the last look. Otherwise it sends
    one if something is due: a message is in transit to or from here, or roles wait for others; and once more after
    that. A site that owes nothing stays silent, so that a program that asks for nothing any more is noticed.

    Args:
        heard: returns what has arrived so far; the value changes once there is more.
        busy: tells whether a task or a role is at work.
        waits: tells whether roles wait for others.
        effort: of this process.

    Attributes:
        taking: whether an order is partly here.
        giving: whether an answer is in transit.
    """

    def __init__(
        self,
        heard: Callable[[], object],
        busy: Callable[[], bool],
        waits: Callable[[], bool],
        effort: Effort | None = None,
    ) -> None:
        self._heard = heard
        self._busy = busy
        self._waits = waits
        self._effort = effort or Effort()
        self._last: object = None
        self._owed = False
        self.taking = False
        self.giving = False

    def due(self) -> bool:
        """Tell whether to send a sign now."""
        heard = self._heard()
        owed, self._owed = self._owed or heard != self._last, self.taking or self.giving or self._waits()
        self._last = heard
        if self._busy():
            self._owed = True
            return self._effort.moved()
        return owed or self._owed
