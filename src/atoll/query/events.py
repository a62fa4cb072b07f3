"""What a site has answered, as a chain of events: who asked, the statement, the plan, what left, how many of the site's units stand behind it, and what it cost.

An event is written before the reply leaves, one for each reply of a statement. The chain stays at the site, among its results (`atoll.core.persistence.named_results`), in segments: a site's daemon lets none become
shorter, and the end of each full segment stands in a record of its own. So an event that is altered, dropped, moved or added is found (`check_events`), and one that is cut off the end of a full segment. The newest events are
compared with an end that somebody noted, and with the record of answers with noise, each of which an event tells of.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, replace
from typing import Any

from atoll.core.errors import ConfigError, JobError, PolicyError
from atoll.core.persistence.trail import EMPTY, AuditEvent, Head, TrailCheck, link

from .local import silo_of
from .strategies.strategy import read_strategy

__all__ = ["NOISED", "TRAIL", "append_event", "check_events", "read_events", "write_event"]

TRAIL = "query-events"
"""Name of the record of the ends of full segments; a segment has its number behind it."""
NOISED = "query-noised"
"""Name of the record of answers with noise."""
_SEGMENT = 32
_TRIES = 50
"""How often a job looks for the end of the chain anew: others of the same site write to it too."""


def write_event(island: Any, message: Mapping[str, Any], plan: Any, left: str, behind: Mapping[str, int], *, charged: Mapping[str, Any] | None = None) -> None:  # fmt: skip
    """Write down what leaves in the reply to a request; durable when this returns.

    Args:
        island: the site.
        message: the request of the statement; see `atoll.query.local.message_of`.
        plan: the site's plan.
        left: what leaves, in words.
        behind: how many units, or rows, of each table of this site stand behind it.
        charged: what it costs: ``epsilon``, and what else there is to say of it; by default what `atoll.query.strategies.releases.release_once` has charged since the last event.

    Raises:
        PolicyError: nothing may stay at the site, so that nothing can be written down.
    """
    silo, strategy = silo_of(island.data), read_strategy(message)
    cost, silo.charged = charged if charged is not None else silo.charged, None
    details = {
        "statement": str(message["sql"]),
        "strategy": strategy.told(),
        "plan": list(strategy.outline(plan)),
        "left": left,
        "behind": {str(table): int(n) for table, n in behind.items()},
        **(cost or {"epsilon": 0.0}),
    }
    append_event(island, "answered", details)


def append_event(island: Any, what: str, details: Mapping[str, Any]) -> None:
    """Add an event to a site's chain; durable when this returns.

    Args:
        island: the site.
        what: what has happened.
        details: of it.

    Raises:
        PolicyError: nothing may stay at the site.
    """
    silo = silo_of(island.data)
    made = AuditEvent(when=time.time(), who=silo.asker, what=what, job=silo.job, details=dict(details))
    for tries in range(_TRIES):
        closed, events, end = _read_end(island)
        if len(events) >= _SEGMENT:
            closed, events = [*closed, str(end)], []
            island.leave(TRAIL, {"closed": closed}, at_once=True)
        elif end == EMPTY:  # what is not there is looked for among all results
            island.leave(TRAIL, {"closed": []}, at_once=True)
        event = replace(made, number=end.number + 1)
        event = replace(event, hash=link(end.hash, event))
        try:
            island.leave(_segment(len(closed) + 1), {"events": [*events, json.dumps(asdict(event))]}, at_once=True)
        except PolicyError:  # another job has written meanwhile
            if tries == _TRIES - 1:
                raise
        else:
            return


def _segment(number: int) -> str:
    return f"{TRAIL}-{number:06d}"


def _read_end(island: Any) -> tuple[list[str], list[Any], Head]:
    """The ends of full segments, the events of the one that is being filled, and the end of the chain."""
    closed = list(_get(island.left, TRAIL, "closed"))
    # An event is one text: a segment is read and written for each reply, and as trees of values its events take most of a short statement's time.
    events = list(_get(island.left, _segment(len(closed) + 1), "events"))
    if events:
        last = _read_event(events[-1])
        return closed, events, Head(int(last["number"]), str(last["hash"]))
    return closed, events, Head.read(closed[-1]) if closed else EMPTY


def _get(left: Callable[[str], Any], name: str, key: str) -> Any:
    try:
        return left(name)[key]
    except ConfigError:
        return ()


def read_events(left: Callable[[str], Any]) -> Iterator[AuditEvent]:
    """The events of one party of a site, oldest first.

    Args:
        left: name of a result that stays there -> its value; raises ``ConfigError`` if there is none.

    Raises:
        JobError: an event is none.
    """
    for _, events in _segments(left):
        for one in events:
            try:
                yield AuditEvent(**one)
            except TypeError as error:
                raise _no_event(one) from error


def _segments(left: Callable[[str], Any]) -> Iterator[tuple[str, list[Any]]]:
    """Each segment: its end as it was noted, empty for the last one, and its events."""
    for number, end in enumerate([*_get(left, TRAIL, "closed"), ""], 1):
        yield str(end), [_read_event(one) for one in _get(left, _segment(number), "events")]


def _read_event(kept: Any) -> Any:
    """The values of an event.

    Raises:
        JobError: it is no text of one.
    """
    if not isinstance(kept, str):
        return kept
    try:
        return json.loads(kept)
    except ValueError as error:
        raise _no_event(kept) from error


def _no_event(kept: Any) -> JobError:
    return JobError(f"the trail is broken: {str(kept)[:100]} is no event", where=TRAIL, remedy="somebody or something changed the site's folder results: compare it with a backup")  # fmt: skip


def check_events(left: Callable[[str], Any], party: str, known: Head | None = None) -> Head:
    """Check the chain of one party of a site; return its end.

    Args:
        left: name of a result that stays there -> its value; raises ``ConfigError`` if there is none.
        party: the party.
        known: an end that was noted earlier, which the chain must pass through.

    Raises:
        JobError: an event is missing, changed, moved or added.
    """
    check = TrailCheck(known=known, place="the site's folder results", trail=f"statements that {party} has answered")
    told: set[str] = set()
    for end, events in _segments(left):
        check.add(events)
        told |= {str(one["details"].get("release")) for one in events}
        if end and str(check.head) != end:
            raise check.damage(f"it has event {check.head.number} where event {end.partition(':')[0]} ended a segment")
    check.end(check.head)
    for one in _get(left, NOISED, "answers"):
        if one["tag"] not in told:
            raise check.damage(f"no event tells of an answer with noise, epsilon {float(one['epsilon']):g} of {one['analyst']}: {str(one['text'])[:200]}")  # fmt: skip
    return check.head
