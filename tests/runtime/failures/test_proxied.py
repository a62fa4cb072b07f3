"""Networks that cut, stall, forget and crawl between real processes: lines go on, and no attempt is lost."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from atoll.runtime.admin import Admin
from tests.runtime.failures.proxy import Proxy
from tests.support.bulk_job import BULK
from tests.support.failing_world import World, ended, outcome, until, write_job

QUICK = {"heartbeat": 0.3, "silence": 1.5}
ROUND = 2 * 8 * 40_000
"""Bytes that a round moves between the server and a site, without frames."""


async def resumes(admin: Admin) -> int:
    """How often the line of the second site went on over a new connection."""
    sites = {site["site"]: site for site in (await admin.one("sites"))["sites"]}
    return int(sites["site-2"]["resumes"])


def said(here: World, word: str) -> int:
    """How often the second site's front said a word."""
    return sum(word in line for line in here.fronts["site-2"].said)


@pytest.mark.parametrize("transport", ["tcp", "grpc"])
def test_what_a_network_does_changes_nothing(transport: str, tmp_path: Path) -> None:
    rng = random.Random(11)

    async def play() -> None:
        here = World(tmp_path / "project", transport=transport, quick=QUICK)
        try:
            await here.start("server")
            async with Proxy(here.address) as net:
                here.ways["site-2"] = net.address
                await here.start("site-1", "site-2")
                admin = await here.admin()

                async def run(name: str, *faults: object, **settings: object) -> bytes:
                    """A job, each fault at a seeded number of bytes; it must take one attempt."""
                    job = (await admin.submit(write_job(tmp_path / name, BULK, **settings)))["job"]
                    for fault in faults:
                        mark = net.carried + rng.randrange(ROUND, 4 * ROUND)
                        await until("bytes", lambda mark=mark: net.carried >= mark)
                        assert (await admin.job(job))["state"] in ("deploying", "running")
                        await fault()  # type: ignore[operator]
                    found = await ended(admin, job)
                    assert (found["state"], found["attempts"]) == ("finished", 1), found
                    return await outcome(admin, job, tmp_path / "out" / name)

                async def cut() -> None:
                    net.cut()

                async def away() -> None:
                    before = said(here, "cannot be reached")
                    net.cut(refuse=True)
                    await until("two attempts to connect", lambda: said(here, "cannot be reached") >= before + 2)
                    net.mend()

                async def half_open() -> None:
                    before = said(here, "nothing was heard for"), net.connections
                    net.stall()
                    await until("silence", lambda: said(here, "nothing was heard for") > before[0])
                    net.mend(forget=True)

                whole = await run("plain")
                assert await run("cut", cut, away, cut) == whole
                assert await resumes(admin) >= 3
                assert await run("half-open", half_open) == whole
                assert await resumes(admin) >= 4
                if transport == "tcp":
                    await _slow(net, run)
                assert not [line for front in here.fronts.values() for line in front.said if line.startswith("error:")]
        except BaseException:
            for front in here.fronts.values():
                print(f"--- {front.name}", *front.said[-60:], sep="\n")
            raise
        finally:
            await here.__aexit__()

    asyncio.run(play())


async def _slow(net: Proxy, run: object) -> None:
    """A reply that takes longer than the patience is progress all the same: its bytes arrive."""
    size, patience = 400_000, 5.0
    small = {"arguments": {"rounds": 1, "size": size}, "patience": patience}
    fast = await run("fast", **small)  # type: ignore[operator]
    net.rate = 8 * size / (1.4 * patience)
    try:
        assert await run("slow", **small) == fast  # type: ignore[operator]
    finally:
        net.rate = None
