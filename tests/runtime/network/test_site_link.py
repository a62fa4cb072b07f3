"""A site_link passes on what comes, and keeps none of it."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any

from atoll.engines.link import LinkClosed
from atoll.runtime.network.site_link import SiteLink


class Words(dict[str, Any]):
    """A frame of which it can be told whether somebody holds it."""


class Link:
    """Has one frame to give, then nothing; counts what it takes."""

    def __init__(self, frame: Words) -> None:
        self.frames = [frame]
        self.taken = 0

    async def recv(self) -> Any:
        if not self.frames:
            await asyncio.get_running_loop().create_future()
        return self.frames.pop()

    async def send(self, tree: Any) -> None:
        self.taken += len(tree)

    def close(self, reason: str = "") -> None:
        raise LinkClosed(reason)


def test_a_station_that_waits_holds_neither_what_came_nor_what_was_sent() -> None:
    async def body() -> None:
        reply, order = Words(op="folded"), Words(op="launch")
        came, gone = weakref.ref(reply), weakref.ref(order)
        heard: list[str] = []
        link = Link(reply)
        site_link = SiteLink("north", link, lambda _, frame: heard.append(frame["op"]), lambda *_: None)
        site_link.post(order)
        del reply, order
        while not (heard and link.taken):
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert heard == ["folded"]
        assert came() is None
        assert gone() is None

    asyncio.run(body())
