"""A site gives signs of life while somebody waits for it, and at no other time: on a clock that jumps."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from atoll.core.execution.host import Host
from atoll.core.execution.session import LocalPeers
from atoll.core.sealing import VirtualSealing
from atoll.core.time.clock import run
from atoll.core.time.meter import Effort
from atoll.engines.link import LinkClosed
from atoll.engines.worker import Actors
from atoll.runtime.network.site_engine import Signs, SiteEngine


class Ordered:
    """A server's end that the test plays."""

    def __init__(self) -> None:
        self.orders: asyncio.Queue[Any] = asyncio.Queue()
        self.said: list[Any] = []

    async def recv(self) -> Any:
        frame = await self.orders.get()
        if frame is None:
            raise LinkClosed("the test is over")
        return frame

    async def send(self, frame: Any) -> None:
        self.said.append(frame)

    def pulses(self) -> int:
        """How many came since they were asked for last."""
        count = len([frame for frame in self.said if frame["op"] == "pulse"])
        self.said.clear()
        return count


def test_a_site_of_which_nothing_is_awaited_says_nothing() -> None:
    """Or a program that asks for nothing any more would have no end: its job's front hears bytes, and does not read them."""

    async def play() -> list[int]:
        link = Ordered()
        serving = asyncio.create_task(SiteEngine(link, Host(SimpleNamespace(sealing=VirtualSealing())), {}).serve())  # type: ignore[arg-type]
        counts = []
        for order in (None, {"op": "drop", "slot": "main"}, {"op": "launch", "request": {}, "body": True}):
            if order is not None:
                link.orders.put_nowait(order)
            await asyncio.sleep(100.5)
            counts.append(link.pulses())
        link.orders.put_nowait(None)
        await serving
        return counts

    begun, ordered, half = run(play(), virtual=True)
    assert begun <= 1
    assert 1 <= ordered <= 2, "one sign after an order"
    assert half >= 99, "an order whose message is still on its way is owed"


def test_what_works_is_looked_at_and_what_waits_is_believed() -> None:
    state = {"busy": False, "waits": False, "cpu": 0.0}
    effort = Effort(lambda: float(state["cpu"]), lambda: 0.0)
    signs = Signs(lambda: 0, lambda: bool(state["busy"]), lambda: bool(state["waits"]), effort)

    def looks(count: int, **now: Any) -> list[bool]:
        state.update(now)
        return [signs.due() for _ in range(count)]

    assert looks(3) == [True, False, False]
    assert looks(2, waits=True) == [True, True]
    assert looks(3, busy=True) == [False, False, False], (
        "a role that does not wait for another is at work, whoever else waits"
    )
    assert looks(2, cpu=1.0) == [True, False]
    assert looks(2, busy=False, waits=False) == [True, False], "one more when the work has ended"
    signs.giving = True
    assert looks(2) == [True, True]


def test_a_role_waits_only_while_it_waits_for_another() -> None:
    async def play() -> None:
        actors, peers = Actors(), LocalPeers("a", ["b"], lambda *_: asyncio.sleep(0))
        assert not actors.busy
        actors.begin((1, "a"), peers, asyncio.sleep(0))
        assert (actors.some, actors.busy) == (True, True)
        waiting = asyncio.create_task(peers.recv("b"))
        await asyncio.sleep(0)
        assert not actors.busy
        peers.put("b", {}, 0.0)
        await waiting
        assert actors.busy

    asyncio.run(play())
