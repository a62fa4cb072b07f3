"""How a daemon starts the process of a job: what it hands down, and what it gets back."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core import message
from atoll.core.errors import AtollError, TaskError
from atoll.core.requests.wire import pack_error
from atoll.core.sealing.hpke import KEY
from atoll.engines.link import LinkClosed

from ..bundle import JOB_FILE, SOURCE
from ..confinement.folders import HeldFolder, remove_tree
from ..confinement.sandbox import UNCONFINED, Confinement
from ..confinement.watching import WatchOrder
from ..identity import Peer
from ..line import Channel, Line, Settings, local_line
from ..resources import Grant
from ..transport import local_pipe
from ..worker.letters import KEY_FILE, pulsing
from .job_start import JobStart, JobWatch, Lines, SocketServer, StartedProcess, error_of
from .place import Place
from .processes import Process, keeper_signal
from .ready import ReadyProcesses

__all__ = ["JobProcess", "ProcessDiedEarly", "launch"]


ORDER = "order.msg"
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


class JobProcess:
    """A job's process with its line.

    Args:
        started: the process.
        line: the line to it.
        told: the file with its error, if it could write one.
        memory: bytes that it may take.
    """

    def __init__(self, started: StartedProcess, line: Line, told: Path, memory: int = 0) -> None:
        self._group, self._memory = started.group, memory
        self._over: AtollError | None = None
        self._watch = started.watch
        self._watching: asyncio.Task[None] | None = None
        self._process = started.process
        self._lines = started.lines
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
                self._over = error_of({"of": "memory", "found": self._memory, "most": self._memory})
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
        watch = self._watch = self._watch or await JobWatch.start()
        watch.begin(WatchOrder(os.getpid(), self._process.pid, end, scratch, memory, tuple(map(str, folders))))

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
    leads: SocketServer | None = None,
    grant: Grant | None = None,
    confinement: Confinement = UNCONFINED,
    reads: Sequence[Path] = (),
    on_lines: Callable[[list[str]], None],
    on_life: Callable[[], None] = lambda: None,
    ready: ReadyProcesses | None = None,
    kind: str = "",
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
        leads: at a site, leads to its database through a socket: that of the process that is ready, or a new one.
        grant: what it may use.
        confinement: how jobs are confined here.
        reads: files and folders that it may read if it is confined.
        on_lines: called with lines of its output.
        on_life: called now and then while it starts, as long as it works.
        ready: the daemon's processes that wait for a job.
        kind: the kind of job.

    Raises:
        TaskError: the system cannot start it.
        ProcessDiedEarly: it ended before it sent anything.
    """
    site, devices = role == "site", grant is not None and bool(grant.gpus)
    limits = confinement.limits(0 if grant is None else grant.need.memory, devices)
    shown, name_of_socket = (*reads, *((place.results,) if site else ())), "" if leads is None else leads.name
    variables = () if grant is None else tuple(grant.environment().items())
    start = JobStart(confinement, limits, shown, variables, devices, name_of_socket)
    alive = _telling(on_life)
    started = None if ready is None else await ready.take(start, kind, place, code, alive)
    seen_code, seen_state = (code, place.state) if started is None else (started.code, started.state)
    home, source = seen_code / "scratch", code / SOURCE
    try:
        way = None if leads is None else await leads.start(None if started is None else started.socket)
        said = message.encode(
            {
                "role": role, "name": name, "id": place.folder.name, "job": str(seen_code / JOB_FILE), "source": str(seen_code / SOURCE) if source.is_dir() else None,
                "state": str(seen_state), "results": str(place.results), "key": str(seen_code / KEY_FILE), "error": str(home / "error.msg"), "spool": str(home / "spool"), "data": dict(data or {}),
                "confined": confinement.confined, "sites": list(sites), "plays": plays, "socket": "" if way is None else str(way.folder), "helpers": dict(helpers or {}), "neighbours": list(neighbours), "letters": None if letters is None else dict(letters),
                "allow": None if allow is None else list(allow), "signer": signer,
            }
        )  # fmt: skip
        await asyncio.to_thread(_prepare, place, code, bytes(said), site, letters is not None)
        if started is None:
            started = await start.begin(lambda fd: [str(fd), str(code / ORDER)], code, place.state, Lines(on_lines), way)  # fmt: skip
        else:
            started.lines.send = on_lines
            with contextlib.suppress(OSError):  # it has died since: its line says so
                started.process.give(str(seen_code / ORDER))
        async with pulsing(alive, spent=started.process.cpu):
            line = await _line(started.process, role, name, place.folder / "spool")
            made = JobProcess(started, line, code / "scratch" / "error.msg", limits.memory)
            await made.watch((code / "scratch", place.state), confinement.scratch, 0 if started.group else limits.memory)  # fmt: skip
    except BaseException:
        if started is not None:  # nothing runs that nobody watches
            await started.end()
        raise
    if ready is not None:
        ready.follow(start, kind, started)
    return made


def _prepare(place: Place, code: Path, order: bytes, site: bool, keyed: bool) -> None:
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
            inside.write(ORDER, order)
            if keyed:  # the daemon's record, where the key outlives attempts, is shown to no job
                with place.hold_record() as record:
                    inside.write(KEY_FILE, record.read(KEY_FILE, KEY))
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
