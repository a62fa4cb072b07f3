"""How long an attempt waits for its sites, as it begins and as it ends: on a clock that jumps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.core.time.clock import run
from atoll.runtime.server.attempt import Attempt, AttemptOutcome, AttemptSites
from atoll.runtime.terms import JobTerms

PATIENCE = 60.0


class Silent:
    """A channel on which nothing ever comes."""

    async def recv_block(self, *_: Any) -> Any:
        await asyncio.get_running_loop().create_future()

    def close(self, reason: str = "") -> None:
        del reason


class Site:
    """A connected site that says what a test has it say.

    Args:
        name: of the site.
        begins: what it does once it is told to deploy.
    """

    def __init__(self, name: str, begins: Callable[[Site], Coroutine[Any, Any, None]] | None = None) -> None:
        self.name = name
        self.connected = True
        self.line = SimpleNamespace(lost=asyncio.Event(), error="its machine is gone")
        self.told: list[tuple[str, int, bool]] = []
        self.said: asyncio.Queue[Any] = asyncio.Queue()
        self.begins = begins
        self.work: list[asyncio.Task[None]] = []

    def deploy(self, job: str, frame: Any) -> None:
        del job, frame
        if self.begins is not None:
            self.work.append(asyncio.create_task(self.begins(self)))

    def listen(self, job: str, attempt: int) -> asyncio.Queue[Any]:
        del job, attempt
        return self.said

    def forget(self, job: str, attempt: int) -> None:
        del job, attempt

    def stop(self, job: str, attempt: int, *, end: bool) -> None:
        self.told.append((job, attempt, end))

    def open(self, job: str, attempt: int) -> Silent:
        del job, attempt
        return Silent()


async def at_once(site: Site) -> None:
    site.said.put_nowait({"op": "deployed"})


async def slowly(site: Site) -> None:
    """It works for five times the patience before its process is there, and says so."""
    for _ in range(10):
        await asyncio.sleep(PATIENCE / 2)
        site.said.put_nowait({"op": "starting"})
    site.said.put_nowait({"op": "deployed"})


async def vanishing(site: Site) -> None:
    """Its process never comes, and while the others are at work its machine is gone."""
    await asyncio.sleep(8 * PATIENCE)
    site.line.lost.set()


def attempted(folder: Path, *sites: Site, **terms: Any) -> tuple[Attempt, list[Sequence[str]]]:
    """An attempt whose process at the server works for longer than the patience and ends well, and what it was told of sites."""
    told: list[Sequence[str]] = []

    async def works() -> int:
        await asyncio.sleep(10 * PATIENCE)
        return 0

    async def stopped() -> None:
        return

    async def launch(names: Sequence[str]) -> Any:
        told.append(names)
        return SimpleNamespace(
            channel=lambda name: Silent(), wait=works, error=lambda: None, stop=stopped, clear=stopped,
            cpu=lambda: asyncio.get_running_loop().time(),
        )  # fmt: skip

    frame: Any = None
    sessions: Any = sites
    job = JobTerms(sites=[site.name for site in sites], patience=PATIENCE, **terms)
    return Attempt("7", 1, job, sessions, folder, frame, launch, told.append), told


def test_a_site_whose_process_never_begins_is_done_without_where_the_job_says_so(tmp_path: Path) -> None:
    async def body() -> tuple[AttemptOutcome, list[Sequence[str]], list[Any], float]:
        north, east, south = Site("north", at_once), Site("east", slowly), Site("south", vanishing)
        attempt, told = attempted(tmp_path, north, east, south, on_lost="drop", min_sites=2)
        outcome = await attempt.run()
        return outcome, told, [north.told, east.told, south.told], asyncio.get_running_loop().time()

    outcome, told, stops, ended = run(body(), virtual=True)
    assert (outcome.kind, outcome.reason) == ("finished", "")  # a machine that is gone by then is no news
    assert told == [["south"], ["north", "east"]]  # done without; worked with
    end = ("7", 1, True)
    assert stops == [[end], [end], [("7", 1, False), end]]  # what may still begin there is to stop at once
    assert ended >= 15 * PATIENCE


@pytest.mark.parametrize("terms", [{}, {"min_sites": 1}, {"on_lost": "drop", "min_sites": 2}])
def test_a_site_whose_process_never_begins_fails_a_job_that_needs_it(terms: dict[str, Any], tmp_path: Path) -> None:
    async def body() -> tuple[AttemptOutcome, list[Sequence[str]], float]:
        begin = asyncio.get_running_loop().time()
        attempt, told = attempted(tmp_path, Site("north", at_once), Site("south"), **terms)
        outcome = await attempt.run()
        return outcome, told, asyncio.get_running_loop().time() - begin

    outcome, told, took = run(body(), virtual=True)
    assert (outcome.kind, told) == ("failed", [])
    assert "for 60 s nothing was heard from the job's process at south" in outcome.reason
    assert took <= 2 * PATIENCE  # nor is its end waited for any longer


def test_a_site_that_was_let_go_is_not_waited_for_once_more() -> None:
    """It was told to stop when it was let go: at the job's end the rest of that time is left, and nothing of it after so long."""

    async def body() -> None:
        now = asyncio.get_running_loop().time
        sites: list[Any] = [Site("north"), Site("south")]
        both = AttemptSites("7", 1, sites)
        both.dismiss("south")
        await asyncio.sleep(1000.0)
        both.dismiss("south")  # twice is once
        begin = now()
        stopping = asyncio.create_task(both.stop_processes(True, 1000.0))
        await asyncio.sleep(100.0)
        assert [site.told for site in sites] == [[("7", 1, True)]] * 2
        assert not stopping.done()  # who was there to the end is still waited for
        sites[0].said.put_nowait({"op": "exited", "code": 0})
        await stopping
        assert now() - begin == 100.0

    run(body(), virtual=True)


def test_who_aborts_while_a_crashed_attempt_is_being_stopped_is_heard(tmp_path: Path) -> None:
    async def body() -> AttemptOutcome:
        north, south = Site("north", at_once), Site("south", at_once)
        attempt, _ = attempted(tmp_path, north, south)
        running = asyncio.create_task(attempt.run())
        await asyncio.sleep(5.0)
        south.line.lost.set()
        await asyncio.sleep(3.0)  # the process at north takes its time to end
        attempt.abort("ann")
        return await running

    outcome = run(body(), virtual=True)
    assert (outcome.kind, outcome.reason) == ("aborted", "aborted by ann")
