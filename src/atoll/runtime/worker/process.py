"""The process of a job: started by a daemon at the server or at a site, ``python -m atoll.runtime.worker SOCKET ORDER``.

SOCKET is the number of an inherited, connected socket: the end of a line to the daemon. A process that is started ahead of its job has
``--ready MODULE…`` in place of ORDER: it loads these modules and waits for the order's path on the socket. ORDER is a message in a file:

```
role     "server" or "site"
name     of the server or site
id       of the job
job      path of the job's job.yaml
source   folder of the job's modules, or None; it takes precedence over installed modules
results  at a site: folder of the named results that stay there, of all its jobs, which this process may read
key      at a site: file of the private key for letters
state    the job's own folder, which outlives the attempt
error    file that takes the error of an attempt that would fail again
spool    folder for large messages in transit
data     at a site: its data, as ``site_spec`` gives them; a helper may have none
confined whether this process is in a sandbox
plays    at a helper: its role
socket   at a site: the folder of the socket that leads to its PostgreSQL database, if it has one
sites    at the server: the names of the channels that the daemon opens, one a site
helpers  at the server: party -> the site that plays it, of those that have no clients
neighbours  at a site: the other sites to which there may be a channel
allow    at a site: the names that the job's signer may run, or None for anything
signer   at a site: who has signed the job, for people
letters  at a site: the result of `LetterKey.order`, or None: then letters are not encrypted
```

At a site the daemon opens two channels, ``server`` and ``ledger``, and ``direct/NAME`` for each other site that it reaches directly.
Output to stdout and stderr is the job's log. Exit codes: 0, the job (at a site: its part) has ended; 1, it failed, and
the error is in the file; 75 (EX_TEMPFAIL of sysexits.h), the daemon went away.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import socket
import sys
import traceback
from collections.abc import Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core import message
from atoll.core.errors import AtollError, JobError, TaskError
from atoll.core.job import every_job
from atoll.core.persistence.files import read_message, write_message
from atoll.core.requests.wire import pack_error
from atoll.core.time.clock import run
from atoll.engines.link import LinkClosed
from atoll.heap import loading
from atoll.runs.log import logger, one_line
from atoll.runtime.line import Channel, Line, Settings, local_line
from atoll.runtime.network.daemon_ledger import CHANNEL, DaemonLedger, DaemonResults
from atoll.runtime.transport import local_pipe

from ..identity import Peer
from ..job_spec import JobConfig, importing, load_job
from .at_server import exit_error, run_job
from .at_site import alive, leaving, serve_job, trace_of
from .letters import LetterKey
from .policies import require_allowed, require_names
from .sitedata import SiteData, load_site_data
from .words import settings_of

__all__ = ["FRONT_GONE", "main", "start"]

_MEETING = 6.0
"""Seconds to wait for links to other sites once all have loaded their data; daemons try for a little less."""
_LONGEST = 4000
"""Most characters of each part of an error that is sent."""
READY = "--ready"
FRONT_GONE = 75
"""Exit code of a process whose daemon went away: nothing is wrong with the job."""


def main(argv: list[str]) -> int:
    """Carry out one order; return the exit code."""
    sock = socket.socket(fileno=int(argv[0]))
    if argv[1] == READY:
        path = await_order(sock, argv[2:])
        if path is None:
            return FRONT_GONE
    else:
        path = Path(argv[1])
    order = read_message(path)
    _log_to_stderr()
    try:
        return run(_attend(sock, order), virtual=False)
    except (SystemExit, KeyboardInterrupt) as left:  # of a task that the job's code has started, or an import
        traceback.print_exception(left)
        _tell(Path(order["error"]), _shorten_error(pack_error(exit_error(left))))
        return 1


def await_order(sock: socket.socket, modules: Sequence[str]) -> Path | None:
    """Say that this process runs, load modules, and wait for the path of an order; None if the daemon goes away. Nothing of any job is here before.

    Args:
        sock: the end of the line to the daemon, over which nothing else has gone yet.
        modules: what such a job needs, Atoll's own loaded with all that they list; one that cannot be loaded is its job's concern.
    """
    sock.sendall(b"1")
    with loading():
        for module in modules:
            with contextlib.suppress(Exception):
                found = importlib.import_module(module)
                for name in (
                    found.__all__ if module.startswith("atoll.") else ()
                ):  # a package loads them when they are first used
                    getattr(found, name)
    size = int.from_bytes(_receive(sock, 4), "big")
    path = _receive(sock, size)
    return Path(path.decode()) if path and len(path) == size else None


def _receive(sock: socket.socket, size: int) -> bytes:
    """So many bytes; fewer if the other end closes."""
    found = b""
    while len(found) < size and (part := sock.recv(size - len(found))):
        found += part
    return found


def _log_to_stderr() -> None:
    """Send what Atoll logs to the job's log, a line each."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


class _Line(logging.Formatter):
    """``message: key value, key value``."""

    def format(self, record: logging.LogRecord) -> str:
        row = getattr(record, "record", None)
        said = {k: v for k, v in row.items() if k not in ("slot", "clock", "round")} if isinstance(row, dict) else {}
        fields = ", ".join(f"{k} {v:.6g}" if isinstance(v, float) else f"{k} {v}" for k, v in said.items())
        number = f" {row['round']}" if isinstance(row, dict) and "round" in row else ""
        level = "" if record.levelno < logging.WARNING else f"{record.levelname.lower()}: "
        error = f": {record.error}" if hasattr(record, "error") else ""
        return one_line(f"{level}{record.getMessage()}{number}{error}" + (f": {fields}" if fields else ""))


async def _attend(sock: socket.socket, order: Mapping[str, Any]) -> int:
    opened: asyncio.Queue[Channel] = asyncio.Queue()
    pipe = await local_pipe(sock, Peer("daemon", str(order["role"]), "", 0, ""))
    settings = Settings(spool=Path(order["spool"]))
    line = await local_line(pipe, dialled=True, settings=settings, on_open=opened.put_nowait)
    source = None if order["source"] is None else Path(order["source"])
    try:
        with importing(source):
            await _while_there(
                line, _site(order, opened) if order["role"] == "site" else _server(order, source, opened)
            )
    except Exception as error:
        return _report_failure(error, line, Path(order["error"]), str(order["role"]))
    finally:
        await line.close(within=5.0)
    return 0


async def _while_there(line: Line, work: Coroutine[Any, Any, None]) -> None:
    """Work until done, or until the daemon is gone.

    Raises:
        LinkClosed: the daemon is gone.
    """
    working, lost = asyncio.create_task(work), asyncio.create_task(line.lost.wait())
    try:
        await asyncio.wait({working, lost}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise LinkClosed("the daemon is gone")
        working.result()
    finally:
        for task in (working, lost):
            task.cancel()
        await asyncio.gather(working, lost, return_exceptions=True)


def _report_failure(error: Exception, line: Line, told: Path, role: str) -> int:
    """Report an error, unless the daemon is gone; return the exit code."""
    if line.lost.is_set() or isinstance(error, LinkClosed):
        return FRONT_GONE
    if not isinstance(error, AtollError):
        _print_trace(error, role)
    explained = _explain_error(error)
    if explained is not error:
        explained.__cause__ = error
    _tell(told, _shorten_error(pack_error(leaving(explained) if role == "site" else explained)))
    return 1


def _print_trace(error: Exception, role: str) -> None:
    """Write a traceback to the job's log; at a site, in lines whose texts stay there."""
    if role == "site":
        sys.stderr.write("\n".join([*trace_of(error), ""]))
    else:
        traceback.print_exception(error)


def _shorten_error(error: dict[str, str | None]) -> dict[str, str | None]:
    """Shorten an error to what a frame may hold and people read; the log has all of it."""
    return {key: value if value is None else value[:_LONGEST] for key, value in error.items()}


def _tell(told: Path, error: Any) -> None:
    """Write the error; on a full disk, into the space that the daemon has reserved for it."""
    try:
        write_message(told, error)
    except AtollError:
        content = message.encode(error)
        with told.open("r+b", buffering=0) as file:
            file.write(content)
            file.truncate(len(content))


def _explain_error(error: Exception) -> AtollError:
    if isinstance(error, AtollError):
        return error
    if isinstance(error, MemoryError):
        return JobError(
            f"memory ran out: {error}" if str(error) else "memory ran out",
            where="the job's process",
            remedy="ask for more (resources: {memory: ...}), or use smaller batches or models",
        )
    return TaskError(
        f"{type(error).__name__}: {error}",
        where="the job's process",
        remedy="see the log, which has the traceback: atoll logs JOB",
    )


async def _site(order: Mapping[str, Any], opened: asyncio.Queue[Channel]) -> None:
    channels: dict[str, Channel] = {}
    names = {f"direct/{site}": str(site) for site in order["neighbours"]}
    # The server's process starts once all sites have: what the job is made of is imported meanwhile.
    loading = asyncio.create_task(asyncio.to_thread(_load_allowed_job, order))
    await _until({"server"}, channels, opened)

    async def links() -> dict[str, Channel]:
        # Every site is there by now: a link that has not come in this time will not come.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_MEETING):
                await _until(set(names), channels, opened)
        return {site: channels[name] for name, site in names.items() if name in channels}

    state = Path(order["state"])
    letters = None if order["letters"] is None else LetterKey.read_order(order["letters"], Path(order["key"]))
    async with alive(channels["server"]):
        job, name = await loading, str(order["name"])
    await _until({CHANNEL}, channels, opened)
    ledger = await DaemonLedger.open_ledger(channels[CHANNEL], str(order["id"]))
    named = DaemonResults(Path(order["results"]), str(order["id"]), ledger.ask)

    def load() -> SiteData:
        made = job.made(checking=True)
        plays = str(order.get("plays", ""))
        socket = str(order.get("socket", ""))
        return load_site_data(
            order["data"], name, plays, reads=made.reads, one_form=made.one_form, text=made.key_columns, socket=socket,
            jobs=every_job(made), signer=str(order.get("signer", "")), job=str(order["id"]),
        )  # fmt: skip

    await serve_job(
        channels["server"], job, load, state,
        results=named, links=links, letters=letters, ledger=ledger,
    )  # fmt: skip


def _load_allowed_job(order: Mapping[str, Any]) -> JobConfig:
    """The job of an order, once the site's policy allows its code and its signer may run it; its parts are imported."""
    _require_allowed(order, None if order["source"] is None else Path(order["source"]))
    job = load_job(order["job"])
    if order.get("allow") is not None:
        for one in every_job(job.made(checking=True)):
            require_names(order["allow"], one.names(), f"consent of site {str(order['name'])!r}")
    with contextlib.suppress(Exception):  # what is wrong with the job is reported where its data are loaded
        for one in every_job(job.made(checking=True)):
            one.helpers()
    return job


def _require_allowed(order: Mapping[str, Any], source: Path | None) -> None:
    """Refuse a job's own code, where the site's policy does, before any of it is imported."""
    if order["data"]:
        name, helper = str(order["name"]), bool(order.get("plays"))
        settings = settings_of(order["data"], name, helper)
        require_allowed(settings, name, Path(order["job"]), source, confined=order.get("confined") is True)


async def _until(names: set[str], channels: dict[str, Channel], opened: asyncio.Queue[Channel]) -> None:
    """Take the channels that the daemon opens until these are there."""
    while not names <= set(channels):
        channel = await opened.get()
        channels[channel.name] = channel


async def _server(order: Mapping[str, Any], source: Path | None, opened: asyncio.Queue[Channel]) -> None:
    job = await asyncio.to_thread(load_job, order["job"])
    channels: dict[str, Channel] = {}
    await _until(set(order["sites"]), channels, opened)
    helpers = {str(party): str(site) for party, site in order.get("helpers", {}).items()}
    await run_job(channels, job, Path(order["state"]), resume=True, source=source, helpers=helpers)


def _leave(code: int) -> None:
    """End now: a task that still runs in a thread is of no use any more."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def start() -> None:
    """Carry out the order of the command line and end the process."""
    try:
        code = main(sys.argv[1:])
    except LinkClosed:
        code = FRONT_GONE
    except BaseException:
        traceback.print_exc()
        code = 1
    _leave(code)
