"""Sites that are scripts: what an honest one sends, and an engine that plays with them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import TaskError
from atoll.core.federation.federation import run_program
from atoll.core.message import ScalarSpec
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import PartialSum, Reply, TaskResult
from atoll.core.requests.task import TaskSchema, task
from atoll.core.requests.wire import pack_error, pack_folded, pack_ran
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.runtime.line import Channel, Settings
from atoll.runtime.network import Network
from atoll.runtime.transport import transport
from tests.support.carriers import carrier
from tests.support.certificates import authority
from tests.support.line_toys import hub

SITES = ("north", "south")


Frames = list[Any]


Script = Callable[[dict[str, Any], int], Frames]


@task
def step(island: Any, message: Any) -> Any:
    """Never runs: the scripts answer."""
    raise NotImplementedError


@task(schema=TaskSchema(reply=ScalarSpec(float)))
def number(island: Any, message: Any) -> Any:
    """Never runs; the reply is a number."""
    raise NotImplementedError


def frame(op: str, order: dict[str, Any], position: int, **more: Any) -> dict[str, Any]:
    return {"op": op, "id": order["request"]["id"], "party": position, "events": [], **more}


def folded(order: dict[str, Any], position: int, value: Any = None, **changes: Any) -> dict[str, Any]:
    """A summand of ones, with some of its fields changed on the way."""
    one = np.array([position])
    totals = {"x": Sum(np.ones(3) if value is None else value).total()}
    return frame("folded", order, position, folded=pack_folded(PartialSum(totals, one, one * 0 + 24)) | changes)


def ran(order: dict[str, Any], position: int, **changes: Any) -> dict[str, Any]:
    """A reply by itself."""
    return frame("ran", order, position, ran=pack_ran(TaskResult(Reply(position, 5.0, nbytes=8))) | changes)


def honest(order: dict[str, Any], position: int) -> Frames:
    """What is due."""
    if position < 0:
        return []
    if order["op"] == "collect":
        return [folded({"request": order}, position)]
    if not order["push"]:
        return [frame("done", order, position)]
    return [ran(order, position) if order["push"] == "run" else folded(order, position)]


async def site(channel: Channel, script: Script) -> None:
    """Answer orders by a script; roles that are stopped say so."""
    numbers: list[int] = []
    while True:
        order = await channel.recv()
        if order["op"] == "launch":
            await channel.recv()  # the message
        if order["op"] == "role":
            numbers.append(order["number"])
        for said in _said(order, script, numbers):
            await channel.send(said)


def _said(order: dict[str, Any], script: Script, numbers: list[int]) -> Frames:
    if order["op"] in ("launch", "collect"):
        return [said for position in order["positions"] for said in script(order, position)]
    if order["op"] == "stop":
        stopped = pack_error(TaskError("stopped"))
        return [{"op": "answer", "number": number, "error": stopped} for number in numbers]
    if order["op"] == "meet":
        said = script(order, -1)
        return said or [{"op": "answer", "number": order["number"], "neighbours": [], "keys": {}}]
    if order["op"] == "publish":
        return [{"op": "answer", "number": order["number"], "names": []}]
    return script(order, -1) if "number" in order else []


async def _world(program: Any, script: Script, on_lost: str, ledger: list[Any]) -> Any:
    settings = Settings(heartbeat=None, patience=10.0)
    async with hub(settings, transport(carrier())) as server:
        links, serving = {}, []
        for name, answers in zip(SITES, (honest, script), strict=True):
            opened: asyncio.Queue[Channel] = asyncio.Queue()
            await server.line(settings, credentials=authority().issue("site", name), on_open=opened.put_nowait)
            links[name] = (await server.lines.get()).open("job")
            serving.append(asyncio.create_task(site(await opened.get(), answers)))
        engine = Network(links, SITES, patience=10.0, on_lost=on_lost)  # type: ignore[arg-type]
        world = World(Community([1.0, 2.0]), engine, clock=Clock(virtual=False))
        world.registry[step.name] = step
        try:
            async with asyncio.timeout(60):
                return (await run_program(world, program))[0]
        finally:
            ledger.extend(world.ledger)
            for task_ in serving:
                task_.cancel()
            await asyncio.gather(*serving, return_exceptions=True)


def play(program: Any, script: Script, on_lost: str = "fail", ledger: list[Any] | None = None) -> Any:
    return run(_world(program, script, on_lost, [] if ledger is None else ledger), virtual=False)
