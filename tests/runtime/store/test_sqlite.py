"""The SQLite store against crashes, damage, other processes and other versions."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from atoll.core.errors import JobError
from atoll.core.persistence.trail import AuditEvent
from atoll.runtime.store.database import SCHEMA_VERSION
from atoll.runtime.store.records import JobState
from atoll.runtime.store.sqlite import SqliteStore
from tests.support.store_laws import ERROR, job, start

WRITER = """
import sys
from atoll.runtime.store.records import Submission
from atoll.runtime.store.sqlite import SqliteStore
from atoll.runtime.store.records import JobState as S
store = SqliteStore(sys.argv[1])
print("open", flush=True)
n = 0
while True:
    n += 1
    digest = store.put_bundle(b"%d" % n)
    made = store.submit(Submission(name="j", submitter="ann", org="o", spec={"n": n}, token=str(n), bundle=digest), now=n, who="ann")
    for state in (S.SCHEDULED, S.DEPLOYING, S.RUNNING):
        store.move(made.id, state, now=n)
    store.log(made.id, "a", ["x" * 200] * 5, now=n)
    store.move(made.id, S.FINISHED, now=n)
    print(made.id, flush=True)
"""


@pytest.mark.network
@pytest.mark.parametrize("jobs", [1, 4, 9])
def test_a_killed_writer_loses_nothing_that_it_has_told(tmp_path: Path, jobs: int) -> None:
    """kill -9 at an arbitrary instruction: what was confirmed is there, and everything there is whole."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "open\n"
    told = [writer.stdout.readline().strip() for _ in range(jobs)]
    os.kill(writer.pid, signal.SIGKILL)
    told += [line.strip() for line in writer.stdout if line.endswith("\n")]  # confirmed while the signal was on its way
    assert writer.wait(20) == -signal.SIGKILL
    writer.stdout.close()
    store = SqliteStore(tmp_path)
    records = {record.id: record for record in store.jobs()}
    assert {records[name].state for name in told} == {JobState.FINISHED}
    assert len(records) - len(told) in (0, 1)
    for record in records.values():
        events = store.events(job=record.id)
        assert [e.what for e in events] == ["submit"] + ["moved"] * (len(record.times) - 1)
        assert store.bundle(record.bundle) == b"%d" % store.get(record.id).spec["n"]
        assert len(store.lines(record.id)) in ((5,) if record.state is JobState.FINISHED else (0, 5))
    queued = store.restart(now=1e6)
    assert all(record.state in (JobState.QUEUED, JobState.FINISHED) for record in store.jobs())
    assert len(queued) in (0, 1)
    store.close()


def test_one_process_holds_a_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    with pytest.raises(JobError, match=r"another process holds the store"):
        SqliteStore(tmp_path)
    store.close()
    SqliteStore(tmp_path).close()


def test_a_closed_store_says_so(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.close()
    with pytest.raises(JobError, match=r"the store is closed"):
        store.jobs()


def test_everything_is_there_after_reopening(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    name = start(store)
    digest, orphan = store.put_bundle(b"zip"), store.put_bundle(b"of no job")
    store.submit(job("2", bundle=digest), now=1.0, who="ann")
    failed = store.move(name, JobState.FAILED, now=9.0, error=ERROR)
    store.log(name, "a", ["line"], now=9.0)
    events, lines = store.events(), store.lines(name)
    store.close()
    again = SqliteStore(tmp_path)
    assert (again.get(name), again.events(), again.lines(name), again.bundle(digest)) == (failed, events, lines, b"zip")
    with pytest.raises(JobError, match="is not in the store"):  # a crash between the two would leave it for ever
        again.bundle(orphan)
    again.close()


def test_a_newer_store_is_not_touched(tmp_path: Path) -> None:
    SqliteStore(tmp_path).close()
    with sqlite3.connect(tmp_path / "jobs.sqlite") as raw:
        raw.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    raw.close()
    before = (tmp_path / "jobs.sqlite").read_bytes()
    with pytest.raises(JobError, match=f"it has version {SCHEMA_VERSION + 1}.*install a newer Atoll"):
        SqliteStore(tmp_path)
    assert (tmp_path / "jobs.sqlite").read_bytes() == before


def test_somebody_elses_database_is_not_touched(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "jobs.sqlite") as raw:
        raw.execute("CREATE TABLE mine (x)")
    raw.close()
    with pytest.raises(JobError, match=r"a database of something else"):
        SqliteStore(tmp_path)


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "jobs.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(JobError, match=r"cannot be used.*jobs\.sqlite.*backup"):
        SqliteStore(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(JobError, match=r"cannot be opened"):
        SqliteStore(tmp_path / "file" / "store")


def test_an_altered_bundle_is_refused(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    digest = store.put_bundle(b"zip")
    (tmp_path / "bundles" / digest).write_bytes(b"zap")
    with pytest.raises(JobError, match=r"was altered on the disk"):
        store.bundle(digest)
    store.close()


def test_the_trail_cannot_be_rewritten(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    store.record(AuditEvent(when=1.0, who="ann", what="abort"))
    store.close()
    raw = sqlite3.connect(tmp_path / "jobs.sqlite")
    for statement in ("UPDATE events SET who = 'bob'", "DELETE FROM events"):
        with pytest.raises(sqlite3.IntegrityError, match=r"events are never"):
            raw.execute(statement)
    raw.close()


def test_threads_share_a_store(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    threads = [
        threading.Thread(target=lambda n=n: [store.submit(job(f"{n}/{i}"), now=1.0, who="ann") for i in range(10)])
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({record.id for record in store.jobs()}) == 40
    assert [e.number for e in store.events()] == list(range(1, 41))
    store.close()


def test_moves_are_durable_and_lines_need_not_be(tmp_path: Path) -> None:
    """PRAGMA synchronous: 2 is FULL, 1 is NORMAL (sqlite.org/pragma.html)."""
    store = SqliteStore(tmp_path)
    name = store.submit(job(), now=1.0, who="ann").id

    def level() -> int:
        with store._database.reading() as open_:
            return int(open_.execute("PRAGMA synchronous").fetchone()[0])

    store.log(name, "a", ["line"], now=1.0)
    assert level() == 1
    store.move(name, JobState.SCHEDULED, now=1.0)
    assert level() == 2
    with store._database.reading() as open_:
        assert open_.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    store.close()
