"""A whole job with one hostile site, in this process: a server's and each site's job process, joined by lines over pairs of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, ConfigError
from atoll.core.time.clock import run
from atoll.data import Dataset
from atoll.runs import RunFolder
from atoll.runtime.identity import Peer
from atoll.runtime.job_spec import parse_job
from atoll.runtime.line import Channel, Line, local_line
from atoll.runtime.transport.framed import local_pipe
from atoll.runtime.worker.at_server import run_job
from atoll.runtime.worker.at_site import serve_job
from atoll.runtime.worker.sitedata import SiteData, site_data

from .attack import Attack, Mouth

__all__ = ["Outcome", "play"]

_GRACE = 10.0
"""Seconds for the sites to end once the job has."""


@dataclass(frozen=True)
class Outcome:
    """How a job ended.

    Attributes:
        error: what ended it, ``None`` if it reached its result.
        rows: the rounds.
        model: the bytes of the trained model, empty without one.
        warnings: what the server's log warned of.
    """

    error: AtollError | None
    rows: list[dict[str, Any]]
    model: bytes = b""
    warnings: list[str] = field(default_factory=list)


def play(
    job: Mapping[str, Any],
    sites: Mapping[str, Dataset | SiteData],
    attack: Attack | None,
    folder: str | Path,
    *,
    hostile: str | None = None,
    after: int = 0,
) -> Outcome:
    """Run a job to its end with one hostile site.

    Args:
        job: the job's settings, as in a ``job.yaml``; ``on_lost``, ``on_outlier`` and ``patience`` are what is tried here.
        sites: site -> its data, or data with a policy of its own; see `atoll.runtime.worker.sitedata`.
        attack: what the hostile site does; ``None`` plays an honest job, to compare with.
        folder: an empty folder for the job's files.
        hostile: the hostile site; by default the last.
        after: how many frames of the attack's kind it sends honestly before.

    Raises:
        ConfigError: there is no such site.
    """
    bad = list(sites)[-1] if hostile is None else hostile
    if bad not in sites:
        raise ConfigError(f"hostile={bad!r} is not one of {', '.join(sites)}", where="play", remedy="name one of them")
    place, told = Path(folder), _Heard()
    logger = logging.getLogger("atoll")
    logger.addHandler(told)
    error: AtollError | None = None
    try:
        run(_attempt(job, sites, attack, place, bad, after), virtual=False)
    except AtollError as found:
        error = found
    finally:
        logger.removeHandler(told)
    model = place / "server" / "model.safetensors"
    rows = RunFolder(place / "server").metrics() if (place / "server").is_dir() else []
    return Outcome(error, rows, model.read_bytes() if model.is_file() else b"", told.lines)


class _Heard(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


async def _attempt(
    job: Mapping[str, Any],
    sites: Mapping[str, Dataset | SiteData],
    attack: Attack | None,
    place: Path,
    bad: str,
    after: int,
) -> None:
    made = parse_job(dict(job))
    async with _join_channels(list(sites)) as (server, site):
        serving = []
        for name, data in sites.items():
            loaded = data if isinstance(data, SiteData) else site_data(data, name)
            channel: Any = site[name] if attack is None or name != bad else Mouth(site[name], attack, after)
            served = serve_job(channel, made, lambda loaded=loaded: loaded, place / "at" / name)  # type: ignore[misc]
            serving.append(asyncio.create_task(served))
        try:
            await run_job(server, made, place / "server", report=False)
        finally:
            _, left = await asyncio.wait(serving, timeout=_GRACE)  # they end with their channels
            for task in left:
                task.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


@contextlib.asynccontextmanager
async def _join_channels(names: list[str]) -> AsyncIterator[tuple[dict[str, Channel], dict[str, Channel]]]:
    """For each site, the server's end of a channel and the site's."""
    lines: list[Line] = []
    server: dict[str, Channel] = {}
    site: dict[str, Channel] = {}
    for name in names:
        ours, theirs = socket.socketpair()
        peers = [Peer(each, "site", "org", 1, "") for each in (name, "server")]
        pipes = [await local_pipe(ours, peers[0]), await local_pipe(theirs, peers[1])]
        opened: asyncio.Queue[Channel] = asyncio.Queue()
        both = await asyncio.gather(
            local_line(pipes[0], dialled=False), local_line(pipes[1], dialled=True, on_open=opened.put_nowait)
        )
        lines.extend(both)
        server[name] = both[0].open("job")
        site[name] = await opened.get()
    try:
        yield server, site
    finally:
        await asyncio.gather(*(line.close() for line in lines))
