"""The same server between real processes: sites with the real engine, each with its own folder, which it can kill."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.event import Ledger
from atoll.core.execution.host import Host, Journal
from atoll.core.message import DEFAULT_LIMITS
from atoll.core.persistence.state_table import StateStore
from atoll.core.sealing import Record
from atoll.engines.link import SocketLink
from atoll.engines.processes import Workers, check_workers
from atoll.runtime.network.engine import Network
from atoll.runtime.network.shared import bare, words
from atoll.runtime.network.site_engine import SiteEngine
from atoll.runtime.network.site_link import SiteLink
from atoll.runtime.network.validation import limits_of

from .server import LyingServer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.execution.executor import Executor
    from atoll.core.requests.request import PartialSum, Reply, Request
    from atoll.runtime.network.replies import Started

__all__ = ["LyingSites", "Rehearsal", "site_of"]


# ------------------------------------------------------------------ a rehearsal
#
# A rehearsal: sites as local processes, so that a program meets the real engine before it meets real sites.


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


# ------------------------------------------------------------------ the same server between real processes
#
# The same server between real processes: sites with the real engine, each with its own folder, which it can kill.


class LyingSites(LyingServer, Rehearsal):
    """A lying server whose parties are at sites, processes of their own. Mix it into an engine that is a `Rehearsal`, before it."""

    def __init__(self, *args: Any, **terms: Any) -> None:
        super().__init__(*args, **terms)
        self.begin()
        self._sent_as: dict[tuple[str, int], str] = {}

    @property
    def context(self) -> RunContext:
        """The world that the engine serves."""
        return self.world

    async def plain_run(self, request: Request, positions: NDArray[np.int64]) -> list[Reply]:
        """Run as the engine does."""
        return await Network.run(self, request, positions)

    async def plain_fold(self, request: Request, positions: NDArray[np.int64]) -> PartialSum:
        """Fold as the engine does."""
        return await Network.fold(self, request, positions)

    async def _honest_run(self, request: Request, mine: Request, position: int) -> list[Reply]:
        del mine  # it went out when it was launched
        return await self.plain_run(request, np.array([position], dtype=np.int64))

    async def _honest_fold(self, request: Request, mine: Request, where: NDArray[np.int64]) -> PartialSum:
        del mine
        return await self.plain_fold(request, where)

    def launch(self, request: Request, positions: NDArray[np.int64], push: str) -> Started:
        """Start the task at each party, each with the request as the server wants it to be."""
        wanted = "fold" if push == "sum" else push  # the server reads every summand
        started = self._replies.begin(request, positions, self._drop, wanted)
        left_out = set[int]()
        for site_link, here in self.sites.group_parties(dict.fromkeys(positions.tolist())).items():
            for position in here:
                mine = self.rewrite_request(request, position)
                if mine is None or not site_link.alive:
                    left_out.add(position)
                    continue
                if mine.id != request.id:
                    self._sent_as[request.id, position] = mine.id
                site_link.asks(1, limits_of(request, DEFAULT_LIMITS))
                names = [self.name_of(position)] if mine.mail else []
                frame = {"op": "launch", "request": bare(mine, names), "positions": [position], "push": wanted}
                site_link.post({**frame, "body": True}, words(mine))
        if left_out:
            self._replies.note_losses(left_out, self.world.clock.now())
        return started

    def _take_frame(self, site_link: SiteLink, frame: Any) -> None:
        """Take a reply to a request that went out under another id as one to the honest request."""
        for (request, position), other in self._sent_as.items():
            if frame.get("id") == other and frame.get("party") == position and self._replies.awaits(request, position):
                frame = {**frame, "id": request}
        super()._take_frame(site_link, frame)

    # ------------------------------------------------------------------ orders

    def _drop(self, request: str, positions: list[int], undo: bool) -> None:
        """Say what becomes of replies, unless the server withholds that; or both, and twice."""
        for position in [p for p in positions if (request, p) in self._sent_as]:
            self._drop(self._sent_as[request, position], [position], undo)
        if any(f"/{task}/" in request for task in self.script.withholds):
            return
        for _ in range(2 if self.script.repeats else 1):
            super()._drop(request, positions, undo)
        if self.script.repeats:
            super()._drop(request, positions, not undo)

    async def conclude(self, path: str, asked: NDArray[np.int64], kept: NDArray[np.int64]) -> None:
        """End a sum, unless the server withholds that, or twice."""
        for _ in range(0 if self.script.withholds else 2 if self.script.repeats else 1):
            await super().conclude(path, asked, kept)

    # ------------------------------------------------------------------ processes

    async def restart(self, names: Iterable[str]) -> None:
        """Kill the sites of these parties, and start them again from their folders."""
        sites = dict.fromkeys(self.sites.placement[p] for p in self.positions_of(names).tolist())
        for name in sites:
            await self._restart(name)

    async def _restart(self, name: str) -> None:
        world, old = self.world, self.sites.site_links[name]
        old._on_end = lambda *_: None
        process = self.processes[self._started[name]]
        process.kill()
        await asyncio.to_thread(process.join)
        await old.close()
        self._replies.note_losses(self.sites.at(old), world.clock.now())  # of another sum that is under way
        folder = None if world.folder is None else world.folder / "sites" / name
        make = partial(site_of, world.executor(vectorised=False), world.registry, folder, True, self._pulse)
        self._started[name] = len(self.processes)
        self.sites.links[name] = await self.link(name, make)
        self.sites.site_links[name] = SiteLink(name, self.sites.links[name], self._take_frame, self._end_site)

    async def open(self, world: RunContext) -> None:
        """Start the sites."""
        await super().open(world)
        self._started = {name: i for i, name in enumerate(self.sites.links)}
