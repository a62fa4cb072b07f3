"""The audit trail as a chain: whoever changes, removes or adds an event is found out, in the file and in what a server tells."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from atoll.core.errors import JobError
from atoll.core.persistence.trail import AuditEvent, Head, TrailCheck, link
from atoll.runtime.store.sqlite import SqliteStore
from tests.support.memory_store import MemoryStore


def written(store: MemoryStore | SqliteStore, count: int = 5) -> list[AuditEvent]:
    for number in range(count):
        store.record(
            AuditEvent(when=number + 0.1, who="ann", what="asked", job="j", details={"n": number, "é": [1.5, None]})
        )
    return store.events()


def checked(events: list[AuditEvent], head: Head, known: Head | None = None) -> Head:
    check = TrailCheck(known=known)
    check.add(events)
    check.end(head)
    return check.head


def test_both_stores_chain_alike_and_a_head_travels_as_text(tmp_path: Path) -> None:
    memory, disk = MemoryStore(), SqliteStore(tmp_path)
    events = written(disk)
    assert written(memory) == events
    assert [event.hash for event in events] == [
        link(before, event) for before, event in zip(["", *(e.hash for e in events)], events, strict=False)
    ]
    head = checked(events, disk.head())
    assert head == memory.head() == Head.read(str(head)) == Head(5, events[-1].hash)
    assert checked(events, head, known=Head(3, events[2].hash)) == head
    with pytest.raises(JobError, match="is not the end of a trail"):
        Head.read("5:nonsense")
    disk.close()


def test_what_is_changed_removed_added_or_cut_off_is_found(tmp_path: Path) -> None:
    del tmp_path
    store = MemoryStore()
    events, head = written(store), store.head()
    forged = AuditEvent(when=2.5, who="bob", what="asked", job="j", number=3)
    for bad in (
        [replace(events[0], who="bob"), *events[1:]],
        [*events[:2], *events[3:]],
        [*events[:2], replace(forged, hash=link(events[1].hash, forged)), *events[2:]],
        [events[1], events[0], *events[2:]],
        events[:-1],
        [],
    ):
        with pytest.raises(JobError, match="the trail is broken"):
            checked(bad, head)
    other = MemoryStore()
    other.record(AuditEvent(when=0.0, who="ann", what="a whole new trail"))
    with pytest.raises(JobError, match="event 1 is not the one that was noted"):
        checked(other.events(), other.head(), known=Head(1, events[0].hash))
    with pytest.raises(JobError, match="it ends with event 1, and event 5 was noted"):
        checked(other.events(), other.head(), known=head)


def test_a_file_that_was_changed_while_the_server_was_away_is_found(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    written(store)
    noted = store.head()
    store.close()
    raw = sqlite3.connect(tmp_path / "jobs.sqlite")
    raw.executescript("DROP TRIGGER events_stay; UPDATE events SET who = 'bob' WHERE number = 2;")
    raw.close()
    again = SqliteStore(tmp_path)
    assert again.head() == noted
    with pytest.raises(JobError, match="event 2 does not follow event 1"):
        checked(again.events(), again.head())
    again.close()


def test_while_a_store_is_open_nobody_else_gets_a_lock_on_it(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    written(store)
    raw = sqlite3.connect(tmp_path / "jobs.sqlite", timeout=0.0)
    for statement in ("BEGIN EXCLUSIVE", "SELECT * FROM events"):
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            raw.execute(statement)
    raw.close()
    assert len(written(store)) == 10
    store.close()


def test_a_trail_that_was_altered_underneath_says_so_itself(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    written(store)
    before = store.head()
    with store._database.writing() as open_:  # as if somebody had written to the file
        open_.execute("DROP TRIGGER events_last")
        open_.execute("DELETE FROM events WHERE number > 3")
    store.record(AuditEvent(when=9.0, who="ann", what="asked"))
    altered = store.events()[3]
    assert (altered.what, altered.details["expected"]) == ("altered", str(before))
    store.close()


def test_the_events_of_an_older_store_are_chained_once(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    events = written(store)
    store.close()
    raw = sqlite3.connect(tmp_path / "jobs.sqlite")
    raw.executescript("DROP TRIGGER events_stay; ALTER TABLE events DROP COLUMN hash; PRAGMA user_version = 1;")
    raw.executescript(
        "CREATE TRIGGER events_stay BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events are never changed'); END;"
    )
    raw.close()
    for _ in range(2):
        again = SqliteStore(tmp_path)
        assert again.events() == events
        assert checked(again.events(), again.head()).number == 5
        again.close()
    raw = sqlite3.connect(tmp_path / "jobs.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="never changed"):
        raw.execute("UPDATE events SET who = 'bob'")
    raw.close()
