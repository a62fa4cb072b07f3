"""Events as a chain: each holds a hash of itself and of the event before it, so that none can be changed, removed or added in between unnoticed.

A server's audit trail is one (`atoll.runtime.store`), and so are the statements that a site has answered (`atoll.query.events`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..errors import JobError

__all__ = ["ALTERED", "EMPTY", "AuditEvent", "Head", "TrailCheck", "altered_event", "link"]


@dataclass(frozen=True, kw_only=True)
class AuditEvent:
    """Who did what, when: a line of the audit trail. Events are never changed or removed.

    Attributes:
        when: seconds since 1970.
        who: the party, such as ``admin 'ann' of 'Bonn'``, or ``server``.
        what: one word: submit, abort, moved, refused, ...
        job: the job it is about, or ``""``.
        details: a plain tree.
        number: position in the trail, from 1; 0 before it is stored.
        hash: of this event and all before it, see `link`; empty before it is stored.
    """

    when: float
    who: str
    what: str
    job: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)
    number: int = 0
    hash: str = ""


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
                remedy="give what a check of the trail has said, as NUMBER:HASH",
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
        place: where it is kept, for errors.
        trail: what it is called, for errors.
    """

    head: Head = EMPTY
    known: Head | None = None
    place: str = "the server's jobs.sqlite"
    trail: str = "audit trail"

    def add(self, events: Iterable[AuditEvent | dict[str, Any]]) -> None:
        """Take the next events.

        Raises:
            JobError: one is missing, changed, or not what was noted.
        """
        for given in events:
            event = given if isinstance(given, AuditEvent) else self._read(given)
            right = link(self.head.hash, event)
            if event.number != self.head.number + 1 or event.hash != right:
                raise self.damage(f"event {event.number} does not follow event {self.head.number}")
            self.head = Head(event.number, right)
            if self.known is not None and self.known.number == event.number and self.known.hash != right:
                raise self.damage(f"event {event.number} is not the one that was noted")

    def _read(self, given: Mapping[str, Any]) -> AuditEvent:
        try:
            return AuditEvent(**given)
        except TypeError as error:
            raise self.damage(f"what follows event {self.head.number} is no event") from error

    def end(self, head: Head) -> None:
        """Compare the end with what the server's process holds in its memory.

        Raises:
            JobError: the trail ends elsewhere, or before an end that was noted.
        """
        if head != self.head:
            raise self.damage(f"it ends with event {self.head.number}, and the server has recorded event {head.number}")
        if self.known is not None and self.known.number > head.number:
            raise self.damage(f"it ends with event {head.number}, and event {self.known.number} was noted")

    def damage(self, what: str) -> JobError:
        """The error for a broken trail."""
        return JobError(
            f"the trail is broken: {what}",
            where=self.trail,
            remedy=f"somebody or something changed {self.place}: compare it with a backup",
        )
