"""How a daemon starts the process of a job: what it hands down, and what it gets back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core import message
from atoll.core.errors import AtollError, TaskError
from atoll.core.persistence.files import write_bytes, write_message
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed
from atoll.runtime.bundles.manifest import JOB_FILE
from atoll.runtime.confinement.confining import UNCONFINED, Confinement
from atoll.runtime.confinement.scratch import beyond
from atoll.runtime.confinement.walls import Walls
from atoll.runtime.identity import Peer
from atoll.runtime.line import Channel, Line, Settings, local_line
from atoll.runtime.scheduling.resources import Grant
from atoll.runtime.transport import local_pipe
from atoll.runtime.worker.pulses import pulsing

from .lines import Lines
from .own_files import open_own
from .place import Place
from .processes import Process

__all__ = ["JobProcess", "Stillborn", "launch"]

MODULE = "atoll.runtime.worker"
_START = 120.0
"""Seconds for a process to start."""
_WORDS = 1 << 14
"""Bytes reserved for a process to report its error: the disk may be full."""
_MOST = 1 << 20
"""Bytes of the longest error that is read."""
_LEAVE, _KILL = 1.0, 3.0
"""Seconds for a process to end after its line was closed, and after it was asked to end."""


class Stillborn(LinkClosed):
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
        process: the process.
        line: the line to it.
        told: the file with its error, if it could write one.
        lines: its output, for the log.
    """

    def __init__(self, process: Process, line: Line, told: Path, lines: Lines) -> None:
        self._over: TaskError | None = None
        self._looking: asyncio.Task[None] | None = None
        self._process = process
        self._lines = lines
        self._line = line
        self._told = told

    async def wait(self) -> int:
        """Wait for its exit code, negative for a signal; all of its output is in the log by then."""
        code = await self._process.wait()
        if self._looking is not None:
            self._looking.cancel()
        self._lines.flush()
        return code

    def bound(self, folders: Sequence[Path], most: int) -> None:
        """End it once its folders hold more than so many bytes; its error says so."""

        async def look() -> None:
            found = await beyond(folders, most)
            self._over = TaskError(
                f"the job has written {found:,} bytes, more than the {most:,} that jobs may write here",
                where="the job's process",
                remedy="let the job write less, or start the server or site with --scratch and a larger size",
            )
            await self._process.stop(_KILL)

        self._looking = asyncio.create_task(look())

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
            with open_own(self._told) as file:
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
        await asyncio.to_thread(shutil.rmtree, self._told.parents[1], ignore_errors=True)

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
        grant: what it may use.
        confinement: how jobs are confined here.
        reads: files and folders that it may read if it is confined.
        on_lines: called with lines of its output.
        on_life: called now and then while it starts, as long as it works.

    Raises:
        TaskError: the system cannot start it.
        Stillborn: it ended before it sent anything.
    """
    home, order, source = code / "scratch", code / "order.msg", code / "source"
    kept = (place.state, *((place.results,) if role == "site" else ()))
    for folder in (home, *kept):
        folder.mkdir(parents=True, exist_ok=True)
    told, spool = home / "error.msg", home / "spool"
    write_message(
        order,
        {
            "role": role, "name": name, "id": place.folder.name, "job": str(code / JOB_FILE), "source": str(source) if source.is_dir() else None,
            "state": str(place.state), "results": str(place.results), "error": str(told), "spool": str(spool), "data": dict(data or {}),
            "confined": confinement.confined, "sites": list(sites), "plays": plays, "helpers": dict(helpers or {}), "neighbours": list(neighbours), "letters": None if letters is None else dict(letters),
            "allow": None if allow is None else list(allow),
        },
    )  # fmt: skip
    lines, devices = Lines(on_lines), grant is not None and bool(grant.gpus)
    write_bytes(told, bytes(_WORDS))
    process = await Process.start(
        MODULE, lambda fd: [str(fd), str(order)], folder=home, on_line=lines.add, environment={} if grant is None else grant.environment(),
        confinement=confinement, limits=confinement.limits(0 if grant is None else grant.need.memory, devices),
        walls=Walls(home, (*reads, code), kept, devices=devices),
    )  # fmt: skip
    try:
        async with pulsing(_telling(on_life), spent=process.cpu):
            made = JobProcess(process, await _line(process, role, name, place.folder / "spool"), told, lines)
            made.bound((home, *kept), confinement.scratch)
            return made
    except BaseException:
        lines.flush()
        raise


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
        raise Stillborn(
            code, f"the job's process at {role} {name!r} ended at its start, with exit code {code}"
        ) from error
    except BaseException:
        await asyncio.shield(process.stop(0.0))
        raise
