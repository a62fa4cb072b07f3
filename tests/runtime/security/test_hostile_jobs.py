"""A job that means harm, between real processes: it plants links and pipes where its daemons look, forges, hides and hoards."""

from __future__ import annotations

import asyncio
import errno
import platform
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.core.event import Ledger
from atoll.core.persistence.named_results import NamedResults
from atoll.runtime.admin import Admin
from atoll.runtime.confinement.sandbox import program, why_not
from atoll.runtime.confinement.walls import why_open
from tests.support.waiting import read_files
from tests.support.walls import DEADLINE, Walled, open_folder, played, told, write_job

pytestmark = pytest.mark.network

SANDBOX = pytest.mark.skipif(
    program() is None or bool(why_not(program() or "")),
    reason="needs bubblewrap, which is not installed or not allowed here",
)
MODES = pytest.mark.parametrize("mode", [pytest.param("always", marks=SANDBOX), pytest.param("never", marks=pytest.mark.slow)])  # fmt: skip


def confined(mode: str, *more: str) -> dict[str, list[str]]:
    """The options of both fronts."""
    return {name: ["--confine", mode, *more] for name in ("server", "north")}


HONEST = """
import numpy as np

import atoll


@atoll.task
def answer(island, message):
    try:
        known = island.left("answered")
    except Exception:
        known = {"entries": []}
    island.leave("answered", {"entries": [*known["entries"], message["n"]]}, at_once=True)
    island.leave("half", {"w": np.full(3, message["n"])})
    return {"n": atoll.Sum(float(len(known["entries"])))}


async def run(fed, n):
    print("answered", float((await fed.sum(fed.parties, answer, {"n": n}))["n"]), flush=True)
"""

VANDAL = """
import json
import os
from pathlib import Path

import atoll


def tried(what):
    try:
        return str(what())
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:300]


def link(at, to):
    at.unlink(missing_ok=True)
    at.symlink_to(to)


def deep(top):
    handle = os.open(top, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("down" * 50, dir_fd=handle)
        inner = os.open("down" * 50, os.O_RDONLY, dir_fd=handle)
        os.close(handle)
        handle = inner
    file = os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle)
    os.write(file, bytes(1 << 20))


def plant(job, site, ledger):
    state = job / "state"
    for name in ("letters.key", ".letters.key.tmp"):
        link(state / name, site / "ledger.jsonl")
    if ledger == "pipe":
        (state / "ledger.jsonl").unlink(missing_ok=True)
        os.mkfifo(state / "ledger.jsonl")
    else:
        line = {"party": "north", "request": "forged", "kind": "gaussian", "unit": "user", "scope": "*", "count": 1, "sampling": 1.0, "scheme": "poisson", "drawn_by": "public", "noise_multiplier": 0.1}
        (state / "ledger.jsonl").write_text(json.dumps(line) + "\\n")
    closed = state / "closed"
    closed.mkdir()
    (closed / "file").write_bytes(bytes(1 << 20))
    closed.chmod(0)
    deep(state)


@atoll.task
def vandalise(island, message):
    job = Path.cwd().parent.parent
    site = job.parent.parent
    said = {"record": tried(lambda: island.leave("answered", {"entries": []}, at_once=True))}
    island.leave("answered", {"entries": []})
    for name in ("answered", "half"):
        file = site / "results" / "north" / f"{name}.msg"
        said[name] = [tried(lambda: file.write_bytes(b"gone")), tried(file.unlink), tried(lambda: file.read_bytes()[:0])]
    said["record file"] = tried(lambda: (site / "results" / "north" / "answered.record").unlink())
    said["key"] = tried(lambda: (Path.cwd().parent / "letters.key").write_bytes(bytes(32)))
    said["kept keys"] = tried(lambda: list((site / "record").glob("*/letters.key")))
    said["planted"] = tried(lambda: plant(job, site, message["ledger"]))
    print("vandal", json.dumps(said), flush=True)
    return {"n": atoll.Sum(1.0)}


async def run(fed, ledger):
    await fed.sum(fed.parties, vandalise, {"ledger": ledger})
    plant(Path.cwd().parent.parent, Path.cwd().parents[3], ledger)
    raise ValueError("the next attempt finds it all")
"""


@MODES
def test_a_job_that_plants_links_pipes_and_lines_harms_neither_its_site_nor_its_server(
    tmp_path: Path, mode: str
) -> None:
    """Its next attempt, other jobs, a restart of the site, and its deletion find what it has planted."""
    with open_folder() as folder:
        walled = Walled(folder, options=confined(mode))
        site, server = walled.place("north"), walled.place("server")

        async def body(admin: Admin) -> None:
            said = await walled.run(admin, write_job(tmp_path / "first", HONEST, arguments={"n": 1}))
            assert "answered 0.0" in said["server"]
            lines = len(list(Ledger(site / "ledger.jsonl", readable=True)))
            vandals = []
            for ledger in ("pipe", "line"):
                started = await admin.submit(write_job(tmp_path / ledger, VANDAL, arguments={"ledger": ledger}))
                vandals.append(started["job"])
                async with asyncio.timeout(DEADLINE):
                    assert (await admin.wait(started["job"]))["state"] == "failed"
                    got = told(
                        [line async for _, node, line in admin.logs(started["job"]) if node == "north"], "vandal"
                    )
                    assert got["planted"] == "None"
                    if mode == "always":  # without a sandbox it may write what its user may
                        assert "is a record of north, which may only grow" in got["record"]
                        assert [word.partition(":")[0] for word in got["half"]] == ["OSError", "OSError", "b''"]
                        assert [word.partition(":")[0] for word in got["answered"]] == ["OSError", "OSError", "b''"]
                        assert got["record file"].startswith("OSError")
                        assert got["key"].startswith("OSError")
                        assert got["kept keys"] == "[]"  # the daemon's record is not there
                    await admin.resume(started["job"])
                    assert (await admin.wait(started["job"]))["state"] == "failed"
            await walled.fronts["north"].end()
            await walled.start("north")
            said = await walled.run(admin, write_job(tmp_path / "second", HONEST, arguments={"n": 2}))
            assert mode == "never" or "answered 1.0" in said["server"]
            found = list(Ledger(site / "ledger.jsonl", readable=True))
            assert len(found) > lines
            assert not [line for line in found if line["request"] == "forged"]
            kept = NamedResults(site / "results")
            assert mode == "never" or list(kept.get("north", "answered")["entries"]) == [1, 2]
            for job in vandals:
                async with asyncio.timeout(DEADLINE):
                    await admin.delete(job)
                assert not (server / "jobs" / job).exists()
                await _gone(site / "jobs" / job / "state" / "closed")
                await _gone(site / "record" / job / "letters.key")  # its promises stay, as the ledger does
            for front in ("north", "server"):
                left = read_files(walled.place(front) / "jobs")
                assert sum(len(content) for path, content in left.items() if "ledger" in path.name) < 10_000
                assert not [
                    path
                    for path in left
                    if set(path.relative_to(walled.place(front)).parts) & set(vandals) and path.name != "ledger.jsonl"
                ]

        played(walled, body)


async def _gone(path: Path) -> None:
    async with asyncio.timeout(60):
        while path.exists():
            await asyncio.sleep(0.02)


HOARDER = """
import mmap
import os
import signal
from pathlib import Path

import atoll

MIB = 1 << 20


def closed(top):
    (top / "closed").mkdir()
    (top / "closed" / "file").write_bytes(bytes(100 * MIB))
    (top / "closed").chmod(0)


def deep(top):
    handle = os.open(top, os.O_RDONLY)
    for _ in range(60):
        os.mkdir("down" * 50, dir_fd=handle)
        handle = os.open("down" * 50, os.O_RDONLY, dir_fd=handle)
    os.write(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=handle), bytes(100 * MIB))


def nameless(top):
    file = open(top / "file", "w+b")
    os.unlink(top / "file")
    file.write(bytes(100 * MIB))
    file.flush()
    return file


def child(top):
    if os.fork() == 0:
        os.setsid()
        file = nameless(top)
        signal.pause()


def mapped(top):
    file = nameless(top)
    kept = mmap.mmap(file.fileno(), 100 * MIB)
    file.close()
    return kept


async def run(fed, way, where):
    top = Path.cwd() if where == "scratch" else Path.cwd().parent.parent / "state"
    kept = globals()[way](top)
    print("hoarded", flush=True)
    signal.pause()
"""


@pytest.mark.parametrize(
    ("way", "where"),
    [
        ("closed", "state"), pytest.param("child", "scratch", marks=pytest.mark.slow), pytest.param("deep", "state", marks=pytest.mark.slow),
        pytest.param("nameless", "state", marks=pytest.mark.slow), pytest.param("mapped", "scratch", marks=pytest.mark.slow),
    ],
)  # fmt: skip
@MODES
def test_what_a_job_writes_is_counted_wherever_it_hides_it(tmp_path: Path, mode: str, way: str, where: str) -> None:
    with open_folder() as folder:
        walled = Walled(folder, options=confined(mode, "--scratch", "40MiB"))

        async def body(admin: Admin) -> None:
            settings: dict[str, Any] = {"arguments": {"way": way, "where": where}, "patience": 120.0}
            await walled.run(admin, write_job(tmp_path / "hoards", HOARDER, **settings), state="failed")
            (job,) = await admin.jobs()
            assert "more than the 41,943,040 that jobs may write here" in str(job["error"])
            await admin.delete(job["job"])
            assert list((walled.place("server") / "jobs").iterdir()) == []

        played(walled, body)


INTRUDER = """
import ctypes
import json
import os
import socket

libc = ctypes.CDLL(None, use_errno=True)


def called(number, *words):
    ctypes.set_errno(0)
    return 0 if libc.syscall(number, *words) >= 0 else ctypes.get_errno()


def opened(family):
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
        return 0
    except OSError as error:
        return error.errno


async def run(fed, calls, families):
    print("intruder", json.dumps([[called(number, *[0] * 6) for number in calls], [opened(family) for family in families]]), flush=True)
"""


@pytest.mark.skipif(bool(why_open()), reason=f"system calls cannot be shut here: {why_open()}")
@MODES
def test_a_job_reaches_no_keyring_no_other_process_and_no_other_socket(tmp_path: Path, mode: str) -> None:
    calls = {"x86_64": [248, 250, 321, 323, 298, 101, 310, 425], "aarch64": [217, 219, 280, 282, 241, 117, 270, 425]}
    with open_folder() as folder:
        walled = Walled(folder, options=confined(mode))

        async def body(admin: Admin) -> None:
            arguments = {"calls": calls[platform.machine()], "families": [1, 2, 16, 17, 38, 40]}
            said = await walled.run(admin, write_job(tmp_path / "intrudes", INTRUDER, arguments=arguments))
            got = told(said["server"], "intruder")
            assert got[0] == [errno.EPERM] * 8
            assert got[1] == [0, 0, *[errno.EAFNOSUPPORT] * 4]

        played(walled, body)


GLUTTON = """
import mmap
import os
import signal

import atoll

MIB = 1 << 20


def shared():
    return [mmap.mmap(-1, 100 * MIB), ] + [fill(mmap.mmap(-1, 100 * MIB)) for _ in range(7)]


def fill(view):
    for at in range(0, len(view), 4096):
        view[at] = 1
    return view


def memory_file():
    files = []
    for number in range(7):
        files.append(os.memfd_create(str(number)))
        for _ in range(100):
            os.write(files[-1], bytes(MIB))
    return files


def unmapped():
    # Mapped, and the file closed: the mapping alone is left.
    kept = []
    for number in range(7):
        file = os.memfd_create(str(number))
        os.ftruncate(file, 100 * MIB)
        kept.append(fill(mmap.mmap(file, 100 * MIB)))
        os.close(file)
    return kept


def named():
    for number in range(7):
        with open(f"/dev/shm/glutton-{os.getpid()}-{number}", "wb") as file:
            for _ in range(100):
                file.write(bytes(MIB))


def children():
    for _ in range(7):
        if os.fork() == 0:
            os.setsid()
            kept = bytearray(100 * MIB)
            fill(kept)
            signal.pause()


def plants():
    open("/dev/planted", "wb")


@atoll.task
def eat(island, message):
    try:
        kept = globals()[message["way"]]()
    except OSError as error:
        print("refused", error.strerror, flush=True)
        return {"n": atoll.Sum(1.0)}
    print("eaten", flush=True)
    signal.pause()


async def run(fed, way):
    await fed.sum(fed.parties, eat, {"way": way})
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the system tells of processes' memory below /proc on Linux alone")
@pytest.mark.parametrize("way", ["shared", *(pytest.param(way, marks=pytest.mark.slow) for way in ("children", "memory_file", "unmapped"))])  # fmt: skip
@MODES
def test_memory_is_bounded_for_all_processes_of_a_job_together(tmp_path: Path, mode: str, way: str) -> None:
    with open_folder() as folder:
        walled = Walled(folder, options=confined(mode))

        async def body(admin: Admin) -> None:
            settings: dict[str, Any] = {"arguments": {"way": way}, "resources": {"memory": "400MiB"}, "patience": 120.0}
            await walled.run(admin, write_job(tmp_path / "eats", GLUTTON, **settings), state="failed")
            (job,) = await admin.jobs()
            assert "bytes of memory in all its processes, more than the 419,430,400 that it may" in str(job["error"])
            assert "site 'north'" in str(job["error"])

        played(walled, body)


@SANDBOX
@pytest.mark.slow
def test_shared_memory_of_a_sandbox_has_a_size_and_its_devices_are_closed(tmp_path: Path) -> None:
    with open_folder() as folder:
        walled = Walled(folder, options=confined("always"))

        async def body(admin: Admin) -> None:
            settings: dict[str, Any] = {"resources": {"memory": "400MiB"}, "patience": 120.0}
            said = await walled.run(
                admin, write_job(tmp_path / "names", GLUTTON, arguments={"way": "named"}, **settings)
            )
            assert "refused No space left on device" in said["north"]
            said = await walled.run(
                admin, write_job(tmp_path / "plants", GLUTTON, arguments={"way": "plants"}, **settings)
            )
            assert "refused Read-only file system" in said["north"]

        played(walled, body)


BLINDING = """
import os
import signal
from pathlib import Path


async def run(fed):
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\\0")
        if b"atoll.runtime.confinement.watching" in words and str(Path.cwd()).encode() in words[-2]:
            print("blinded", flush=True)
            os.kill(int(path.parent.name), signal.SIGKILL)
    signal.pause()
"""


@pytest.mark.slow
def test_a_job_that_ends_the_process_that_watches_it_ends_too(tmp_path: Path) -> None:
    """Without a sandbox, where it sees that process."""
    with open_folder() as folder:
        walled = Walled(folder, options=confined("never"))

        async def body(admin: Admin) -> None:
            said = await walled.run(admin, write_job(tmp_path / "blinds", BLINDING, patience=120.0), state="failed")
            assert "blinded" in said["server"]
            (job,) = await admin.jobs()
            assert "the process that watches what the job takes has ended, with exit code -9" in str(job["error"])

        played(walled, body)
