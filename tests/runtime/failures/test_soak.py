"""Two hundred rounds more, and ten thousand: what the processes of a deployment hold does not grow with them."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

import pytest

from tests.support.failing_world import Follower, World, ended, handles, memory, until, world, write_job

FIRST, LAST = 200, 400
"""Buffers of connections grow to their full size in the first hundred rounds."""
GROWTH = 1 << 20
"""Bytes. A round moves some 130 kB: were all of it kept, it would be 26 MB."""

LONG = """
import asyncio
from pathlib import Path

import numpy as np

import atoll


@atoll.task
def step(island, message):
    island.state = {"x": message["x"] + 1}
    return {"sum": atoll.Sum(message["x"] * 0.5)}


async def walk(fed, rounds, stops, every=1):
    state = await fed.restore({"x": np.ones(4000), "round": 0})
    while state["round"] < rounds:
        number = state["round"] + 1
        total = await fed.sum(fed.parties, step, {"x": state["x"]}, at=number)
        state = {"x": total["sum"], "round": number}
        fed.record({"round": number})
        if number % every == 0 or number == rounds:
            await fed.checkpoint(state)
        if str(number) in stops:
            Path(stops[str(number)] + "-reached").touch()
            while Path(stops[str(number)]).exists():
                await asyncio.sleep(0.02)
    return {"x": state["x"]}
"""


def sizes(here: World) -> dict[str, tuple[int, int, int]]:
    """Memory, open files and threads of every process of the deployment."""
    found = {}
    for name, front in here.fronts.items():
        for what, pid in (("front", front.pid), ("job", here.job_process(name) or 0)):
            found[f"{what} at {name}"] = (memory(pid), *handles(pid))
    return found


@pytest.mark.skipif(os.geteuid() != 0, reason="a front shows its memory to root alone")
def test_two_hundred_rounds_more_take_no_memory(tmp_path: Path) -> None:
    stops = {str(number): str(tmp_path / f"stop-{number}") for number in (FIRST, LAST)}
    for stop in stops.values():
        Path(stop).touch()

    async def play() -> None:
        async with world(tmp_path / "project", transport="grpc") as here:
            admin = await here.admin()
            job = write_job(tmp_path / "long", LONG, arguments={"rounds": LAST, "stops": stops})
            made = (await admin.submit(job))["job"]
            follower, seen = Follower(admin, made), []
            for number, stop in stops.items():
                await until(f"round {number}", lambda number=number: len(follower.of("server", "round")) >= int(number))
                seen.append(sizes(here))
                Path(stop).unlink()
            assert (await ended(admin, made))["attempts"] == 1
            await follower.end()
            early, late = seen
            grown = {name: late[name][0] - early[name][0] for name in early}
            assert max(grown.values()) < GROWTH, grown
            for name in early:
                # A thread of a pool and its files may come with the work; nothing comes with every round.
                assert late[name][1] <= early[name][1] + 4, (name, early[name], late[name])
                assert late[name][2] <= early[name][2] + 4, (name, early[name], late[name])

    asyncio.run(play())


SOAK = 10_000
WARM = 1_000
SHARE = 1.05
"""Most memory after the last round, as a share of that after the first thousand."""


@pytest.mark.skipif(os.geteuid() != 0, reason="a daemon shows its memory to root alone")
def test_ten_thousand_rounds_stay_within_five_per_cent(tmp_path: Path) -> None:
    stops = {str(number): str(tmp_path / f"stop-{number}") for number in (WARM, SOAK)}
    for stop in stops.values():
        Path(stop).touch()

    async def play() -> None:
        async with world(tmp_path / "project", transport="tcp") as here:
            admin = await here.admin()
            settings = {"rounds": SOAK, "stops": stops, "every": 20}
            made = (await admin.submit(write_job(tmp_path / "long", LONG, arguments=settings)))["job"]
            seen = []
            for stop in stops.values():
                while not Path(stop + "-reached").exists():
                    await asyncio.sleep(0.5)
                seen.append(sizes(here))
                Path(stop).unlink()
            assert (await ended(admin, made))["attempts"] == 1
            early, late = seen
            grown = {name: late[name][0] / early[name][0] for name in early}
            logging.getLogger(__name__).info("memory after %d rounds by that after %d: %s", SOAK, WARM, grown)
            assert max(grown.values()) < SHARE, grown

    asyncio.run(play())
