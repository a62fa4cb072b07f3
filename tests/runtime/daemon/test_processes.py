"""Job processes: their socket, their lines, and that none is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from atoll.core.errors import TaskError
from atoll.core.time.meter import cpu_seconds
from atoll.runtime.daemon.child import ORPHANED
from atoll.runtime.daemon.processes import LINE, Process

pytestmark = pytest.mark.network

ECHO = """
import os, socket, sys
sock = socket.socket(fileno=int(sys.argv[1]))
print("words", *sys.argv[2:], flush=True)
print("error", file=sys.stderr, flush=True)
print("kit", os.environ.get("ATOLL_KIT"), os.environ.get("ADDED"), flush=True)
sock.sendall(sock.recv(100).upper())
print("x" * 20000)
print("last, without an end", end="")
sys.exit(3)
"""
STUBBORN = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal; signal.signal(15, 1); print('up', flush=True); signal.pause()"])
print("child", child.pid, flush=True)
signal.pause()
"""
BUSY = """
import time
end = time.process_time() + 0.3
while time.process_time() < end: pass
print("worked", flush=True)
import signal; signal.pause()
"""


class Lines(list[str]):
    """What a process said; ``until`` waits for a line."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def append(self, line: str) -> None:
        super().append(line)
        self._news.set()

    async def until(self, start: str) -> str:
        async with asyncio.timeout(60):
            while True:
                for line in self:
                    if line.startswith(start):
                        return line
                self._news.clear()
                await self._news.wait()


async def begin(folder: Path, text: str, lines: Lines, *words: str) -> Process:
    (folder / "piece.py").write_text(text, encoding="utf-8")
    environment = {"PYTHONPATH": os.pathsep.join([str(folder), *sys.path]), "ADDED": "yes"}
    return await Process.start(
        "piece", lambda fd: [str(fd), *words], folder=folder, on_line=lines.append, environment=environment
    )


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] in "ZX"
    except FileNotFoundError:
        return True


def wait_gone(pid: int) -> None:
    deadline = time.monotonic() + 60
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} is still there"
        os.sched_yield()


def test_a_process_talks_over_its_socket_and_its_lines_are_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATOLL_KIT", "where/keys/are")

    async def body() -> tuple[int, bytes, Lines]:
        lines = Lines()
        process = await begin(tmp_path, ECHO, lines, "a", "b")
        process.socket.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_sendall(process.socket, b"hello")
        said = await loop.sock_recv(process.socket, 100)
        process.socket.close()
        return await process.wait(), said, lines

    code, said, lines = asyncio.run(body())
    assert (code, said) == (3, b"HELLO")
    assert lines[:3] == ["words a b", "error", "kit None yes"]  # no key's place is handed down
    assert lines[3] == "x" * LINE + " [cut off]"
    assert lines[4:] == ["last, without an end"]


def test_stopping_kills_what_does_not_end_and_all_it_started(tmp_path: Path) -> None:
    async def body() -> tuple[int, int]:
        lines = Lines()
        process = await begin(tmp_path, STUBBORN, lines)
        process.socket.close()
        child = int((await lines.until("child")).split()[1])
        await lines.until("up")
        assert process.alive
        code = await process.stop(grace=0.05)
        assert not process.alive
        assert await process.stop() == code  # stopping twice is no fault
        return code, child

    code, child = asyncio.run(body())
    assert code == -signal.SIGKILL
    wait_gone(child)


def test_a_process_that_ends_takes_its_children_along(tmp_path: Path) -> None:
    text = STUBBORN.removesuffix("signal.pause()\n") + "sys.exit(0)\n"

    async def body() -> int:
        lines = Lines()
        process = await begin(tmp_path, text, lines)
        process.socket.close()
        assert await process.wait() == 0
        return int((await lines.until("child")).split()[1])

    wait_gone(asyncio.run(body()))


def test_processor_time_of_the_group_is_counted(tmp_path: Path) -> None:
    async def body() -> float:
        lines = Lines()
        process = await begin(tmp_path, BUSY, lines)
        process.socket.close()
        await lines.until("worked")
        spent = process.cpu()
        await process.stop()
        return spent

    assert asyncio.run(body()) >= 0.3
    assert cpu_seconds(2**30) == 0.0


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's own")
def test_a_killed_front_takes_its_processes_along(tmp_path: Path) -> None:
    (tmp_path / "front.py").write_text(
        "import asyncio\nfrom pathlib import Path\nfrom atoll.runtime.daemon.processes import Process\n"
        "async def main():\n"
        "    p = await Process.start('piece', lambda fd: [], folder=Path('.'), on_line=lambda line: print(p.pid, flush=True))\n"
        "    await p.wait()\n"
        "asyncio.run(main())\n",
        encoding="utf-8",
    )
    (tmp_path / "piece.py").write_text("import signal; print('up', flush=True); signal.pause()", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    with subprocess.Popen(
        [sys.executable, "front.py"], cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as front:
        if front.stdout is None:
            pytest.fail("no pipe")
        pid = int(front.stdout.readline())
        assert not gone(pid)
        front.kill()
    wait_gone(pid)


def test_a_child_whose_parent_is_another_does_not_begin(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "atoll.runtime.daemon.child", "1", "0", "this"],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == ORPHANED


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def body() -> None:
        await Process.start("this", lambda fd: [], folder=tmp_path / "absent", on_line=str)

    with pytest.raises(TaskError, match="could not be started: No such file"):
        asyncio.run(body())
