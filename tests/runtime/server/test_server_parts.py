"""The small parts of a server's front, one by one."""

from __future__ import annotations

import asyncio

from atoll.core.errors import DataError, JobError
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.core.time.clock import run
from atoll.runtime.server.attempt import (
    AttemptOutcome,
    failed_at,
    make_aborted,
    make_crashed,
    make_failed,
    make_finished,
    state_after,
    watch_progress,
)
from atoll.runtime.server.dispatch import JobNews
from atoll.runtime.store.records import JobRecord, JobState


def test_news_wakes_who_asked_before_it_came() -> None:
    async def body() -> None:
        news = JobNews()
        one, other, every = news.of("1"), news.of("2"), news.of()
        news.tell("1")
        assert one.is_set()
        assert every.is_set()
        assert not other.is_set()
        assert not news.of("1").is_set()

    asyncio.run(body())


def test_a_job_that_stands_still_is_found_out_in_time_and_one_that_works_is_not() -> None:
    patience, limit = 8.0, 1.5 * 8.0 + 5.0

    async def body() -> None:
        clock, spent = asyncio.get_running_loop().time, 1.0
        begin = clock()
        watch = asyncio.create_task(watch_progress("7", patience, lambda: 5, lambda: spent))
        while clock() < begin + 10 * patience:  # a fiftieth of a core is work
            await asyncio.sleep(1.0)
            spent += 0.02
        assert not watch.done()
        since = clock()
        error = await watch
        assert limit - 1.0 <= clock() - since <= limit + 2 * patience / 4  # it looks each quarter of the patience
        assert isinstance(error, JobError)
        assert "nothing arrived from any site" in error.what
        assert error.where == "job 7, running"

    run(body(), virtual=True)


def record(barren: int) -> JobRecord:
    return JobRecord(
        id="1", name="a", submitter="ann", org="x", created=0.0, state=JobState.RUNNING, attempts=3, barren=barren,
        reason="", error=None, spec={}, bundle="", sites=("north",), times=(), token="t",
    )  # fmt: skip


def test_what_follows_an_attempt() -> None:
    assert state_after(record(0), make_finished(), 3)[0] is JobState.FINISHED
    assert state_after(record(0), make_aborted("ann"), 3)[0] is JobState.ABORTED
    state, why = state_after(record(1), make_crashed("power"), 3)
    assert (state, why.reason, why.error) == (JobState.QUEUED, "power", None)
    state, why = state_after(record(2), make_crashed("power"), 3)
    assert state is JobState.FAILED
    assert "3 attempts in a row ended without a checkpoint; the last one: power" in why.reason
    assert state_after(record(9), AttemptOutcome("crashed", "power", progress=True), 3)[0] is JobState.QUEUED
    assert state_after(record(9), make_failed(JobError("no")), 3)[0] is JobState.FAILED


def test_an_error_keeps_its_kind_and_gains_its_place() -> None:
    told = failed_at("site 'north'", pack_error(DataError("no column", where="file a.csv", remedy="add it")))
    found = unpack_error(told.error)
    assert isinstance(found, DataError)
    assert (found.where, found.remedy) == ("site 'north': file a.csv", "add it")
    assert "an unreadable error" in failed_at("server", {"odd": 1}).reason
