"""A job in one process: a server and its sites, joined by lines over pairs of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError
from atoll.core.time.clock import run
from atoll.data import Dataset, Islands
from atoll.runtime.identity import Peer
from atoll.runtime.job_spec import JobConfig, parse_job
from atoll.runtime.line import Channel, Line, local_line
from atoll.runtime.transport.framed import local_pipe
from atoll.runtime.worker.at_server import run_job
from atoll.runtime.worker.at_site import serve_job
from atoll.runtime.worker.sitedata import SiteData, load_site_data

Sites = Mapping[str, Callable[[], SiteData]]


def site_of(name: str, made: Any, monkeypatch: Any = None) -> SiteData:
    """The data of a site from an object, as from a factory of its own."""
    from atoll.runtime.worker import sitedata

    return sitedata.site_data(made, name)


def sites_of(parts: Mapping[str, Any]) -> dict[str, Callable[[], SiteData]]:
    """Sites by name from data sets."""
    return {name: (lambda name=name, part=part: site_of(name, part)) for name, part in parts.items()}


def islands_of(parts: Mapping[str, Dataset], test: Dataset | None = None) -> Islands:
    """What a simulation of the same clients runs on."""
    return Islands.from_datasets(dict(parts), test=test)


@contextlib.asynccontextmanager
async def joined(names: list[str]) -> AsyncIterator[tuple[dict[str, Channel], dict[str, Channel]]]:
    """For each site, the server's end of a channel and the site's."""
    lines: list[Line] = []
    server: dict[str, Channel] = {}
    site: dict[str, Channel] = {}
    for name in names:
        ours, theirs = socket.socketpair()
        peers = [Peer(n, "site", "org", 1, "") for n in (name, "server")]
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


async def attempt(job: JobConfig, sites: Sites, folder: Path, **options: Any) -> dict[str, Any]:
    """One attempt with all sites; the server's result, or its error; ``options["outcomes"]`` takes the sites' errors, ``options["results"]`` what stays there."""
    outcomes: dict[str, Any] = options.pop("outcomes", {})
    results: Mapping[str, Any] = options.pop("results", {})
    async with joined(list(sites)) as (server, site):
        serving = {
            name: asyncio.create_task(serve_job(site[name], job, load, folder / "at" / name, results=results.get(name)))
            for name, load in sites.items()
        }
        try:
            return await run_job(server, job, folder / "server", report=False, **options)
        finally:
            done = await asyncio.gather(*serving.values(), return_exceptions=True)
            outcomes.update(zip(serving, done, strict=True))


def held(job: Mapping[str, Any], sites: Sites, folder: Path, **options: Any) -> dict[str, Any]:
    """Run one attempt of a job to its end on a real clock."""
    folder.mkdir(exist_ok=True)
    return run(attempt(parse_job(dict(job)), sites, folder, **options), virtual=False)


def load_from(spec: Mapping[str, Any], name: str) -> Callable[[], SiteData]:
    """How a site loads its data."""
    return lambda: load_site_data(spec, name)


__all__ = ["AtollError", "Sites", "attempt", "held", "islands_of", "joined", "load_from", "site_of", "sites_of"]
