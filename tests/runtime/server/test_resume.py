"""Jobs that ended without a result go on where they were: the same job, the same end, nothing spent twice."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import JobError, PolicyError
from atoll.data import Dataset, Islands
from atoll.runtime.admin import Admin
from atoll.runtime.job_spec import importing
from atoll.runtime.server.requests import KEPT, forgotten, require_kept
from atoll.runtime.store.records import JobRecord, JobState
from tests.support.front_toys import SITES, World, played, write_job
from tests.support.waiting import find_files, until

# A walk with memory at its parties, whose second site refuses round 4 while a file is there; every step spends something and is written down.
PROGRAM = """
import threading
from pathlib import Path

import numpy as np

import atoll
from atoll.core.event import Event


@atoll.task
def step(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    state = island.state if island.state is not None else {"speed": np.zeros(4)}
    speed = 0.9 * state["speed"] + island.rng.generator().normal(size=4)
    island.state = {"speed": speed}
    island.spend(Event())
    if message["poison"] and island.name == "site-2" and Path(message["poison"]).exists():
        raise OSError("No space left on device")
    return {"sum": atoll.Sum(message["x"] * 0.5 + speed)}


async def walk(fed, poison="", gate=""):
    state = await fed.restore({"x": np.zeros(4), "round": 0})
    while state["round"] < 6:
        number = state["round"] + 1
        message = {"x": state["x"], "poison": poison if number == 4 else "", "gate": gate if number == 5 else ""}
        total = await fed.sum(fed.parties, step, message, at=number, quorum=1, deadline=600.0)
        state = {"x": total["sum"], "round": number}
        await fed.checkpoint(state)
        print("done", number, flush=True)
    return {"x": state["x"]}
"""


def walk(folder: Path, **arguments: str) -> Path:
    made = write_job(folder, program="spending:walk", arguments=arguments)
    (folder / "code" / "spending.py").write_text(PROGRAM, encoding="utf-8")
    return made


def spent(world: World, job: str) -> dict[str, list[str]]:
    """Site -> the requests in its ledger of a job."""
    files = {site: world.poc.folder / "run" / site / "ledger.jsonl" for site in SITES}
    lines = {site: [json.loads(line) for line in file.read_text().splitlines()] for site, file in files.items()}
    return {site: [line["request"] for line in made if line["job"] == job] for site, made in lines.items()}


def decided(world: World, job: str) -> list[str]:
    """What the real clock has decided in a job, line by line."""
    found = list((world.poc.folder / "run" / "server" / "jobs" / job).rglob("decisions.jsonl"))
    return [line for file in found for line in file.read_text(encoding="utf-8").splitlines()]


def undisturbed(folder: Path) -> Any:
    """Where the walk ends in a simulation, which nothing disturbs."""
    with importing(folder / "code"):
        program = importlib.import_module("spending").walk
        rows = Dataset({"x": np.zeros((1, 4))}, task="unlabelled")
        return atoll.simulate(program, Islands.from_datasets(dict.fromkeys(SITES, rows)), engine="inline")["x"]


@pytest.mark.slow
def test_a_job_that_failed_and_one_that_was_aborted_go_on_to_the_end_of_an_undisturbed_one(tmp_path: Path) -> None:
    poison, gate = tmp_path / "poison", tmp_path / "gate"

    async def body(world: World) -> None:
        poison.touch()
        gate.touch()
        job = (await world.admin.submit(walk(tmp_path / "b", poison=str(poison), gate=str(gate))))["job"]
        ended = await world.end(job)
        assert (ended["state"], ended["attempts"]) == ("failed", 1)
        assert ended["error"]["what"] == "OSError: «…»"  # its words stay in the site's own log
        assert any("No space left on device" in line for _, line in world.said)
        before = spent(world, job), decided(world, job)
        assert [len(requests) for requests in before[0].values()] == [4, 4]
        assert "@4" in before[1][-1]

        # Neither the server's own death nor an auditor changes what can be done about it.
        server = world.poc.process("server")
        server.kill()
        await server.wait()
        await world.poc.start("server")
        async with Admin(world.poc.kit("auditor"), world.poc.address) as auditor:
            with pytest.raises(PolicyError, match="may not ask for 'resume'"):
                await auditor.resume(job)
        async with Admin(world.poc.kit("admin"), world.poc.address) as admin:
            here = World(world.poc, admin, world.said)
            poison.unlink()
            goes_on = await admin.resume(job)
            assert (goes_on["job"], goes_on["attempts"], goes_on["error"]) == (job, 1, None)
            await here.until(job, "server", "done 4")
            assert (await admin.abort(job))["attempts"] == 2
            assert before[1][-1] in decided(world, job)  # as it was, in a file that keeps the last rounds only
            gate.unlink()
            ended = await admin.wait((await admin.resume(job))["job"])
            assert (ended["state"], ended["attempts"], ended["error"]) == ("finished", 3, None)

            x = await here.result(job, tmp_path / "one")
            np.testing.assert_array_equal(x, undisturbed(tmp_path / "b"))
            with pytest.raises(JobError, match=r"the job has its result.*atoll clone"):
                await admin.resume(job)
            lines = [text async for _, node, text in admin.logs(job) if node == "server" and text.startswith("done")]
            assert lines == [f"done {i}" for i in range(1, 7)]  # no round was done twice
            # What was spent before the failure stands, and what came after it was added once.
            once = [f"main/spending:step/@{i}#0" for i in range(1, 7)]
            assert spent(world, job) == dict.fromkeys(SITES, once)
            assert all(requests[:4] == before[0][site] for site, requests in spent(world, job).items())
            events = (await admin.one("events", job=job))["events"]
            resumed = [(e["who"], e["details"]["from"]) for e in events if e["what"] == "resumed"]
            assert resumed == [("admin 'admin' of 'poc'", "failed"), ("admin 'admin' of 'poc'", "aborted")]
        for site in SITES:  # nothing stays once there is a result: what was spent is in the site's own ledger
            jobs = world.poc.folder / "run" / site / "jobs"
            await until(lambda jobs=jobs: not find_files(jobs))

    played(tmp_path / "project", body)


def record(state: JobState, **changes: Any) -> JobRecord:
    said: dict[str, Any] = {
        "id": "7", "name": "a", "submitter": "ann", "org": "x", "created": 0.0, "state": state, "attempts": 1, "barren": 0,
        "reason": "", "error": None, "spec": {}, "bundle": "", "sites": ("north", "south"), "times": ((state, 100.0),),
        "token": "t",
    }  # fmt: skip
    return JobRecord(**said | changes)


def test_a_job_of_which_nothing_is_left_is_to_be_cloned(tmp_path: Path) -> None:
    failed = record(JobState.FAILED)
    sessions: Any = {"north": SimpleNamespace(kept={"7"})}  # the other one is away, and believed
    require_kept(failed, tmp_path, sessions, 200.0)
    require_kept(record(JobState.ABORTED), tmp_path, {}, 100.0 + KEPT)
    gone: Any = {**sessions, "south": SimpleNamespace(kept={"8"})}
    for job, state, here, now, why in (
        (record(JobState.FAILED, attempts=0), tmp_path, sessions, 200.0, "it never began"),
        (failed, tmp_path / "none", sessions, 200.0, "its folder is no longer at the server"),
        (failed, tmp_path, sessions, 101.0 + KEPT, "it ended 30 days ago, and sites keep a job's state for 30"),
        (failed, tmp_path, gone, 200.0, "site 'south' no longer keeps anything of it"),
    ):
        with pytest.raises(JobError, match=rf"cannot be resumed: {why}.*atoll clone 7"):
            require_kept(job, state, here, now)


def test_sites_keep_what_can_still_go_on() -> None:
    assert forgotten(record(JobState.FINISHED), 100.0)
    for state in (JobState.FAILED, JobState.ABORTED):
        assert not forgotten(record(state), 100.0 + KEPT)
        assert forgotten(record(state), 101.0 + KEPT)
    assert not forgotten(record(JobState.RUNNING), 10 * KEPT)
