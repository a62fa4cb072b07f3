"""The small parts of the fronts, one by one."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import BundleError, DataError, IdentityError, JobError, MessageError
from atoll.core.requests.wire import pack_error, unpack_error
from atoll.core.time.clock import run
from atoll.runtime.bundles.bundle import make_bundle
from atoll.runtime.bundles.manifest import Manifest
from atoll.runtime.client.receiving import claim, received, require_free
from atoll.runtime.daemon.control import text, whole
from atoll.runtime.daemon.lines import MOST, Lines
from atoll.runtime.daemon.place import LEDGER, Place
from atoll.runtime.daemon.processes import Process
from atoll.runtime.provision import Kit, ProjectConfig, provision
from atoll.runtime.server.liveness import stalled
from atoll.runtime.server.news import News
from atoll.runtime.server.outcomes import AttemptOutcome, aborted, crashed, failed, failed_at, finished, state_after
from atoll.runtime.store.records import JobRecord
from atoll.runtime.store.states import JobState


@pytest.fixture(scope="module")
def kits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kit]:
    """A site, an admin and an auditor of one project, and an admin of another."""
    made: dict[str, Kit] = {}
    for project in ("one", "two"):
        folder = tmp_path_factory.mktemp(project)
        people = [{"name": "ann", "org": "x"}, {"name": "bob", "org": "x", "role": "auditor"}]
        settings = {
            "project": "one", "servers": [{"name": "server", "hosts": ["localhost"]}],
            "sites": [{"name": "north", "org": "x"}], "admins": people,
        }  # fmt: skip
        provision(ProjectConfig.model_validate(settings), folder)
        made |= {f"{project}/{name}": Kit.read(folder / name) for name in ("north", "ann", "bob")}
    return made


def bundled(kit: Kit) -> bytes:
    return make_bundle(b"name: job\n", None, kit.credentials())


def test_a_site_unpacks_what_an_admin_has_signed_and_nothing_else(kits: dict[str, Kit], tmp_path: Path) -> None:
    place, site = Place(tmp_path / "job"), kits["one/north"]

    def known(manifest: Manifest) -> bool:
        return True

    good = bundled(kits["one/ann"])
    assert (place.open(good, site, 1, known=known) / "job.yaml").read_bytes() == b"name: job\n"
    altered = bytearray(good)
    altered[good.rindex(b"job.yaml", 0, good.index(b"PK\x01\x02")) + len("job.yaml") + 2] ^= 1
    with pytest.raises(BundleError, match=r"Bad CRC-32 for file 'job\.yaml'"):
        place.open(bytes(altered), site, 2, known=known)
    with pytest.raises(IdentityError, match="auditor"):
        place.open(bundled(kits["one/bob"]), site, 3, known=known)
    with pytest.raises(IdentityError, match="no authority of this project"):
        place.open(bundled(kits["two/ann"]), site, 4, known=known)  # the same names, of somebody else's making
    assert [path.name for path in place.folder.iterdir()] == ["attempt-1"]


@pytest.mark.parametrize("name", ["../up", "/etc", "a/b", "", ".hidden", "a..b", "x" * 81])
def test_an_id_from_the_network_names_no_other_folder(name: str, tmp_path: Path) -> None:
    with pytest.raises(IdentityError, match="is not a job id"):
        Place.of(tmp_path, name)
    assert Place.of(tmp_path, "00000001-a0b1c2").folder == tmp_path / "jobs" / "00000001-a0b1c2"


def test_what_a_site_keeps_of_a_job_is_its_privacy_ledger(tmp_path: Path) -> None:
    place = Place(tmp_path / "jobs" / "1")
    (place.state / "segments").mkdir(parents=True)
    for path in (place.state / LEDGER, place.state / "segments" / "a.msg", place.folder / "order.msg"):
        path.write_text("x", encoding="utf-8")
    place.forget()
    assert [p for p in place.folder.rglob("*") if p.is_file()] == [place.state / LEDGER]
    (place.state / LEDGER).unlink()
    place.forget()
    assert not place.folder.exists()
    place.forget()


def test_lines_go_in_batches_and_a_flood_is_counted() -> None:
    async def body() -> list[list[str]]:
        sent: list[list[str]] = []
        come = asyncio.Event()

        def send(lines: list[str]) -> None:
            sent.append(lines)
            come.set()

        lines = Lines(send)
        lines.add("a")
        lines.add("b")
        assert not sent
        await asyncio.wait_for(come.wait(), 10)
        for number in range(MOST + 7):
            lines.add(str(number))
        lines.flush()
        lines.flush()
        return sent

    first, second = asyncio.run(body())
    assert first == ["a", "b"]
    assert len(second) == MOST + 1
    assert second[-1] == "[7 more lines within 0.1 s, left out]"


def test_news_wakes_who_asked_before_it_came() -> None:
    async def body() -> None:
        news = News()
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
        watch = asyncio.create_task(stalled("7", patience, lambda: 5, lambda: spent))
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
    assert state_after(record(0), finished(), 3)[0] is JobState.FINISHED
    assert state_after(record(0), aborted("ann"), 3)[0] is JobState.ABORTED
    state, why = state_after(record(1), crashed("power"), 3)
    assert (state, why.reason, why.error) == (JobState.QUEUED, "power", None)
    state, why = state_after(record(2), crashed("power"), 3)
    assert state is JobState.FAILED
    assert "3 attempts in a row ended without a checkpoint; the last one: power" in why.reason
    assert state_after(record(9), AttemptOutcome("crashed", "power", progress=True), 3)[0] is JobState.QUEUED
    assert state_after(record(9), failed(JobError("no")), 3)[0] is JobState.FAILED


def test_an_error_keeps_its_kind_and_gains_its_place() -> None:
    told = failed_at("site 'north'", pack_error(DataError("no column", where="file a.csv", remedy="add it")))
    found = unpack_error(told.error)
    assert isinstance(found, DataError)
    assert (found.where, found.remedy) == ("site 'north': file a.csv", "add it")
    assert "an unreadable error" in failed_at("server", {"odd": 1}).reason


def test_frames_that_lack_something_are_refused() -> None:
    assert (text({"op": "x", "job": "1"}, "job"), whole({"op": "x", "attempt": 2}, "attempt")) == ("1", 2)
    for frame in ({"op": "x"}, {"op": "x", "job": 1}, {"op": "x", "job": "1" * 5000}):
        with pytest.raises(MessageError, match="'job' of the frame 'x' is missing or of another kind"):
            text(frame, "job")
    with pytest.raises(MessageError, match="'attempt' of the frame 'x'"):
        whole({"op": "x", "attempt": True}, "attempt")


def test_a_file_counts_when_it_is_whole_and_stays_in_its_folder(tmp_path: Path) -> None:
    async def answers(sha: str) -> AsyncIterator[Any]:
        for piece in (b"one ", b"two"):
            yield {"piece": piece}
        yield {"sha256": sha}

    good = hashlib.sha256(b"one two").hexdigest()
    asyncio.run(received(answers(good), "model.safetensors", tmp_path))
    assert (tmp_path / "model.safetensors").read_bytes() == b"one two"
    with pytest.raises(MessageError, match="did not arrive whole"):
        asyncio.run(received(answers("0"), "other", tmp_path))
    for name in ("../x", "a/b", ".hidden", ""):
        with pytest.raises(MessageError, match="is not a file name"):
            asyncio.run(received(answers(good), name, tmp_path))
    assert not (tmp_path / "other").exists()


def test_a_result_overwrites_nothing_of_others(tmp_path: Path) -> None:
    out = tmp_path / "out"
    require_free(out, "7-a")
    claim(out, "7-a")
    (out / "config.yaml").write_text("x")
    require_free(out, "7-a")  # fetched again
    for folder, job in ((out, "8-b"), (tmp_path, "7-a"), (out / "config.yaml", "7-a")):
        with pytest.raises(JobError, match=r"holds something else.*--out FOLDER"):
            require_free(folder, job)
    with pytest.raises(JobError, match="cannot be made: Not a directory"):
        claim(out / "config.yaml" / "deep", "7-a")


@pytest.mark.skipif(sys.platform != "linux", reason="setrlimit as Linux has it")
def test_memory_is_limited_where_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "hungry.py").write_text(
        "try:\n    kept = bytearray(1 << 30)\n    print('had')\nexcept MemoryError:\n    print('refused')\n",
        encoding="utf-8",
    )

    async def body(memory: int) -> list[str]:
        said: list[str] = []
        environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        process = await Process.start(
            "hungry", lambda _: [], folder=tmp_path, on_line=said.append, environment=environment, memory=memory
        )
        process.socket.close()
        await process.wait()
        return said

    assert asyncio.run(body(512 << 20)) == ["refused"]
    assert asyncio.run(body(0)) == ["had"]
