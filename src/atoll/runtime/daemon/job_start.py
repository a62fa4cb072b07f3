"""How the process of a job starts, as far as it does not depend on the job: its lines, who watches it, its limits and its walls."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from atoll.core.errors import AtollError, JobError, TaskError

from ..confinement.sandbox import Confinement, JobGroup, delegated_group
from ..confinement.walls import JobLimits, Walls
from ..confinement.watching import WatchOrder
from .processes import Process

__all__ = ["JobSocket", "JobStart", "JobWatch", "Lines", "SocketServer", "StartedProcess", "error_of"]


# ------------------------------------------------------------------ lines of output for a log: in batches, and no more than a person could read


EVERY = 0.1
"""Seconds that a line waits for more lines."""
MOST = 500
"""Lines of one batch; lines beyond that are counted and left out."""


class Lines:
    """Collects lines, and sends them in batches.

    Attributes:
        send: takes a batch.
    """

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self.send = send
        self._lines: list[str] = []
        self._left_out = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, line: str) -> None:
        """Add one line."""
        if len(self._lines) >= MOST:
            self._left_out += 1
            return
        self._lines.append(line)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(EVERY, self.flush)

    def flush(self) -> None:
        """Send the collected lines now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._left_out:
            self._lines.append(f"[{self._left_out} more lines within {EVERY:g} s, left out]")
        lines, self._lines, self._left_out = self._lines, [], 0
        if lines:
            self.send(lines)


# ------------------------------------------------------------------ who watches what a job takes


class JobWatch:
    """The process that watches what a job takes, see `atoll.runtime.confinement.watching`.

    Args:
        running: the process.
    """

    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self._running = running
        self._saying = asyncio.create_task(self._read_report())

    @classmethod
    async def start(cls) -> JobWatch:
        """Start the process, which waits to be told what to watch.

        Raises:
            TaskError: the system cannot start the process.
        """
        words = [sys.executable, "-m", "atoll.runtime.confinement.watching"]
        quiet, pipe = asyncio.subprocess.DEVNULL, asyncio.subprocess.PIPE
        try:
            return cls(
                await asyncio.create_subprocess_exec(
                    *words, stdin=pipe, stdout=pipe, stderr=quiet, start_new_session=True
                )
            )
        except OSError as error:
            raise TaskError(
                f"a job cannot be watched: {error.strerror or error}",
                where="the job's process",
                remedy="free memory or processes on this machine, then submit again",
            ) from error

    def begin(self, order: WatchOrder) -> None:
        """Tell it what to watch."""
        if self._running.stdin is not None:
            self._running.stdin.write(f"{json.dumps(asdict(order))}\n".encode())

    async def wait_for_end(self) -> AtollError | None:
        """Wait for its end; return why it has ended the job, or None if the job ended by itself."""
        return await asyncio.shield(self._saying)

    async def _read_report(self) -> AtollError | None:
        out = b"" if self._running.stdout is None else await self._running.stdout.read()
        await self._running.wait()
        said = out.partition(b"\n")[0]
        if said:
            return error_of(json.loads(said))
        if self._running.returncode:
            return TaskError(
                f"the process that watches what the job takes has ended, with exit code {self._running.returncode}",
                where="the job's process",
                remedy="see what ended it on this machine, then resume the job",
            )
        return None

    def stop(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            self._running.kill()


def error_of(said: Mapping[str, Any]) -> AtollError:
    """Return the error of a job that was ended."""
    if said["of"] == "scratch":
        return TaskError(
            f"the job has written {said['found']:,} bytes, more than the {said['most']:,} that jobs may write here",
            where="the job's process",
            remedy="let the job write less, or start the server or site with --scratch and a larger size",
        )
    if said["of"] == "memory":
        return JobError(
            f"the job has taken {max(said['found'], said['most'] + 1):,} bytes of memory in all its processes, more than the {said['most']:,} that it may",
            where="the job's process",
            remedy="ask for more (resources: {memory: ...}), or use fewer processes, smaller batches or models",
        )
    return TaskError(
        f"what the job takes of this machine cannot be measured: {said['why']}",
        where="the job's process",
        remedy="look at the job's own code, and at who has signed it",
    )


# ------------------------------------------------------------------ the process


MODULE = "atoll.runtime.worker"
_SOCKETS = "atoll-db-"


@dataclass(frozen=True)
class JobSocket:
    """A Unix socket in a folder of its own, through which a job's process reaches something that its daemon leads it to; who connects waits until the daemon serves it.

    Attributes:
        folder: only this user may enter.
        socket: listens.
    """

    folder: Path
    socket: socket.socket

    @classmethod
    def make(cls, name: str) -> JobSocket:
        """Listen at a name in a new folder, and remove the folders that a killed daemon has left.

        Raises:
            OSError: no socket can be made.
        """
        above = Path(tempfile.gettempdir())
        _sweep(above, name)
        folder = Path(tempfile.mkdtemp(prefix=_SOCKETS))  # the path of a socket is short
        listening = socket.socket(socket.AF_UNIX)
        try:
            listening.bind(str(folder / name))
            listening.listen()
        except OSError:
            listening.close()
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(folder, listening)

    def close(self) -> None:
        """Listen no more, and remove the folder."""
        self.socket.close()
        shutil.rmtree(self.folder, ignore_errors=True)


class SocketServer(Protocol):
    """Serves at the socket of a job's process."""

    name: str
    """The socket's name."""

    async def start(self, at: JobSocket | None) -> JobSocket:
        """Serve at the socket of a process that is ready, or at a new one, and return it."""
        ...


def _sweep(above: Path, name: str) -> None:
    """Remove sockets that a killed daemon has left: nobody listens there."""
    for left in above.glob(f"{_SOCKETS}*/{name}"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as one:
            try:
                one.connect(str(left))
            except ConnectionRefusedError:
                shutil.rmtree(left.parent, ignore_errors=True)


@dataclass(frozen=True)
class JobStart:
    """How the process of a job starts, as far as it does not depend on the job: what two jobs have in common if one process could serve either.

    Attributes:
        confinement: how jobs are confined.
        limits: what it may take.
        reads: files and folders that it may read, beside its own.
        environment: its further variables.
        devices: whether it may use the machine's accelerators.
        socket: the name of a socket that it finds in a folder of its own; empty for none.
    """

    confinement: Confinement
    limits: JobLimits
    reads: tuple[Path, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    devices: bool = False
    socket: str = ""

    async def begin(
        self,
        arguments: Callable[[int], Sequence[str]],
        code: Path,
        state: Path,
        lines: Lines,
        socket: JobSocket | None = None,
    ) -> StartedProcess:
        """Start the process.

        Args:
            arguments: of the worker, given the number of its end of the socket.
            code: the folder of an attempt, with ``scratch`` in it.
            state: what it may write that outlives the attempt.
            lines: takes its output.
            socket: the socket that it finds.

        Raises:
            TaskError: the system cannot start it.
        """
        group, home = _make_group(self.limits) if self.limits.memory else None, code / "scratch"
        shown = () if socket is None else (socket.folder,)
        walls = Walls(home, (*self.reads, *shown, code), (state,), devices=self.devices, shared=self.limits.memory // 2)
        try:
            process = await Process.start(
                MODULE, arguments, folder=home, on_line=lines.add, environment=dict(self.environment),
                confinement=self.confinement, limits=self.limits, walls=walls, group=group,
            )  # fmt: skip
        except BaseException:
            if group is not None:
                group.remove()
            raise
        return StartedProcess(process, group, lines, code, state, socket=socket)


@dataclass(frozen=True)
class StartedProcess:
    """A process of a job that has been started, and has no line yet.

    Attributes:
        process: the process.
        group: its control group, if it has one.
        lines: its output, for the log.
        code: the folder of the attempt as the process has it.
        state: the same of what outlives the attempt.
        watch: the process that will watch it, if that is started too.
        socket: the socket that it finds.
    """

    process: Process
    group: JobGroup | None
    lines: Lines
    code: Path
    state: Path
    watch: JobWatch | None = None
    socket: JobSocket | None = None

    async def end(self) -> None:
        """End it, and what belongs to it."""
        if self.process.alive:
            await asyncio.shield(self.process.stop(0.0))
        if self.watch is not None:
            self.watch.stop()
            await self.watch.wait_for_end()
        self.lines.flush()
        if self.group is not None:
            self.group.remove()


def _make_group(limits: JobLimits) -> JobGroup | None:
    """Return a control group for a job, where this daemon may make one."""
    above = delegated_group()
    with contextlib.suppress(OSError):
        return None if above is None else JobGroup.make(above, limits.memory, limits.processes)
    return None
