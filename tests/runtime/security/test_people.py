"""A person with a good kit who asks for too much: the others are served as before."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import AtollError, BundleError, ConfigError, JobError
from atoll.runs import yaml
from atoll.runtime import bundle as bundles
from atoll.runtime.identity import Peer
from atoll.runtime.scheduler import SchedulerState
from atoll.runtime.server import requests
from atoll.runtime.server.looking import Quotas
from atoll.runtime.store.records import JobState, Submission
from atoll.runtime.store.sqlite import SqliteStore
from tests.support.hostile import Besieged, Kits, besieged, good_site, played
from tests.support.submissions import job, signed, submitted
from tests.support.waiting import until

ENDLESS = [
    (b"a: [" + b"1," * 499_998 + b"1]", BundleError, "'job.yaml' has 1000002 bytes, and 262144 are allowed"),
    (b"a: [" + b"1," * 131_000 + b"1]", ConfigError, "it has more than 10000 values"),
    (b"[" * 262_000, ConfigError, "nested too deeply"),
]


@pytest.mark.parametrize("carrier", ["tcp", "grpc"])
@pytest.mark.parametrize(("text", "kind", "what"), ENDLESS, ids=["a million bytes", "many values", "deep"])
def test_settings_without_end_delay_nobody(
    carrier: str, text: bytes, kind: type[AtollError], what: str, kit: Kits, tmp_path: Path
) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path, carrier) as siege, siege.admin("otto") as other:
            hanging = asyncio.create_task(submitted(siege, text))
            longest = 0.0
            while not hanging.done():
                begin = time.monotonic()
                assert await other.jobs() == []
                longest = max(longest, time.monotonic() - begin)
            error = hanging.result()
            assert isinstance(error, kind)
            assert what in str(error)
            assert longest < 2.0  # it was 49 s
            assert await siege.serves() == []

    played(body)


def test_settings_without_end_are_refused_at_home() -> None:
    with pytest.raises(BundleError, match=r"'job\.yaml' has 300000 bytes, and 262144 are allowed"):
        bundles.make_bundle(b"x" * 300_000, None, None)  # type: ignore[arg-type]


@pytest.mark.both_carriers
def test_settings_are_read_once_and_not_by_the_loop(kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[bool] = []

    def counted(text: str, where: str, *rest: Any) -> Any:
        if where == "job.yaml":
            read.append(threading.current_thread() is not threading.main_thread())
        return real(text, where, *rest)

    real = yaml.parse
    monkeypatch.setattr(yaml, "parse", counted)

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege:
            assert isinstance(await submitted(siege), str)

    played(body)
    assert read == [True]


@pytest.mark.both_carriers
def test_nobody_has_more_jobs_or_bytes_than_a_share(kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path, quota=3) as siege, siege.admin() as admin:
            made = [await submitted(siege, token=str(number)) for number in range(4)]
            assert isinstance(made[3], JobError)
            assert "admin 'anna' of 'university' has 3 jobs that have not ended, the most at once" in str(made[3])
            assert await submitted(siege, token="0") == made[0]  # the same once more is not one more
            async with siege.admin("otto") as other:  # his share is his own
                bundle = signed(siege, who="otto")
                await other.one("submit", bundle=bundle, token="o")
            await admin.abort(made[0])
            assert isinstance(await submitted(siege, token="4"), str)
            await admin.abort(made[1])
            size = siege.server._store.count_kept("anna")
            monkeypatch.setattr(siege.server._requests._quotas, "_size", size + 10)
            full = await submitted(siege, token="5")
            assert f"the bundles of the jobs of admin 'anna' of 'university' have {size} bytes" in str(full)
            await admin.delete(made[0])
            assert isinstance(await submitted(siege, token="6"), str)

    played(body)


@pytest.mark.both_carriers
def test_a_submission_costs_the_same_however_many_jobs_there_are(
    kit: Kits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the database does, in instructions, and what the scheduler looks at: with 1 other job, and with 3,000, half of them queued.

    Of one's own jobs, those that have not ended are counted in an index: at most as many as the quota.
    """
    counted: list[str] = []

    def counting(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            counted.append(name)
            return real(*given, **named)

        return call

    monkeypatch.setattr(SchedulerState, "_consider", counting("look", SchedulerState._consider))
    monkeypatch.setattr(requests, "read_terms", counting("terms", requests.read_terms))

    async def cost(siege: Besieged, token: str) -> tuple[int, int]:
        del counted[:]
        steps = 0

        def tick() -> None:
            nonlocal steps
            steps += 100

        store = siege.server._store
        assert isinstance(store, SqliteStore)
        with store._database.reading() as open_:
            open_.set_progress_handler(tick, 100)  # instructions of SQLite's machine
        assert isinstance(await submitted(siege, token=token), str)
        with store._database.reading() as open_:
            open_.set_progress_handler(None, 0)
        return len(counted), steps

    async def body() -> None:
        async with besieged(kit, tmp_path, quota=10_000) as siege:
            await submitted(siege, token="first")
            looks, steps = await cost(siege, "few")
            multiply(siege.server._store, 3000)
            siege.server._dispatcher._scheduler.know(["north"], 0.0)
            for record in siege.server._store.jobs():
                if record.state is JobState.QUEUED and record.id.endswith("copy"):
                    siege.server._dispatcher.submit(siege.server._store.get(record.id))
            many, more = await cost(siege, "many")
            assert many == looks
            assert more < 1.5 * steps + 100

    played(body)


def multiply(store: Any, jobs: int, queued: int = 1500) -> None:
    """Copy the first job, so that there are many of somebody else."""
    with store._database.writing(durable=False) as open_:
        names = [row[1] for row in open_.execute("PRAGMA table_info(jobs)") if row[1] != "number"]
        others = ", ".join(name for name in names if name not in ("id", "token", "state", "submitter"))
        open_.executemany(
            f"INSERT INTO jobs (id, token, submitter, state, {others}) SELECT ?, ?, 'otto', ?, {others} FROM jobs WHERE number = 1",
            [
                (f"{n:08d}-copy", f"copy {n}", "queued" if n < 100 + queued else "finished")
                for n in range(100, 100 + jobs)
            ],
        )


@pytest.mark.network
@pytest.mark.both_carriers
@pytest.mark.parametrize("there", ["connected", "away"])
def test_a_deleted_job_leaves_events_and_a_ledger(there: str, kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            folder = tmp_path / "north" / "site" / "jobs"
            async with good_site(siege.kit("north"), siege.address, tmp_path / "north"):
                made = await submitted(siege, code=b"async def run(fed): raise ValueError('no')\n")
                assert (await admin.wait(made))["state"] == "failed"  # so the site keeps what it has of it
                await until(lambda: (folder / made / "state").is_dir())
                (folder / made / "state" / "ledger.jsonl").write_text("spent\n")
                (folder / made / "state" / "private").write_text("x")
                if there == "connected":
                    await admin.delete(made)
                    await until(lambda: not (folder / made / "state" / "private").exists())
            if there == "away":
                await admin.delete(made)
                assert (folder / made / "state" / "private").exists()
                async with good_site(siege.kit("north"), siege.address, tmp_path / "north"):
                    await until(lambda: not (folder / made / "state" / "private").exists())
            assert (folder / made / "state" / "ledger.jsonl").read_text() == "spent\n"
            await admin.delete(made)  # once more, after a lost answer
            assert await admin.jobs() == []
            with pytest.raises(JobError, match="there is no job"):
                await admin.job(made)
            assert not (siege.folder / "jobs" / made).exists()
            assert list((siege.folder / "bundles").iterdir()) == []
            said = [event["what"] async for event in admin.events(made)]
            assert "submit" in said
            assert "deleted" in said
            running = await submitted(siege, token="2")
            with pytest.raises(JobError, match=r"the job is queued.*atoll abort"):
                await admin.delete(running)
            async with siege.admin("vera") as auditor:
                with pytest.raises(AtollError, match="may not ask for 'delete'"):
                    await auditor.delete(running)

    played(body)


@pytest.mark.network
@pytest.mark.both_carriers
def test_what_a_kill_leaves_of_a_deletion_is_cleared(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            made, other = await submitted(siege), await submitted(siege, token="2")
            await admin.abort(made)
            await admin.delete(made)
        for name in (made, other, "of nobody"):
            (siege.folder / "jobs" / name / "state").mkdir(parents=True)
        async with besieged(kit, tmp_path) as siege:
            # A folder is renamed before it is emptied, so its own name is gone a moment before the folder is.
            kept = sorted([other, "of nobody"])
            await until(lambda: sorted(path.name for path in (siege.folder / "jobs").iterdir()) == kept)

    played(body)


@pytest.mark.both_carriers
def test_an_abort_whose_answer_was_lost_is_the_same_abort(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            made = await submitted(siege)
            for _ in range(2):
                found = await admin.abort(made)
                assert (found["state"], found["reason"]) == ("aborted", "aborted by admin 'anna' of 'university'")
            assert [e["what"] async for e in admin.events(made)].count("moved") == 1
            siege.server._store.resume(made, now=1.0, who="x")
            siege.server._store.move(made, JobState.FAILED, now=2.0)
            with pytest.raises(JobError, match="the job has ended already: it is failed"):
                await admin.abort(made)

    played(body)


@pytest.mark.both_carriers
def test_jobs_are_listed_by_pages_and_filters(kit: Kits, tmp_path: Path) -> None:
    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as admin:
            first = await submitted(siege)
            await admin.abort(first)
            second = await submitted(siege, job("two"), token="2")
            multiply(siege.server._store, 1200, 0)
            found = await admin.jobs()
            assert len(found) == 1202
            assert [row["job"] for row in found] == sorted(row["job"] for row in found)
            assert len(await admin.jobs(limit=7)) == 7
            assert [row["job"] for row in await admin.jobs(states=["queued", "running"])] == [second]
            assert [row["job"] for row in await admin.jobs(name="t?o")] == [second]
            assert len(await admin.jobs(submitter="otto")) == 1200
            assert await admin.jobs(submitter="vera") == await admin.jobs(site="south") == []
            assert (await admin.job(2))["job"] == second
            assert (await admin.job(2))["reason"] == "waits for site 'north' to connect"
            with pytest.raises(JobError, match="the request cannot be read"):
                await admin.jobs(states=["lost"])

    played(body)


@pytest.mark.both_carriers
def test_a_list_is_not_made_for_one_person_all_the_time(kit: Kits, tmp_path: Path) -> None:
    """Somebody who asks for lists without end has a tenth of the loop at most, in as many channels as they like."""

    async def body() -> None:
        async with besieged(kit, tmp_path) as siege, siege.admin() as greedy, siege.admin("otto") as other:
            await submitted(siege)
            multiply(siege.server._store, 1000, 0)
            asking = [asyncio.create_task(endless(greedy)) for _ in range(20)]
            longest = 0.0
            for _ in range(20):
                begin = time.monotonic()
                await other.job(1)
                longest = max(longest, time.monotonic() - begin)
            for task in asking:
                task.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            assert longest < 1.0

    async def endless(admin: Any) -> None:
        while True:
            await admin.jobs(limit=1000)

    played(body)


def test_what_was_kept_before_the_server_was_started_counts(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path)
    made = Submission(name="a", submitter="anna", org="u", spec={}, token="t", bundle=store.put_bundle(b"12345678"))
    store.submit(made, now=1.0, who="anna")
    anna = Peer("anna", "admin", "u", 0, "lungs")
    quotas = Quotas(store, 9, 10)
    quotas.require(anna, 2)
    with pytest.raises(JobError, match="have 8 bytes, and with this one more than 10"):
        quotas.require(anna, 3)
    quotas.add("anna", 2)
    with pytest.raises(JobError, match="have 10 bytes"):
        quotas.require(anna, 1)
    quotas.forget("anna")
    quotas.add("anna", 2)  # is counted when that is asked for
    quotas.require(anna, 2)
    store.close()
