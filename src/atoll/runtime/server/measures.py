"""What a server tells its operator's monitoring: jobs by state, sites, bytes."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from atoll.runs.versions import versions
from atoll.runtime.store.records import JobFilter
from atoll.runtime.store.states import JobState
from atoll.runtime.store.store import JobStore

from ..daemon.monitor import Sample
from .members import Members
from .seen import LastSeen
from .site_session import SiteSession

__all__ = ["measures"]


def measures(
    store: JobStore, members: Members, seen: LastSeen, sessions: Mapping[str, SiteSession]
) -> Iterator[Sample]:
    """Yield the numbers of now.

    Args:
        store: the jobs.
        members: the sites of the project.
        seen: when they were last connected.
        sessions: those that have a line.

    Raises:
        JobError: the store cannot be read.
    """
    yield Sample("atoll_info", 1, "This server.", {"version": str(versions()["atoll"]), "role": "server"})
    for state in JobState:
        count = store.count(JobFilter(states=frozenset({state})))
        yield Sample("atoll_jobs", count, "Jobs in the store, by state.", {"state": str(state)})
    names = sorted({*sessions, *members.clients, *members.plays})
    there = {name for name, session in sessions.items() if session.connected}
    for name in names:
        yield Sample("atoll_site_connected", name in there, "Whether a site is connected.", {"site": name})
    for name in names:
        last = seen.of(name)
        if name in there or last is not None:
            when = time.time() if name in there or last is None else last.when
            yield Sample("atoll_site_last_seen_seconds", when, "When it last was, since 1970.", {"site": name})
    stats = {name: session.line.stats() for name, session in sorted(sessions.items())}
    for name, line in stats.items():
        yield Sample("atoll_received_bytes_total", line.received_bytes, "Bytes of a site's line.", {"site": name})
    for name, line in stats.items():
        yield Sample("atoll_sent_bytes_total", line.sent_bytes, "Bytes to a site.", {"site": name})
    for name, line in stats.items():
        yield Sample("atoll_line_cuts_total", line.resumes, "Cuts of a site's line that it survived.", {"site": name})
    for name, line in stats.items():
        if line.round_trip is not None:
            yield Sample("atoll_round_trip_seconds", line.round_trip, "Round trip of a site's line.", {"site": name})
