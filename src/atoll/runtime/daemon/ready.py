"""Processes that a daemon starts ahead of the jobs that will use them: loading Python's modules takes longer than answering most statements does.

A job's process starts as it always does, with the same walls, limits and filter of system calls; only earlier, in empty folders of its own.
There it loads what a kind of job needs, all of it installed here, and waits. When a job comes that would have started just so, the daemon
puts the job's files into those folders, moves the folders to the job's place, and sends the path of the order. A folder that is moved stays
where it was for a process that has it mounted (rename(2), mount_namespaces(7)). So a process still serves one job, has seen nothing before
it, and ends with it. A socket to the site's database it finds in a folder that nobody serves before its job comes.

A ready process does not serve a job whose limits, walls or variables differ from its own, or whose data have been replaced since it
started: in a sandbox it would read the file that was there. Such a job's process starts with the job.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from atoll.core.errors import TaskError
from atoll.core.rooms import ready_modules

from ..bundle import SOURCE
from ..confinement.folders import remove_tree
from ..worker.letters import pulsing
from .job_start import JobSocket, JobStart, JobWatch, Lines, StartedProcess
from .place import Place

__all__ = ["ReadyProcesses"]

_LOG = logging.getLogger("atoll.runtime")
_IDLE = 600.0
"""Seconds that a process waits for a job: then the machine has its memory back."""


@dataclass(frozen=True)
class _Kept:
    """A process that waits for a job: how it started, for which kind, in which folder, which files its data were then, and whether it has come so far that its folders may move."""

    start: JobStart
    kind: str
    folder: Path
    seen: tuple[Any, ...]
    started: StartedProcess
    there: asyncio.Task[bool]


class ReadyProcesses:
    """The process that a daemon keeps ready for the next job of a kind that says which modules it needs (``READY`` of a room); one at most.

    There is none before the first such job, and none once ten minutes have passed without one.

    Args:
        folder: the daemon's own.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "ready"
        self._kept: _Kept | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        with contextlib.suppress(OSError):  # of a daemon that was killed
            remove_tree(self._folder)

    async def take(
        self, start: JobStart, kind: str, place: Place, code: Path, alive: Callable[[], Awaitable[None]]
    ) -> StartedProcess | None:
        """Return the process that is ready, if the job could have started it; its folders are the job's from now on.

        Args:
            start: how the job's process is to start.
            kind: the kind of job.
            place: the job's place.
            code: the unpacked bundle, whose files move.
            alive: called now and then while a process that has just been started works.

        Raises:
            TaskError: the files cannot be moved.
        """
        kept = self._kept
        if kept is None or kept.kind != kind or place.state.exists() or (code / SOURCE).exists():
            return None  # modules that a job brings come before those that are installed
        self._forget()
        fits = kept.start == start and kept.seen == _identify(start.reads)
        async with pulsing(alive, spent=kept.started.process.cpu):
            fits = fits and await asyncio.shield(kept.there)
        if not fits or not kept.started.process.alive:
            self._spawn(_discard(kept.started, kept.folder, kept.there))
            return None
        try:
            await asyncio.to_thread(_move, kept.folder, place, code)
        except OSError as error:
            self._spawn(_discard(kept.started, kept.folder, kept.there))
            if not place.state.exists():  # the first to move: its folder has gone, and the job has all of its files
                return None
            raise TaskError(
                f"the job's folder cannot be made: {error.strerror or error}",
                where=str(place.folder),
                remedy="free space or fix the permissions there, then submit again",
            ) from error
        # A sandbox has the folders where they were; without one, the process finds them where they are.
        return kept.started if start.confinement.confined else replace(kept.started, code=code, state=place.state)

    def follow(self, start: JobStart, kind: str, started: StartedProcess) -> None:
        """Start a process for the next job of the kind once this one's has ended.

        Args:
            start: how it started.
            kind: the kind of job.
            started: its process.
        """
        modules = ready_modules(kind)
        if modules and not start.devices:
            self._spawn(self._replace(start, kind, modules, _identify(start.reads), started))

    async def close(self) -> None:
        """End the process that waits."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        kept = self._forget()
        if kept is not None:
            await _discard(kept.started, kept.folder, kept.there)
        with contextlib.suppress(OSError):
            await asyncio.to_thread(remove_tree, self._folder)

    async def _replace(
        self, start: JobStart, kind: str, modules: Sequence[str], seen: tuple[Any, ...], before: StartedProcess
    ) -> None:
        await before.process.wait()
        if self._kept is not None or _identify(start.reads) != seen:
            return
        folder = self._folder / secrets.token_hex(8)
        code, state = folder / "attempt", folder / "state"
        started = None
        try:
            await asyncio.to_thread(_make, code / "scratch", state)
            words, way = ["--ready", *modules], None
            if start.socket:
                way = await asyncio.to_thread(JobSocket.make, start.socket)
            try:
                started = await start.begin(lambda fd: [str(fd), *words], code, state, Lines(_log), way)
            finally:
                if started is None and way is not None:
                    way.close()
            started = replace(started, watch=await JobWatch.start())
        except (TaskError, OSError) as error:
            _LOG.warning("no process is kept ready: %s", error)
            await _discard(started, folder)
            return
        except BaseException:
            await _discard(started, folder)
            raise
        if self._kept is not None:  # two jobs have ended at once
            await _discard(started, folder)
            return
        there = asyncio.create_task(_is_there(started))
        self._kept = _Kept(start, kind, folder, seen, started, there)
        self._timer = asyncio.get_running_loop().call_later(_IDLE, self._expire)

    def _expire(self) -> None:
        kept = self._forget()
        if kept is not None:
            self._spawn(_discard(kept.started, kept.folder, kept.there))

    def _forget(self) -> _Kept | None:
        kept, self._kept = self._kept, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return kept

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _identify(paths: Sequence[Path]) -> tuple[Any, ...]:
    """Which files and folders lie at some paths now."""
    found: list[Any] = []
    for path in paths:
        try:
            at = path.stat()
            found.append((at.st_dev, at.st_ino))
        except OSError:
            found.append(None)
    return tuple(found)


async def _is_there(started: StartedProcess) -> bool:
    """Wait until a process says that it runs; before, its sandbox may still look for its folders."""
    with contextlib.suppress(OSError):
        started.process.socket.setblocking(False)
        return bool(await asyncio.get_running_loop().sock_recv(started.process.socket, 1))
    return False


def _make(*folders: Path) -> None:
    for folder in folders:
        folder.mkdir(mode=0o700, parents=True)


def _move(folder: Path, place: Place, code: Path) -> None:
    """Give a job the folders of a process that waits: no job has had a part in either yet."""
    (folder / "state").rename(place.state)
    for path in list(code.iterdir()):
        path.rename(folder / "attempt" / path.name)
    code.rmdir()
    (folder / "attempt").rename(code)
    folder.rmdir()


async def _discard(started: StartedProcess | None, folder: Path, there: asyncio.Task[bool] | None = None) -> None:
    if started is not None:
        try:
            await asyncio.shield(started.end())
            if there is not None:
                await there
        finally:  # also where the daemon stops meanwhile
            started.process.socket.close()  # no line has it
            if started.socket is not None:
                await asyncio.to_thread(started.socket.close)
    with contextlib.suppress(OSError):
        await asyncio.to_thread(remove_tree, folder)


def _log(lines: list[str]) -> None:
    for line in lines:
        _LOG.info("a process that is kept ready: %s", line)
