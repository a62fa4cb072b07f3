"""Whoever waits for a job learns of its end, also when it came between two questions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from atoll.runtime.server.dispatch import JobNews
from atoll.runtime.server.looking import Looking
from atoll.runtime.store.records import JobState, Submission
from tests.support.memory_store import MemoryStore


def test_a_change_between_two_questions_is_told() -> None:
    store, news = MemoryStore(), JobNews()
    dispatcher = SimpleNamespace(sessions={}, why=lambda record: record.reason)
    members = SimpleNamespace(clients=[], plays={})
    seen = SimpleNamespace(of=lambda site: None, revoked=lambda site: False)
    looking = Looking(store, dispatcher, news, lambda job: Path(job), members, seen)  # type: ignore[arg-type]
    job = store.submit(Submission(name="a", submitter="admin", org="lab", spec={}, token="t"), now=0.0, who="admin").id

    ann: Any = SimpleNamespace(name="ann", role="admin")

    async def ask(seen: str | None = None) -> Any:
        async with asyncio.timeout(60):
            return await anext(looking._jobs(ann, {"op": "jobs", "job": job, "seen": seen}))

    async def play() -> None:
        first = await ask()
        store.move(job, JobState.ABORTED, now=1.0)
        news.tell(job)  # before anybody waits
        second = await ask(first["seen"])
        assert second["jobs"][0]["state"] == "aborted"
        # Lines of a log are no change of the job: nobody is woken for them, and the next change is still told.
        waiting = asyncio.create_task(ask(second["seen"]))
        await asyncio.sleep(0)
        news.tell(job)
        for _ in range(5):
            await asyncio.sleep(0)
        assert not waiting.done()
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)

    asyncio.run(play())
