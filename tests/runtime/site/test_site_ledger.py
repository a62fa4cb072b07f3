"""The ledger of a site, as its daemon keeps it and a job's process asks it."""

from __future__ import annotations

import asyncio
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import CheckpointError, MessageError, PolicyError
from atoll.core.event import Gaussian, Ledger, NonPrivate
from atoll.core.sealing import hash_parts
from atoll.engines.link import LinkClosed
from atoll.privacy import Budget, Demand
from atoll.runtime.network.daemon_ledger import DaemonLedger
from atoll.runtime.site.ledger import SiteLedger

NOISE = Gaussian(noise_multiplier=2.0)
ADMIT = {"op": "admit", "title": "a job", "most": [{"parties": ["north"], "events": [NOISE.pack()]}]}


def made(folder: Path, demand: Demand | None = None, helper: bool = False) -> SiteLedger:
    return SiteLedger(folder, "north", helper, lambda: demand)


def spend(party: str = "north", request: str = "r#0", **more: Any) -> dict[str, Any]:
    return {"op": "spend", "event": NOISE.pack(), "parties": [party], "request": request, **more}


def asked(book: SiteLedger, *frames: Any, job: str = "1") -> list[Any]:
    async def body() -> list[Any]:
        return [await book.answer(job, frame) for frame in frames]

    return asyncio.run(body())


def test_jobs_share_one_file_and_hear_of_their_own_lines_only(tmp_path: Path) -> None:
    book = made(tmp_path)
    asked(book, spend(), spend(), job="1")  # once more after a crash
    asked(book, spend("north/anna"), job="2")
    again = made(tmp_path)  # of another process
    assert [[line["job"] for line in asked(again, {"op": "open"}, job=job)[0]["lines"]] for job in "12"] == [
        ["1"],
        ["2"],
    ]
    assert [line["party"] for line in Ledger(tmp_path / "ledger.jsonl")] == ["north", "north/anna"]


def promise(what: str, bound: str) -> dict[str, Any]:
    return {"op": "promise", "rows": hash_parts(what) + hash_parts(bound)}


def test_what_parties_have_promised_is_kept_for_each_job_and_never_changes(tmp_path: Path) -> None:
    assert asked(made(tmp_path), promise("set", "all"), promise("set", "all")) == [{"ok": True}] * 2
    again = made(tmp_path)  # of another process
    (kept,) = asked(again, {"op": "promises"})
    assert kept["rows"] == hash_parts("set") + hash_parts("all")
    (told,) = asked(again, promise("set", "fewer"))
    assert "has answered otherwise before" in told["error"]["what"]
    assert asked(again, promise("set", "fewer"), job="2") == [{"ok": True}]  # of another job
    assert asked(again, {"op": "promises"})[0]["rows"] == kept["rows"]


def test_a_site_whose_folder_was_copied_answers_for_no_job_that_began_before(tmp_path: Path) -> None:
    """A backup may lack what was promised after it was made."""
    first = tmp_path / "first"
    asked(made(first), promise("set", "all"))
    shutil.copytree(first, tmp_path / "copy")
    copy = made(tmp_path / "copy")
    for frame in ({"op": "promises"}, promise("set", "fewer")):
        (told,) = asked(copy, frame)
        assert "is a copy: it may lack some that were given" in told["error"]["what"]
        assert "submit the job again" in told["error"]["remedy"]
    assert asked(copy, promise("set", "fewer"), job="2") == [{"ok": True}]  # a new job
    first.rename(tmp_path / "moved")
    assert asked(made(tmp_path / "moved"), {"op": "promises"})[0]["rows"]


def test_no_job_fills_the_disk_with_promises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("atoll.runtime.site.ledger._MOST_PROMISES", 64)
    book = made(tmp_path)
    assert asked(book, promise("1", "x"), promise("2", "x")) == [{"ok": True}] * 2
    (told,) = asked(book, promise("3", "x"))
    assert "has promised 2 things, and may promise 2" in told["error"]["what"]


@pytest.mark.parametrize("party", ["south", "northern", "", 7, "south/north"])
def test_a_jobs_process_speaks_for_its_own_site_only(tmp_path: Path, party: Any) -> None:
    (told,) = asked(made(tmp_path), spend(party))
    assert "is no party of site 'north'" in told["error"]["what"]
    assert not list(Ledger(tmp_path / "ledger.jsonl"))
    assert asked(made(tmp_path, helper=True), spend("keys")) == [
        {"ok": True}
    ]  # a helper's roles have names of their own


@pytest.mark.parametrize(
    "frame",
    [7, {}, {"op": "burn"}, spend(event=7), spend(event={"kind": "gaussian"}), spend(parties=None), {**ADMIT, "most": [7]}],
)  # fmt: skip
def test_frames_without_sense_are_answered_in_words(tmp_path: Path, frame: Any) -> None:
    (told,) = asked(made(tmp_path), frame)
    assert "a job's process sent no event" in told["error"]["what"]


def test_a_demand_counts_from_the_next_job_on(tmp_path: Path) -> None:
    now: list[Demand | None] = [None]
    book = SiteLedger(tmp_path, "north", False, lambda: now[0])
    assert asked(book, {"op": "open"}, spend())[1] == {"ok": True}
    now[0] = Demand(budget=Budget(epsilon=3.0, method="pld"))
    told = asked(book, {"op": "open"}, ADMIT, job="2")[1]
    assert told == {"ok": True}
    told = asked(book, {"op": "open"}, ADMIT, job="3")[1]
    assert "spent or promised to other jobs" in told["error"]["what"]
    book.close("2")
    assert asked(book, {"op": "open"}, ADMIT, job="3")[1] == {"ok": True}


def test_what_jobs_of_older_versions_spent_is_taken_over_once(tmp_path: Path) -> None:
    for job in ("1", "2"):
        old = Ledger(tmp_path / "jobs" / job / "state" / "ledger.jsonl")
        old.append(NOISE, "north", "r#0")
        old.append(NonPrivate(what="a count"), "north")
    for _ in range(2):
        made(tmp_path)
    assert sorted((line["job"], line["kind"]) for line in Ledger(tmp_path / "ledger.jsonl")) == [
        (job, kind) for job in "12" for kind in ("gaussian", "non-private")
    ]


def test_a_site_whose_ledger_was_changed_does_not_start(tmp_path: Path) -> None:
    asked(made(tmp_path), spend(), spend(request="r#1"))
    path = tmp_path / "ledger.jsonl"
    path.write_text(path.read_text().replace('"noise_multiplier": 2.0', '"noise_multiplier": 9.0', 1))
    with pytest.raises(CheckpointError, match="was changed: line 1"):
        made(tmp_path)


class Ends:
    """Two ends of a channel in one loop."""

    def __init__(self) -> None:
        self.boxes: list[asyncio.Queue[Any]] = [asyncio.Queue(), asyncio.Queue()]

    def end(self, which: int) -> Any:
        boxes = self.boxes

        class End:
            async def send(self, tree: Any) -> None:
                boxes[1 - which].put_nowait(tree)

            async def recv(self) -> Any:
                found = await boxes[which].get()
                if found is None:
                    raise LinkClosed("gone")
                return found

        return End()


def test_a_jobs_process_waits_for_its_daemon_from_any_thread(tmp_path: Path) -> None:
    demand = Demand(budget=Budget(epsilon=2.0, method="pld"))

    async def body() -> list[str]:
        ends, book = Ends(), made(tmp_path, demand)
        serving = asyncio.create_task(book.serve(ends.end(0), "1"))
        ledger = await DaemonLedger.open_ledger(ends.end(1), "1")
        errors: list[str] = []

        def work(name: str) -> None:
            for number in range(3):
                try:
                    for _ in range(2):  # a repeat asks nobody
                        ledger.append(NOISE, "north", f"{name}/{number}#0")
                except PolicyError as error:
                    errors.append(str(error))

        threads = [threading.Thread(target=work, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        with pytest.raises(MessageError, match="is no party of site"):
            await asyncio.to_thread(ledger.append, NOISE, "south", "c#0")
        assert [line["request"] for line in ledger] == [line["request"] for line in Ledger(tmp_path / "ledger.jsonl")]
        ends.boxes[0].put_nowait(None)
        await serving
        return errors

    errors = asyncio.run(body())
    assert len(list(Ledger(tmp_path / "ledger.jsonl"))) == 1
    assert len(errors) == 5
    assert all("another release would make the epsilon of north" in error for error in errors)
