"""How long an attempt's end waits for its sites."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from atoll.runtime.fronts import parties
from atoll.runtime.fronts.parties import Parties


class Quiet:
    """A connected site that says nothing."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.connected = True
        self.line = SimpleNamespace(lost=asyncio.Event())
        self.told: list[tuple[str, int, bool]] = []

    def listen(self, job: str, attempt: int) -> asyncio.Queue[Any]:
        del job, attempt
        return asyncio.Queue()

    def forget(self, job: str, attempt: int) -> None:
        del job, attempt

    def stop(self, job: str, attempt: int, *, end: bool) -> None:
        self.told.append((job, attempt, end))


def test_a_site_that_was_let_go_is_not_waited_for_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was told to stop when it was let go: at the job's end the rest of that time is left, and nothing of it after so long."""

    async def body() -> None:
        monkeypatch.setattr(parties, "time", SimpleNamespace(monotonic=lambda: now))
        now = 100.0
        desks: list[Any] = [Quiet("north"), Quiet("south")]
        both = Parties("7", 1, desks)
        both.dismiss("south")
        now = 1100.0
        both.dismiss("south")  # twice is once
        stopping = asyncio.create_task(both.stopped(True, 1000.0))
        await asyncio.sleep(0)
        assert [desk.told for desk in desks] == [[("7", 1, True)]] * 2
        both._exited["north"].set()  # who was there to the end is still waited for
        async with asyncio.timeout(20):
            await stopping

    asyncio.run(body())
