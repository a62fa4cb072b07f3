"""A rehearsal: sites as local processes, so that a program meets the real engine before it meets real sites."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from atoll.core.event import Ledger
from atoll.core.execution.host import Host, Journal
from atoll.core.persistence.state_table import StateStore
from atoll.core.sealing import Record
from atoll.engines.forking import Workers, check_workers
from atoll.engines.link import SocketLink

from .engine import Network
from .site_engine import SiteEngine

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.executor import Executor

__all__ = ["Rehearsal", "site_of"]


class Rehearsal(Network):
    """The network engine with its sites on this machine: they get the parties in turn.

    Args:
        workers: how many sites.
        pulse: seconds between two signs of life of a site.
        terms: ``patience`` and ``on_lost`` of `Network`.
    """

    name: ClassVar[str] = "network"

    def __init__(self, workers: int | None = None, *, pulse: float = 1.0, **terms: Any) -> None:
        super().__init__({}, [], **terms)
        self._pulse = pulse
        self._sites = check_workers(workers, self.name) or 3
        self._workers = Workers()

    async def open(self, world: RunContext) -> None:
        """Start the sites."""
        names = [f"site-{i + 1}" for i in range(self._sites)]
        self.sites.placement = [names[p % len(names)] for p in range(len(world.roster))]
        executor = world.executor(vectorised=False)
        for name in names:
            folder = None if world.folder is None else world.folder / "sites" / name
            make = partial(site_of, executor, world.registry, folder, world.resume, self._pulse)
            with world.clock.busy():
                self.sites.links[name] = await self.link(name, make)
        await super().open(world)

    async def link(self, name: str, make: Callable[[Any], SiteEngine]) -> Any:
        """Start one site's process, and the link to it.

        Args:
            name: the site's name.
            make: makes its half of the engine, given its end of the link.
        """
        return SocketLink(self.start(_serve, make))

    def start(self, body: Callable[..., None], *args: Any) -> socket.socket:
        """Start a process with a socket; return this end of the socket."""
        return self._workers.start(1, body, *args)[-1]

    @property
    def processes(self) -> list[Any]:
        """Return the sites' processes, in the order of their names."""
        return self._workers.processes

    async def close(self) -> None:
        """End the sites."""
        await super().close()
        self._workers.stop(1.0)


def site_of(
    executor: Executor,
    registry: Mapping[str, Any],
    folder: Path | None,
    resume: bool,
    pulse: float,
    link: Any,
    neighbours: Mapping[str, Any] | None = None,
) -> SiteEngine:
    """Return a site's half of the engine, on this machine."""
    ledger = Ledger(None if folder is None else folder / "ledger.jsonl")
    if not resume:
        ledger.begin_run()
    journal = Journal(None if folder is None else folder / "journal.log")
    executor = replace(executor, record=Record(None if folder is None else folder / "record.log"), remote=True)
    host = Host(executor, StateStore(folder, executor.roster), ledger, journal)
    return SiteEngine(link, host, registry, pulse=pulse, neighbours=neighbours)


def _serve(sock: socket.socket, make: Callable[[Any], SiteEngine]) -> None:
    """Run a site's process."""

    async def main() -> None:
        link = SocketLink(sock)
        try:
            await make(link).serve()
        finally:
            link.close()

    asyncio.run(main())
