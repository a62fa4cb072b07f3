"""Hours of a week, in words: ``Mon-Fri 19:00-07:00``, ``Sat-Sun``, ``08:00-18:00``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from atoll.core.errors import ConfigError

__all__ = ["Hours"]

_DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_DAY = 24 * 60
_TEXT = re.compile(r"(?:(?P<days>[A-Z][a-z]{2}(?:-[A-Z][a-z]{2})?)\s*)?(?:(?P<begin>\d\d:\d\d)-(?P<end>\d\d:\d\d))?")


@dataclass(frozen=True)
class Hours:
    """The same hours of some days.

    Attributes:
        days: numbers of the days on which they begin, 0 for Monday.
        begin: minutes after midnight.
        length: minutes; they may end on the next day.
        text: as they were written.
    """

    days: frozenset[int]
    begin: int
    length: int
    text: str

    @classmethod
    def of(cls, text: str) -> Hours:
        """Read hours.

        Raises:
            ConfigError: it is not written so.
        """
        found = _TEXT.fullmatch(text.strip())
        days = (found["days"] or "Mon-Sun").split("-") if found is not None else []
        if found is None or not text.strip() or not set(days) <= set(_DAYS):
            raise _wrong(text)
        first, last = _DAYS.index(days[0]), _DAYS.index(days[-1])
        among = {(first + i) % 7 for i in range((last - first) % 7 + 1)}
        begin, end = _minutes(found["begin"] or "00:00", text), _minutes(found["end"] or "24:00", text)
        return cls(frozenset(among), begin, (end - begin) % _DAY or _DAY, text.strip())

    def has(self, now: datetime) -> bool:
        """Tell whether a moment lies in them."""
        minute = now.hour * 60 + now.minute
        today = now.weekday() in self.days and self.begin <= minute < self.begin + self.length
        yesterday = (now.weekday() - 1) % 7 in self.days and minute + _DAY < self.begin + self.length
        return today or yesterday

    def __str__(self) -> str:
        return self.text


def _minutes(clock: str, text: str) -> int:
    hour, _, minute = clock.partition(":")
    if int(hour) * 60 + int(minute) > _DAY or int(minute) > 59:
        raise _wrong(text)
    return int(hour) * 60 + int(minute)


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"{text!r} are no hours", where="hours", remedy="write 'Mon-Fri 19:00-07:00', 'Sat-Sun' or '08:00-18:00'"
    )
