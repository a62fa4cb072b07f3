"""How much one site may send: as large as what it was asked for, and not much more often."""

from __future__ import annotations

import time
from typing import Any

from atoll.core.message import DEFAULT_LIMITS, Limits

from ..frames import wrong

__all__ = ["QUIET", "Intake"]

QUIET = Limits(max_bytes=32 << 20, max_header_bytes=32 << 20, max_text_bytes=32 << 20, max_leaves=200_000)
"""Bounds on the messages of a site that was asked for no reply: words about generations, names of results."""
_MOST_UNASKED = 1000
"""Frames beyond those asked for: late answers to what was given up."""
_PULSES, _A_SECOND = 200.0, 20.0
"""Signs of life at once, and a second."""


class Intake:
    """Counts what a site sends.

    Args:
        site: its name.
        link: to its job process; its channel refuses larger messages before they are received.
    """

    def __init__(self, site: str, link: Any) -> None:
        self._site = site
        self._link = link
        self._limits = QUIET
        self._asked = self._unasked = 0
        self._pulses, self._counted = _PULSES, time.monotonic()
        self._narrow()

    def note_asked(self, replies: int, limits: Limits | None) -> None:
        """Note that it is asked for some replies, of a size that the request bounds; bounds never shrink, because a late reply is no fault."""
        self._asked += replies
        wider = DEFAULT_LIMITS if limits is None else limits
        limits = Limits(**{name: max(getattr(self._limits, name), getattr(wider, name)) for name in Limits.__slots__})
        if limits != self._limits:
            self._limits = limits
            self._narrow()

    def count_unasked(self) -> None:
        """Count a frame that nobody asked for.

        Raises:
            MessageError: there are too many.
        """
        self._unasked += 1
        if self._unasked > self._asked + _MOST_UNASKED:
            raise wrong(f"it sent {self._unasked:,} answers that nobody asked for, and was asked for {self._asked:,}")

    def pulse(self) -> None:
        """Count a sign of life.

        Raises:
            MessageError: there are too many in this time.
        """
        now = time.monotonic()
        self._pulses = min(_PULSES, self._pulses + (now - self._counted) * _A_SECOND) - 1.0
        self._counted = now
        if self._pulses < 0:
            raise wrong(f"it sent more than {_PULSES:g} signs of life at once")

    def _narrow(self) -> None:
        narrow = getattr(self._link, "narrow", None)
        if narrow is not None:
            narrow(self._limits)
