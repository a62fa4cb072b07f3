"""Processes that a daemon keeps ready: each serves one job, of those only that it could have been started for, and none is left behind."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from atoll.runtime.confinement.sandbox import UNCONFINED, Confinement, confinement
from atoll.runtime.confinement.walls import OPEN, JobLimits
from atoll.runtime.daemon import job_start, ready
from atoll.runtime.daemon.job_start import JobStart, Lines, StartedProcess
from atoll.runtime.daemon.place import Place
from atoll.runtime.daemon.ready import ReadyProcesses
from atoll.runtime.worker.process import await_order
from tests.support.waiting import until
from tests.support.walls import SANDBOX

pytestmark = pytest.mark.anew  # it counts what daemons start

WORKER = """
import json, os, socket, sys
from pathlib import Path

sock = socket.socket(fileno=int(sys.argv[1]))
if sys.argv[2] == "--ready":
    sock.sendall(b"1")
    path = Path(sock.recv(int.from_bytes(sock.recv(4), "big")).decode())
else:
    path = Path(sys.argv[2])
code, state = path.parent, path.parent.parent / "state"
said = {"pid": os.getpid(), "ready": sys.argv[2] == "--ready", "order": path.read_text(), "code": sorted(os.listdir(code)), "state": sorted(os.listdir(state)),
        "scratch": sorted(os.listdir(".")), "secret": os.path.exists(os.environ["OTHER"]), "data": Path(os.environ["DATA"]).read_text()}
Path("mine").write_text("of this job")
(state / "kept").write_text("of this job")
print(json.dumps(said), flush=True)
"""
"""What a process of a job finds, in its own words; it waits for its order as the worker does, and loads nothing."""


async def nothing() -> None:
    """Nobody waits for a sign of life."""


class Daemon:
    """A daemon's folder in which jobs run one after the other, as `launch` runs them."""

    def __init__(self, folder: Path, confined: Confinement = UNCONFINED) -> None:
        self.folder = folder / "run"
        (folder / "modules").mkdir()
        (folder / "modules" / "piece.py").write_text(WORKER)
        self.data = folder / "data.csv"
        self.data.write_text("first")
        variables = {"PYTHONPATH": os.pathsep.join([str(folder / "modules"), *sys.path]), "DATA": str(self.data)}
        variables["OTHER"] = str(self.folder / "jobs" / "1" / "state" / "kept")  # what the first job leaves
        self.start = JobStart(confined, OPEN, (folder / "modules", self.data), tuple(variables.items()))
        self.pool = ReadyProcesses(self.folder)

    def prepare(self, job: str) -> tuple[Place, Path]:
        """A job's place with its unpacked bundle."""
        place = Place.of(self.folder, job)
        code = place.code(1)
        code.mkdir(parents=True)
        (code / "job.yaml").write_text(f"job {job}")
        return place, code

    async def run(self, job: str, start: JobStart | None = None, kind: str = "query") -> dict[str, Any]:
        """What a job's process has found, once it has ended."""
        place, code = self.prepare(job)
        return await self.serve(place, code, start or self.start, kind)

    async def serve(self, place: Place, code: Path, start: JobStart, kind: str) -> dict[str, Any]:
        found: list[str] = []
        started = await self.pool.take(start, kind, place, code, nothing)
        (code / "order.msg").write_text(f"order of {place.folder.name}")
        if started is None:
            (code / "scratch").mkdir()
            place.state.mkdir(exist_ok=True)
            started = await start.begin(lambda fd: [str(fd), str(code / "order.msg")], code, place.state, Lines(found.extend))  # fmt: skip
        else:
            started.lines.send = found.extend
            started.process.give(str(started.code / "order.msg"))
        self.pool.follow(start, kind, started)
        await self.end(started)
        return dict(json.loads(found[-1]))

    @staticmethod
    async def end(started: StartedProcess) -> None:
        await started.process.wait()
        started.process.socket.close()
        await started.end()

    def waiting(self) -> StartedProcess | None:
        return None if self.pool._kept is None else self.pool._kept.started

    async def until_ready(self) -> StartedProcess:
        await until(self.waiting)
        found = self.waiting()
        assert found is not None
        return found


@pytest.fixture(autouse=True)
def _tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_start, "MODULE", "piece")
    monkeypatch.setattr(ready, "ready_modules", lambda kind: ("json",) if kind == "query" else ())


def play(folder: Path, body: Callable[[Daemon], Any], confined: Confinement = UNCONFINED) -> Any:
    async def main() -> Any:
        daemon = Daemon(folder, confined)
        try:
            return await body(daemon)
        finally:
            await daemon.pool.close()
            assert not (daemon.folder / "ready").exists()

    return asyncio.run(main())


@pytest.mark.network
def test_a_process_that_waits_has_a_socket_of_its_own_that_goes_with_it(tmp_path: Path) -> None:
    """Who connects waits until the daemon serves it; a process that no job takes leaves no folder."""

    async def body(daemon: Daemon) -> None:
        start = replace(daemon.start, socket="way")

        async def socket_of_the_next() -> Any:
            kept = await daemon.until_ready()
            assert kept.socket is not None
            assert (kept.socket.folder / "way").is_socket()
            return kept.socket

        await daemon.run("1", start)
        unused = await socket_of_the_next()
        assert not (await daemon.run("2"))["ready"]  # a job that needs no socket
        await until(lambda: not unused.folder.exists())
        await daemon.until_ready()
        assert not (await daemon.run("3", start))["ready"]  # and one that does
        known = await socket_of_the_next()
        place, code = daemon.prepare("4")
        taken = await daemon.pool.take(start, "query", place, code, nothing)
        assert taken is not None
        assert taken.socket is known
        with socket.socket(socket.AF_UNIX) as one:
            one.connect(str(known.folder / "way"))
            known.socket.accept()[0].close()
        await taken.end()
        taken.process.socket.close()
        known.close()
        assert not known.folder.exists()

    play(tmp_path, body)


@pytest.mark.network
@pytest.mark.parametrize("confined", [False, pytest.param(True, marks=SANDBOX)])
def test_each_process_serves_one_job_and_finds_nothing_of_another(tmp_path: Path, confined: bool) -> None:
    async def body(daemon: Daemon) -> None:
        first = await daemon.run("1")
        assert (first["ready"], first["order"]) == (False, "order of 1")
        await daemon.until_ready()
        second = await daemon.run("2")
        await daemon.until_ready()
        third = await daemon.run("3")
        assert (second["ready"], third["ready"]) == (True, True)
        if not confined:  # in a sandbox each is the second process of its own namespace
            assert len({one["pid"] for one in (first, second, third)}) == 3
        for job, found in (("2", second), ("3", third)):
            assert (found["order"], found["data"]) == (f"order of {job}", "first")
            assert found["code"] == ["job.yaml", "order.msg", "scratch"]
            assert found["scratch"] == found["state"] == []
            assert found["secret"] is not confined
            place = Place.of(daemon.folder, job)
            assert (place.state / "kept").read_text() == "of this job"  # outlives the attempt, at the job's own place
            assert (place.code(1) / "scratch" / "mine").read_text() == "of this job"

    play(tmp_path, body, confinement("always") if confined else UNCONFINED)


@pytest.mark.network
def test_a_job_that_differs_gets_a_process_of_its_own(tmp_path: Path) -> None:
    """Other limits or variables, data that have been replaced, code of its own, a later attempt, another kind, folders that somebody has removed."""

    async def body(daemon: Daemon) -> None:
        await daemon.run("1")
        kept = await daemon.until_ready()

        async def take(start: JobStart, kind: str = "query", *, source: bool = False, state: bool = False) -> bool:
            place, code = daemon.prepare(os.urandom(4).hex())
            for there, folder in ((source, code / "source"), (state, place.state)):
                if there:
                    folder.mkdir()
            return await daemon.pool.take(start, kind, place, code, nothing) is not None

        assert not await take(daemon.start, "train")
        assert not await take(daemon.start, source=True)
        assert not await take(daemon.start, state=True)
        assert daemon.waiting() is kept  # it is there for the next job
        for other in (replace(daemon.start, limits=JobLimits(memory=1 << 30)), replace(daemon.start, environment=())):
            daemon.pool.follow(daemon.start, "query", kept)
            assert not await take(other)
            assert await kept.process.wait() != 0  # it would never serve a job
            kept = await daemon.until_ready()
        replaced = tmp_path / "new.csv"
        replaced.write_text("second")
        replaced.rename(daemon.data)
        assert not await take(daemon.start)
        assert (await daemon.run("5"))["data"] == "second"
        await daemon.until_ready()
        shutil.rmtree(daemon.folder / "ready")
        assert (await daemon.run("6"))["order"] == "order of 6"

    play(tmp_path, body)


@pytest.mark.network
def test_none_is_kept_where_none_is_of_use_or_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(daemon: Daemon) -> None:
        await daemon.run("1", kind="train")
        assert not daemon.pool._tasks
        there = tmp_path / "socket"
        there.mkdir()
        place, code = daemon.prepare("2")
        passing = replace(daemon.start, reads=(*daemon.start.reads, there))
        (code / "scratch").mkdir()
        place.state.mkdir()
        (code / "order.msg").write_text("")
        started = await passing.begin(lambda fd: [str(fd), str(code / "order.msg")], code, place.state, Lines(list))
        daemon.pool.follow(passing, "query", started)
        there.rmdir()  # it came with the job and goes with it
        await daemon.end(started)
        await until(lambda: not daemon.pool._tasks)
        assert daemon.waiting() is None
        monkeypatch.setattr(ready, "_IDLE", 0.0)
        before = set(children(os.getpid()))
        await daemon.run("3")
        await until(lambda: daemon.pool._timer is None and not daemon.pool._tasks)
        assert daemon.waiting() is None
        assert set(children(os.getpid())) <= before

    play(tmp_path, body)


@pytest.mark.network
def test_a_daemon_that_stops_leaves_no_process_and_one_that_was_killed_no_folder(tmp_path: Path) -> None:
    async def body(daemon: Daemon) -> StartedProcess:
        await daemon.run("1")
        return await daemon.until_ready()

    left = tmp_path / "run" / "ready" / "old" / "attempt"
    left.mkdir(parents=True)
    kept = play(tmp_path, body)
    assert not kept.process.alive


def test_a_ready_process_waits_for_the_path_of_its_order() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall((5).to_bytes(4, "big") + b"/a/bc")
        assert await_order(theirs, ("json", "no.such.module")) == Path("/a/bc")
        ours.sendall((9).to_bytes(4, "big") + b"/a")
        assert ours.recv(9) == b"1"
        ours.shutdown(socket.SHUT_WR)
        assert await_order(theirs, ()) is None  # the daemon has gone


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
