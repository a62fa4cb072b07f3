"""The audit trail as a chain: every event holds a hash of itself and of the event before it, so that none can be changed, removed or added in between unnoticed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from atoll.core.errors import JobError

from .records import AuditEvent

__all__ = ["ALTERED", "EMPTY", "Head", "TrailCheck", "altered_event", "link"]

ALTERED = "altered"
"""The word of the event that a server records when its trail is not as it left it."""


class Head(NamedTuple):
    """The end of a trail.

    Attributes:
        number: of the last event; 0 for none.
        hash: of the last event.
    """

    number: int
    hash: str

    def __str__(self) -> str:
        return f"{self.number}:{self.hash}"

    @classmethod
    def read(cls, text: str) -> Head:
        """Return a head as ``str`` gives it.

        Raises:
            JobError: it is none.
        """
        number, _, digest = text.partition(":")
        if not number.isdecimal() or len(digest) not in (0, 64) or not set(digest) <= set("0123456789abcdef"):
            raise JobError(
                f"{text[:100]!r} is not the end of a trail",
                where="--head",
                remedy="give NUMBER:HASH, as --verify says it",
            )
        return cls(int(number), digest)


EMPTY = Head(0, "")


def link(before: str, event: AuditEvent) -> str:
    """Return the hash of an event: SHA-256 over the hash of the event before it and its own fields, in hex.

    Args:
        before: the hash of the event before it; empty for the first.
        event: with its number.
    """
    fields = [event.number, event.when, event.who, event.what, event.job, dict(event.details)]
    text = json.dumps([before, *fields], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def altered_event(now: float, expected: Head, found: Head) -> AuditEvent:
    """Return the event for a trail that ends elsewhere than this process left it."""
    details = {"expected": str(expected), "found": str(found)}
    return AuditEvent(when=now, who="server", what=ALTERED, details=details)


@dataclass
class TrailCheck:
    """Checks a trail event by event, as its reader gets it.

    Attributes:
        head: the end of what it has seen.
        known: an end that was noted earlier, which the trail must pass through.
    """

    head: Head = EMPTY
    known: Head | None = None

    def add(self, events: Iterable[AuditEvent | dict[str, Any]]) -> None:
        """Take the next events.

        Raises:
            JobError: one is missing, changed, or not what was noted.
        """
        for given in events:
            event = given if isinstance(given, AuditEvent) else AuditEvent(**given)
            right = link(self.head.hash, event)
            if event.number != self.head.number + 1 or event.hash != right:
                raise _make_damage_error(f"event {event.number} does not follow event {self.head.number}")
            self.head = Head(event.number, right)
            if self.known is not None and self.known.number == event.number and self.known.hash != right:
                raise _make_damage_error(f"event {event.number} is not the one that was noted")

    def end(self, head: Head) -> None:
        """Compare the end with what the server's process holds in its memory.

        Raises:
            JobError: the trail ends elsewhere, or before an end that was noted.
        """
        if head != self.head:
            raise _make_damage_error(
                f"it ends with event {self.head.number}, and the server has recorded event {head.number}"
            )
        if self.known is not None and self.known.number > head.number:
            raise _make_damage_error(f"it ends with event {head.number}, and event {self.known.number} was noted")


def _make_damage_error(what: str) -> JobError:
    return JobError(
        f"the trail is broken: {what}",
        where="audit trail",
        remedy="somebody or something changed the server's jobs.sqlite: compare it with a backup",
    )
