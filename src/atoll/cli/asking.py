"""Requests to a server from the command line: the kit, the connection, and the texts."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from rich.markup import escape

from atoll.core.errors import AtollError, ConfigError
from atoll.core.requests.wire import unpack_error
from atoll.runs.log import one_line

from .app import INTERRUPT_CODE
from .output import Output

if TYPE_CHECKING:
    from atoll.core.requests.policy import SitePolicy
    from atoll.runtime.admin import Admin
    from atoll.runtime.confinement.sandbox import Confinement
    from atoll.runtime.provision import Kit

__all__ = [
    "COLOURS",
    "Confine",
    "JobName",
    "KitOption",
    "NetworkOfJobs",
    "PassphraseFile",
    "Scratch",
    "ServerOption",
    "Show",
    "asked",
    "confined_as",
    "ending",
    "error_of",
    "goes_on",
    "id_of",
    "in_order",
    "line_of",
    "logging_on",
    "moment",
    "moment_of",
    "open_kit",
    "serving",
    "telling",
    "waited",
    "why_of",
]


# How jobs are confined, from the command line.


_LOG = logging.getLogger("atoll.runtime")

Confine = Annotated[
    str,
    typer.Option(
        "--confine",
        envvar="ATOLL_CONFINE",
        help="Confine jobs in a sandbox: auto (where possible), always (or do not start), never.",
        metavar="MODE",
    ),
]
Show = Annotated[
    list[Path] | None,
    typer.Option("--show", help="File or folder that confined jobs may read, beside the data.", metavar="PATH"),
]
NetworkOfJobs = Annotated[bool, typer.Option("--network", help="Let confined jobs use this machine's network.")]

Scratch = Annotated[
    str | None,
    typer.Option(
        "--scratch", help="Most that a job may write in total, such as 200GiB; by default 64GiB.", metavar="SIZE"
    ),
]


def confined_as(
    mode: str,
    show: list[Path] | None,
    network: bool,
    policy: SitePolicy | None = None,
    *,
    scratch: str | None = None,
) -> Confinement:
    """Return how jobs are confined, and say it in the first line of the log.

    Args:
        mode: see ``Confine``.
        show: see ``Show``.
        network: see ``NetworkOfJobs``.
        policy: the site's.
        scratch: see ``Scratch``.

    Raises:
        ConfigError: jobs must be confined, and cannot be; or the size is none.
    """
    from atoll.runtime.confinement.sandbox import SCRATCH, confinement
    from atoll.runtime.resources import bytes_of

    most = SCRATCH if scratch is None else bytes_of(int(scratch) if scratch.isdigit() else scratch, "--scratch")

    insists = policy is not None and policy.confined
    where = "policy of the site" if insists else "--confine"
    made = confinement("always" if insists else mode, network=network, show=show or (), where=where)
    _LOG.log(logging.INFO if made.confined else logging.WARNING, "%s", made)
    return replace(made, scratch=most)


T = TypeVar("T")
_LOG_BYTES = 10 << 20
"""Bytes of a daemon's log before it is rotated; five older ones are kept."""

KitOption = Annotated[
    Path | None,
    typer.Option("--kit", envvar="ATOLL_KIT", help="Your startup kit; or set ATOLL_KIT.", metavar="FOLDER"),
]
ServerOption = Annotated[
    str | None, typer.Option("--server", help="The server's address, instead of the kit's.", metavar="HOST:PORT")
]
PassphraseFile = Annotated[
    Path | None, typer.Option("--passphrase-file", help="File whose first line decrypts the kit's key.", metavar="FILE")
]

JobName = Annotated[
    str,
    typer.Argument(help="The job's id, as `atoll jobs` shows it, or its number.", metavar="JOB", show_default=False),
]

COLOURS = {"finished": "green", "running": "cyan", "failed": "red", "aborted": "yellow"}


def open_kit(folder: Path | None, passphrase_file: Path | None = None) -> Kit:
    """Open a kit. From here on, this process keeps its memory to itself, and has forgotten the passphrase's variable.

    Raises:
        ConfigError: no kit was given, or it cannot be read.
    """
    from atoll.runtime.provision import Kit, find_passphrase
    from atoll.runtime.provision.keys import close_memory

    if folder is None:
        raise ConfigError(
            "no kit was given", where="--kit", remedy="give --kit FOLDER, or set ATOLL_KIT to the folder of your kit"
        )
    close_memory()
    return Kit.read(folder, find_passphrase(passphrase_file, forget=True))


def asked(kit: Kit, server: str | None, body: Callable[[Admin], Awaitable[T]]) -> T:
    """Run ``body`` with a connection to the server."""
    from atoll.runtime.admin import Admin

    async def main() -> T:
        async with Admin(kit, server) as admin:
            return await body(admin)

    return asyncio.run(main())


async def id_of(admin: Admin, job: str) -> str:
    """The id of a job, given its id or the number that the id begins with: 3 for 00000003-…."""
    if not job.isdecimal() or len(job) > 18:
        return job
    return str((await admin.job(int(job)))["job"])


def serving(work: Coroutine[Any, Any, None]) -> int:
    """Run a daemon until it ends, or until Ctrl-C or SIGTERM stops it in order."""
    from atoll.heap import keep_freed_memory

    keep_freed_memory()
    _, stopped = in_order(work)
    return INTERRUPT_CODE if stopped == signal.SIGINT else 0


def in_order(work: Coroutine[Any, Any, T]) -> tuple[T | None, int | None]:
    """Run something until it ends, or until Ctrl-C or SIGTERM cancels it and it has cleaned up.

    Returns:
        The result and None; or None and the number of the signal.
    """

    async def main() -> tuple[T | None, int | None]:
        loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
        stopped: list[int] = []

        def stop(number: int) -> None:
            stopped.append(number)
            task.cancel()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        try:
            return await task, None
        except asyncio.CancelledError:
            if not stopped:
                raise
            return None, signal.SIGINT if signal.SIGINT in stopped else stopped[0]

    return asyncio.run(main())


@contextlib.contextmanager
def logging_on(output: Output, folder: Path) -> Iterator[None]:
    """Log as a daemon does: JSON lines to its folder, short lines to stderr.

    Raises:
        ConfigError: the folder cannot be created.
    """
    from atoll.runs.log import logger, logging_to
    from atoll.runtime.provision.keys import make_folder

    class Shown(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            line = one_line(f"{moment(record.created)} {record.levelname.lower()}: {record.getMessage()}")
            output.console.print(line, markup=False, soft_wrap=True)

    make_folder(folder, "--folder")
    shown, propagates = Shown(logging.INFO), logger.propagate
    with logging_to(folder / "log.jsonl", most=_LOG_BYTES):
        logger.addHandler(shown)
        logger.propagate = False
        try:
            yield
        finally:
            logger.removeHandler(shown)
            logger.propagate = propagates


def error_of(job: dict[str, Any]) -> AtollError | None:
    """The error that ended a job, as it was raised where it happened."""
    found = None if job["error"] is None else unpack_error(job["error"])
    return found if isinstance(found, AtollError) else None


def why_of(job: dict[str, Any]) -> str:
    """Why a job is in its state: of a failure, where it happened, too, which names the site."""
    place = (job["error"] or {}).get("where")
    return f"{place}: {job['reason']}" if place and place not in job["reason"] else str(job["reason"])


def line_of(job: dict[str, Any]) -> str:
    """A job in one line."""
    colour, why = COLOURS.get(job["state"], "white"), why_of(job)
    shown = f"  {why}" if why and job["state"] != "finished" else ""
    return (
        f"{job['job']}  {escape(one_line(job['name']))}  [{colour}]{job['state']}[/{colour}]{escape(one_line(shown))}"
    )


def telling(output: Output) -> Callable[[dict[str, Any]], None]:
    """Return a function that prints a job whenever its line changes; new log lines of a job change nothing here."""
    last = ""

    def tell(job: dict[str, Any]) -> None:
        nonlocal last
        before, last = last, line_of(job)
        if last != before:
            output.note(f"[dim]{moment(job['times'][-1][1] if job['times'] else job['created'])}[/dim] {last}")

    return tell


def goes_on(job: str) -> str:
    """A sentence on a job that you stop watching."""
    return f"The job continues; `atoll abort {escape(job)}` ends it."


async def waited(admin: Admin, job: dict[str, Any], output: Output) -> dict[str, Any]:
    """Wait for a job's end and return the job; if you interrupt the wait, the job keeps running."""
    output.if_stopped = goes_on(job["job"])
    return await admin.wait(job["job"], telling(output))


def moment(seconds: float) -> str:
    """Format seconds since 1970 as date and time."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S}"


def moment_of(text: str, now: float) -> float:
    """Return seconds since 1970 of ``2026-01-31``, ``2026-01-31 18:30`` (UTC), or ``90m``, ``36h`` or ``7d`` ago.

    Raises:
        ConfigError: it is none of these.
    """
    unit = {"m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[-1:])
    try:
        if unit is not None and 0 <= float(text[:-1]) < 1e9:
            return now - unit * float(text[:-1])
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError as error:
        raise ConfigError(
            f"{text!r} is not a time", where="--since", remedy="write 2026-01-31, '2026-01-31 18:30' (UTC), 36h or 7d"
        ) from error


def ending(job: dict[str, Any], output: Output) -> int:
    """Print a job as the answer; an error that ended the job becomes the command's error.

    Raises:
        AtollError: the error that ended the job.
    """
    error = error_of(job)
    if error is not None:
        raise error
    output.give(job, line_of(job))
    return 1 if job["state"] == "aborted" else 0
