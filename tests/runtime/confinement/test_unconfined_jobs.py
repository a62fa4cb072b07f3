"""Where there is no sandbox: what a job still does not get, although it runs as its front's user."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from pathlib import Path

import pytest

from atoll.core.errors import JobError
from atoll.core.persistence.trail import Head
from atoll.runtime.admin import Admin
from atoll.runtime.confinement.folders import HeldFolder
from tests.support.walls import Walled, open_folder, played, told, write_job

LOCKSMITH = """
import json
import os
import sqlite3
from pathlib import Path


async def run(fed, store, secret):
    try:
        held = sqlite3.connect(store, timeout=0.0, isolation_level=None)
        held.execute("BEGIN EXCLUSIVE")
        got = "the lock"
    except sqlite3.OperationalError as error:
        got = str(error)
    for number in range(20):
        print("line", number, flush=True)
    state = next(path for path in Path(store).parent.glob("jobs/*/state"))
    (state / "linked.txt").symlink_to(secret)
    os.link(secret, state / "named.txt")
    os.mkfifo(state / "pipe.txt")
    (state / "mine.txt").write_text("mine")
    (Path.cwd() / "error.msg").unlink()
    (Path.cwd() / "error.msg").symlink_to(secret)
    print("locksmith", json.dumps(got), flush=True)
"""


@pytest.mark.both_carriers
@pytest.mark.slow
def test_a_job_holds_no_lock_rewrites_no_event_and_sends_no_file_of_others(tmp_path: Path) -> None:
    with open_folder() as folder:
        walled = Walled(folder, options={name: ["--confine", "never"] for name in ("server", "north")})
        store, secret = walled.place("server") / "jobs.sqlite", folder / "kits" / "server" / "kit.yaml"
        job = write_job(tmp_path / "locks", LOCKSMITH, arguments={"store": str(store), "secret": str(secret)})

        async def body(admin: Admin) -> None:
            noted = await admin.verified()
            said = await walled.run(admin, job)
            assert told(said["server"], "locksmith") == "database is locked"
            assert [line for line in said["server"] if line.startswith("line")] == [f"line {n}" for n in range(20)]
            name = (await admin.jobs())[-1]["job"]
            assert not list((walled.place("server") / "jobs" / name).glob("attempt-*"))  # code and scratch are gone
            got = {path.name for path in await admin.result(name, tmp_path / "result")}
            assert "mine.txt" in got
            assert not got & {"linked.txt", "named.txt", "pipe.txt"}
            head = await admin.verified(noted)
            assert head.number > noted.number
            typed = await asyncio.create_subprocess_exec(
                *walled.typed("events", "--verify", "--head", str(noted)), stdout=asyncio.subprocess.PIPE
            )
            out, _ = await typed.communicate()
            found = json.loads(out)
            assert found["events"] == head.number + 1  # the command has connected
            assert await admin.verified(Head.read(found["head"])) >= Head.read(found["head"])

        played(walled, body)
        # Somebody rewrites the file while the server is away: the next look says so.
        raw = sqlite3.connect(store)
        raw.executescript("DROP TRIGGER events_stay; UPDATE events SET who = 'nobody' WHERE number = 1;")
        raw.close()

        async def later(admin: Admin) -> None:
            with pytest.raises(JobError, match="the trail is broken: event 1 does not follow event 0"):
                await admin.verified()

        played(walled, later)


def test_own_files_are_plain_files_of_their_folder(tmp_path: Path) -> None:
    outside, inside = tmp_path / "outside", tmp_path / "inside"
    outside.write_text("secret")
    inside.mkdir()
    for name in ("plain", "twice"):
        (inside / name).write_text(name)
    os.link(inside / "twice", tmp_path / "elsewhere")
    (inside / "link").symlink_to(outside)
    (tmp_path / "folder").symlink_to(inside)
    os.mkfifo(inside / "pipe")
    (inside / "inner").mkdir()
    with HeldFolder.open(tmp_path, "inside") as held:
        assert held.fault_of("plain") == ""
        with held.open_file("plain") as file:
            assert file.read() == b"plain"
        for name in ("link", "twice", "pipe", "none", "inner"):
            assert held.fault_of(name)
            with pytest.raises(OSError, match=r"\w"):
                held.open_file(name)
    with pytest.raises(OSError, match=r"\w"):
        HeldFolder.open(tmp_path, "folder")
