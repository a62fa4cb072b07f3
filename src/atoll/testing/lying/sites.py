"""The same server between real processes: sites with the real engine, each with its own folder, which it can kill."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.message import DEFAULT_LIMITS
from atoll.runtime.network.engine import Network
from atoll.runtime.network.judging.expected import limits_of
from atoll.runtime.network.rehearsal import Rehearsal, site_of
from atoll.runtime.network.shared import bare, words
from atoll.runtime.network.site_link import SiteLink

from .server import LyingServer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.execution.engine import RunContext
    from atoll.core.requests.request import PartialSum, Reply, Request
    from atoll.runtime.network.replies import Started

__all__ = ["LyingSites"]


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
