"""How a daemon starts the process of a job: what it hands down, and what it gets back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from atoll.core import message
from atoll.core.errors import AtollError, JobError, TaskError
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed

from ..bundle import JOB_FILE
from ..confinement.folders import HeldFolder, remove_tree
from ..confinement.sandbox import UNCONFINED, Confinement, JobGroup, delegated_group
from ..confinement.walls import JobLimits, Walls
from ..confinement.watching import WatchOrder
from ..identity import Peer
from ..line import Channel, Line, Settings, local_line
from ..resources import Grant
from ..transport import local_pipe
from ..worker.letters import KEY_FILE, pulsing
from .place import Place
from .processes import Process, keeper_signal

__all__ = ["JobProcess", "Lines", "ProcessDiedEarly", "launch"]


# ------------------------------------------------------------------ lines of output for a log: in batches, and no more than a person could read


EVERY = 0.1
"""Seconds that a line waits for more lines."""
MOST = 500
"""Lines of one batch; lines beyond that are counted and left out."""


class Lines:
    """Collects lines, and sends them in batches.

    Args:
        send: takes a batch.
    """

    def __init__(self, send: Callable[[list[str]], None]) -> None:
        self._send = send
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
            self._send(lines)


# ------------------------------------------------------------------ how a daemon starts the process of a job: what it hands down, and what it gets back


MODULE = "atoll.runtime.worker"
_START = 120.0
"""Seconds for a process to start."""
_WORDS = 1 << 14
"""Bytes reserved for a process to report its error: the disk may be full."""
_MOST = 1 << 20
"""Bytes of the longest error that is read."""
_LAST_LOOK = 5.0
"""Seconds for the watching process to say why it has ended a job."""
_LEAVE, _KILL = 1.0, 3.0
"""Seconds for a process to end after its line was closed, and after it was asked to end."""


class ProcessDiedEarly(LinkClosed):
    """A process ended before it sent anything: it was killed, or it cannot run here.

    Args:
        code: its exit code.
        what: what happened, in words.
    """

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code


class JobWatch:
    """The process that watches what a job takes, see `atoll.runtime.confinement.watching`.

    Args:
        running: the process.
    """

    def __init__(self, running: asyncio.subprocess.Process) -> None:
        self._running = running
        self._saying = asyncio.create_task(self._read_report())

    @classmethod
    async def start(cls, order: WatchOrder) -> JobWatch:
        """Start watching.

        Raises:
            TaskError: the system cannot start the process.
        """
        words = [sys.executable, "-m", "atoll.runtime.confinement.watching", json.dumps(asdict(order))]
        quiet = asyncio.subprocess.DEVNULL
        try:
            return cls(
                await asyncio.create_subprocess_exec(
                    *words, stdin=quiet, stdout=asyncio.subprocess.PIPE, stderr=quiet, start_new_session=True
                )
            )
        except OSError as error:
            raise TaskError(
                f"a job cannot be watched: {error.strerror or error}",
                where="the job's process",
                remedy="free memory or processes on this machine, then submit again",
            ) from error

    async def wait_for_end(self) -> AtollError | None:
        """Wait for its end; return why it has ended the job, or None if the job ended by itself."""
        return await asyncio.shield(self._saying)

    async def _read_report(self) -> AtollError | None:
        out, _ = await self._running.communicate()
        said = out.partition(b"\n")[0]
        if said:
            return _error_of(json.loads(said))
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


def _error_of(said: Mapping[str, Any]) -> AtollError:
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


class JobProcess:
    """A job's process with its line.

    Args:
        process: the process.
        line: the line to it.
        told: the file with its error, if it could write one.
        lines: its output, for the log.
        group: its control group, if it has one.
    """

    def __init__(
        self, process: Process, line: Line, told: Path, lines: Lines, group: JobGroup | None = None, memory: int = 0
    ) -> None:
        self._group, self._memory = group, memory
        self._over: AtollError | None = None
        self._watch: JobWatch | None = None
        self._watching: asyncio.Task[None] | None = None
        self._process = process
        self._lines = lines
        self._line = line
        self._told = told

    async def wait(self) -> int:
        """Wait for its exit code, negative for a signal; all of its output is in the log by then."""
        code = await self._process.wait()
        if self._watching is not None and self._watch is not None:
            await asyncio.wait({self._watching}, timeout=_LAST_LOOK)
            self._watch.stop()
        if self._group is not None:
            if self._over is None and self._group.ran_out():
                self._over = _error_of({"of": "memory", "found": self._memory, "most": self._memory})
            self._group.remove()
        self._lines.flush()
        return code

    async def watch(self, folders: Sequence[Path], scratch: int, memory: int = 0) -> None:
        """Have what it takes watched by another process, which ends it beyond that; its error says so then.

        Args:
            folders: where it writes.
            scratch: bytes that it may write in total.
            memory: bytes of memory that all its processes may take together; 0 for no limit.

        Raises:
            TaskError: that process cannot be started.
        """
        end = keeper_signal(self._process.keeper)
        order = WatchOrder(os.getpid(), self._process.pid, end, scratch, memory, tuple(map(str, folders)))
        watch = self._watch = await JobWatch.start(order)

        async def look() -> None:
            self._over = await watch.wait_for_end()
            if self._over is not None and self._process.alive:
                await self._process.stop(0.0)

        self._watching = asyncio.create_task(look())

    def channel(self, name: str) -> Channel:
        """Open a channel to it.

        Raises:
            LinkClosed: it has ended.
        """
        return self._line.open(name)

    def error(self) -> Any:
        """Return the error that it reported, as ``pack_error`` gives it; None if there is none."""
        if self._over is not None:
            return pack_error(self._over)
        with contextlib.suppress(AtollError, OSError):
            with (
                HeldFolder.open(self._told.parents[1], self._told.parent.name) as home,
                home.open_file(self._told.name) as file,
            ):
                size = os.fstat(file.fileno()).st_size
                content = file.read(_MOST + 1)
            if size > _MOST:  # not written by our code: it must fill neither this daemon nor a frame
                return pack_error(
                    TaskError(
                        f"it reported an error of {size} bytes", where="the job's process", remedy="see the job's log"
                    )
                )
            return message.decode(content)
        return None

    async def clear(self) -> None:
        """Remove the attempt's code and scratch; its error has been read by now."""
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_tree, self._told.parents[1])

    def cpu(self) -> float:
        """Return the seconds of processor time that it and its children have used."""
        return self._process.cpu()

    async def stop(self) -> int:
        """End it: by closing its line, then by asking, then by force; return its exit code."""
        self._line.lose(LinkClosed("the daemon has closed the line"))
        with contextlib.suppress(TimeoutError):
            return await asyncio.wait_for(self.wait(), _LEAVE)
        await self._process.stop(_KILL)
        return await self.wait()


async def launch(
    place: Place,
    code: Path,
    *,
    role: str,
    name: str,
    data: Mapping[str, Any] | None = None,
    plays: str = "",
    sites: Sequence[str] = (),
    helpers: Mapping[str, str] | None = None,
    neighbours: Sequence[str] = (),
    letters: Mapping[str, Any] | None = None,
    allow: Sequence[str] | None = None,
    signer: str = "",
    socket: Path | None = None,
    grant: Grant | None = None,
    confinement: Confinement = UNCONFINED,
    reads: Sequence[Path] = (),
    on_lines: Callable[[list[str]], None],
    on_life: Callable[[], None] = lambda: None,
) -> JobProcess:
    """Start the process of a job at a daemon, and its line.

    Args:
        place: where the job's files are.
        code: the unpacked bundle.
        role: ``server`` or ``site``.
        name: the daemon's name.
        data: the site's data.
        plays: at a helper, what it plays.
        sites: at the server, the channels that it waits for.
        helpers: at the server, party -> the helper that plays it.
        neighbours: at a site, the other sites that it may get a channel to.
        letters: at a site, the result of `LetterKey.order`.
        allow: at a site, the names that the job's signer may run; None for anything.
        signer: at a site, who has signed the job.
        socket: at a site, the folder of the socket that leads to its database.
        grant: what it may use.
        confinement: how jobs are confined here.
        reads: files and folders that it may read if it is confined.
        on_lines: called with lines of its output.
        on_life: called now and then while it starts, as long as it works.

    Raises:
        TaskError: the system cannot start it.
        ProcessDiedEarly: it ended before it sent anything.
    """
    home, order, source = code / "scratch", code / "order.msg", code / "source"
    told, spool = home / "error.msg", home / "spool"
    said = message.encode(
        {
            "role": role, "name": name, "id": place.folder.name, "job": str(code / JOB_FILE), "source": str(source) if source.is_dir() else None,
            "state": str(place.state), "results": str(place.results), "record": str(place.record), "error": str(told), "spool": str(spool), "data": dict(data or {}),
            "confined": confinement.confined, "sites": list(sites), "plays": plays, "socket": "" if socket is None else str(socket), "helpers": dict(helpers or {}), "neighbours": list(neighbours), "letters": None if letters is None else dict(letters),
            "allow": None if allow is None else list(allow), "signer": signer,
        }
    )  # fmt: skip
    await asyncio.to_thread(_prepare, place, code, bytes(said), role == "site")
    lines, devices = Lines(on_lines), grant is not None and bool(grant.gpus)
    limits = confinement.limits(0 if grant is None else grant.need.memory, devices)
    reads = (
        *reads,
        code,
        *(() if socket is None else (socket,)),
        *((place.results, place.record / KEY_FILE) if role == "site" else ()),
    )
    group = _make_group(limits) if limits.memory else None
    process = await Process.start(
        MODULE, lambda fd: [str(fd), str(order)], folder=home, on_line=lines.add, environment={} if grant is None else grant.environment(),
        confinement=confinement, limits=limits,
        walls=Walls(home, reads, (place.state,), devices=devices, shared=limits.memory // 2), group=group,
    )  # fmt: skip
    try:
        async with pulsing(_telling(on_life), spent=process.cpu):
            made = JobProcess(
                process, await _line(process, role, name, place.folder / "spool"), told, lines, group, limits.memory
            )
            await made.watch((home, place.state), confinement.scratch, 0 if group else limits.memory)
            return made
    except BaseException:
        if process.alive:  # nothing runs that nobody watches
            await asyncio.shield(process.stop(0.0))
        lines.flush()
        if group is not None:
            group.remove()
        raise


def _make_group(limits: JobLimits) -> JobGroup | None:
    """Return a control group for a job, where this daemon may make one."""
    above = delegated_group()
    with contextlib.suppress(OSError):
        return None if above is None else JobGroup.make(above, limits.memory, limits.processes)
    return None


def _prepare(place: Place, code: Path, order: bytes, site: bool) -> None:
    """Make what a job's process finds: its order, its scratch with room for an error, and its state.

    Raises:
        TaskError: the disk is full, or something that is no folder is in the way.
    """
    try:
        place.folder.mkdir(parents=True, exist_ok=True)
        if site:
            place.results.mkdir(mode=0o700, parents=True, exist_ok=True)
        HeldFolder.open(place.folder, place.state.name, make=True).close()
        with HeldFolder.open(code) as inside:
            inside.write("order.msg", order)  # with the private key for letters
        with HeldFolder.open(code, "scratch", make=True) as home:
            home.write("error.msg", bytes(_WORDS))
    except OSError as error:
        raise TaskError(
            f"the job's folder cannot be made: {error.strerror or error}",
            where=str(place.folder),
            remedy="free space or fix the permissions there, then submit again",
        ) from error


def _telling(on_life: Callable[[], None]) -> Callable[[], Awaitable[None]]:
    async def tell() -> None:
        on_life()

    return tell


async def _line(process: Process, role: str, name: str, spool: Path) -> Line:
    settings = Settings(spool=spool, greeting=_START)
    try:
        pipe = await local_pipe(process.socket, Peer(f"{name}'s job process", role, "", 0, ""))
        return await local_line(pipe, dialled=False, settings=settings)
    except (LinkClosed, OSError) as error:
        code = await process.stop(0.0)
        raise ProcessDiedEarly(
            code, f"the job's process at {role} {name!r} ended at its start, with exit code {code}"
        ) from error
    except BaseException:
        await asyncio.shield(process.stop(0.0))
        raise
