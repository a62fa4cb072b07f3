"""Seeded kills with ``kill -9``: whoever is killed and whenever, the job ends where an undisturbed one would have.

Eight by default, each kind of victim in either job; twenty with ``make faults``.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import random
import signal
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import atoll
from atoll.core.persistence.files import read_message
from atoll.runs import read_model
from atoll.runtime.admin import Admin
from atoll.runtime.job_spec import importing
from tests.support.failing_world import (
    DEADLINE,
    ENDED,
    ROUNDS,
    SCAFFOLD,
    SITES,
    Follower,
    World,
    ended,
    rows,
    trained,
    until,
    worked,
    world,
    write_job,
)
from tests.support.waiting import find_files

# Each round every island draws entropy that nobody can repeat, spends budget, and keeps memory. What left an island once must never leave it as
# something else: the server writes down what it saw in each round, and rounds that are done again must show it again.
SECRETS = f"""
import numpy as np

import atoll
from atoll.core.event import Gaussian


@atoll.task
def step(island, message):
    island.spend(Gaussian(noise_multiplier=1.0, scope=island.name))
    drawn = island.secret.integer(1 << 40)
    state = island.state if island.state is not None else {{"speed": np.zeros(4)}}
    speed = 0.9 * state["speed"] + island.rng.generator().normal(size=4)
    island.state = {{"speed": speed}}
    return {{"sum": atoll.Sum(message["x"] * 0.5 + speed), "drawn": atoll.Sum(np.array([float(drawn)]))}}


async def walk(fed):
    state = await fed.restore({{"x": np.zeros(4), "round": 0, "saw": []}})
    while state["round"] < {ROUNDS}:
        number = state["round"] + 1
        total = await fed.sum(fed.parties, step, {{"x": state["x"]}}, at=number)
        saw = int(total["drawn"][0])
        print("saw", number, saw, "whole", flush=True)
        state = {{"x": total["sum"], "round": number, "saw": [*state["saw"], saw]}}
        fed.record({{"round": number}})
        await fed.checkpoint(state)
        print("kept", number, "whole", flush=True)
    return {{"x": state["x"], "saw": state["saw"]}}
"""

KILLS = 20 if os.environ.get("ATOLL_FAULTS") else 4
VICTIMS = ("server", "job at server", "site", "job at site")


def walked(job: Path) -> dict[str, Any]:
    """What the program returns where nothing disturbs it, but for what it draws in secret."""
    with importing(job / "code"):
        program = importlib.import_module("failing_job").walk
        return {"x": atoll.simulate(program, rows(), engine="inline")["x"]}


class Kill(NamedTuple):
    """One kill.

    Attributes:
        front: at which front.
        job: whether its job process dies, or the front itself (and with it the job process).
        rounds: how many further rounds are recorded before; 0: the attempt has only begun.
        work: milliseconds that the victim still works after that, unless two more rounds are recorded before.
    """

    front: str
    job: bool
    rounds: int
    work: float


def drawn(seed: int) -> list[Kill]:
    """The kills, each kind of victim equally often; a quarter of them fall into the beginning of an attempt."""
    rng = random.Random(seed)
    kinds = [VICTIMS[i % len(VICTIMS)] for i in range(KILLS)]
    rng.shuffle(kinds)
    made = []
    for kind in kinds:
        front = "server" if "server" in kind else rng.choice(SITES)
        rounds = rng.choice((0, 1, 1, 2))
        made.append(Kill(front, "job" in kind, rounds, rng.uniform(0, 400 if rounds == 0 else 15)))
    return made


class Killing:
    """Kills while one job after another runs, until all kills are done.

    Args:
        here: the project.
        admin: who asks.
        job: the folder of a job.
        kills: what is to be done.
    """

    def __init__(self, here: World, admin: Admin, job: Path, kills: list[Kill]) -> None:
        self.here = here
        self.admin = admin
        self.job = job
        self.left = list(reversed(kills))
        self.done: list[str] = []

    async def run(self) -> list[dict[str, Any]]:
        """The jobs at their end, with the lines of their logs."""
        jobs = []
        while self.left:
            job = (await self.admin.submit(self.job))["job"]
            follower, attempt = Follower(self.admin, job), 0
            while self.left and (attempt := await self._attempt_after(job, attempt)):
                if await self._killed(follower, self.left[-1]):
                    self.left.pop()
            found = await ended(self.admin, job)
            jobs.append({**found, "lines": await follower.end()})
        return jobs

    async def _attempt_after(self, job: str, number: int) -> int:
        """The next attempt, once it is there; 0 if the job ends before. Each kill has an attempt of its own to end."""
        async with asyncio.timeout(DEADLINE):
            async for found in self.admin.watch(job):
                if found[0]["state"] in ENDED:
                    return 0
                if found[0]["attempts"] > number:
                    return int(found[0]["attempts"])
        raise AssertionError("the watch has ended")

    async def _killed(self, follower: Follower, kill: Kill) -> bool:
        """Whether the kill came before the end of the job."""
        front = self.here.fronts[kill.front]
        mark = len(follower.of("server", "round")) + kill.rounds
        await until(
            f"job process at {kill.front}, or {mark} rounds",
            lambda: follower.ended or (front.jobs() and len(follower.of("server", "round")) >= mark),
        )
        victim = (self.here.job_process(kill.front) if kill.job else front.pid) if not follower.ended else None
        if victim is None:
            return False
        due = worked(victim) + kill.work
        await until(
            f"work at {kill.front}",
            lambda: follower.ended or worked(victim) >= due or len(follower.of("server", "round")) >= mark + 2,
        )
        if follower.ended or victim not in (*front.jobs(), front.pid):
            return False
        if kill.job:
            os.kill(victim, signal.SIGKILL)
            self.done.append(f"job at {kill.front}")
            return True
        await front.end()
        await self.here.start(kill.front)
        self.done.append(kill.front)
        return True


def kept(here: World, site: str) -> set[str]:
    """The names of the files of all jobs at a site."""
    return {path.name for path in find_files(here.place(site) / "jobs")}


def spent(here: World) -> dict[str, dict[str, list[dict[str, Any]]]]:
    """What each site's ledger says of each job that has spent with noise."""
    found: dict[str, dict[str, list[dict[str, Any]]]] = {site: {} for site in SITES}
    for site in SITES:
        for line in map(json.loads, (here.place(site) / "ledger.jsonl").read_text().splitlines()):
            if line["kind"] == "gaussian":
                found[site].setdefault(line["job"], []).append(line)
    return found


@pytest.mark.slow
def test_kills_change_nothing(tmp_path: Path) -> None:
    async def play() -> None:
        async with world(tmp_path / "project") as here:
            admin = await here.admin()
            jobs = {
                "scaffold": write_job(tmp_path / "scaffold", **SCAFFOLD),
                "secrets": write_job(tmp_path / "secrets", SECRETS),
            }
            plain = {"scaffold": trained(), "secrets": walked(jobs["secrets"])}
            kills, done = drawn(seed=20), []
            for name, part in (("scaffold", kills[: KILLS // 2]), ("secrets", kills[KILLS // 2 :])):
                killing = Killing(here, admin, jobs[name], part)
                for number, found in enumerate(await killing.run()):
                    assert found["state"] == "finished", found
                    out = tmp_path / "killed" / name / str(number)
                    await admin.result(found["job"], out)
                    for leaf, value in plain[name].items():
                        made = (
                            read_model(out / "model.safetensors")
                            if name == "scaffold"
                            else read_message(out / "result.msg")
                        )
                        np.testing.assert_array_equal(made[leaf], value, f"{name} {leaf}: {killing.done}")
                    if name == "secrets":
                        _released_once(found["lines"], read_message(out / "result.msg")["saw"])
                        _done_once(found["lines"])
                done += killing.done
            assert len(done) == KILLS
            died = {kind.split()[0] for kind in done}
            assert {"server", "job"} < died
            assert died & set(SITES) if 2 * len(VICTIMS) > KILLS else died.issuperset(SITES)
            _budget(here)
            for site in SITES:  # nothing stays where there is a result, once the site has heard of it
                await until(f"{site} has forgotten its jobs", lambda site=site: not kept(here, site))

    asyncio.run(play())


def _done_once(lines: list[tuple[str, str]]) -> None:
    """No round is done again once its checkpoint is there: the next attempt goes on from it."""
    said = [text.split() for node, text in lines if node == "server" and text.endswith("whole")]
    kept = 0
    for word, number, *_ in said:
        if word == "kept":
            kept = max(kept, int(number))
        else:
            assert int(number) > kept, (number, kept)
    assert kept >= ROUNDS // 2


def _released_once(lines: list[tuple[str, str]], counts: list[int]) -> None:
    """Whatever the server ever saw of a round, in whichever attempt, is what counts in the end."""
    assert len(counts) == len(set(counts)) == ROUNDS
    said = [text.split() for node, text in lines if node == "server" and text.startswith("saw")]
    shown = [words[1:3] for words in said if words[-1] == "whole"]  # a kill may cut a line short
    assert len(shown) >= ROUNDS // 2  # lines that were under way when a front was killed are lost
    for number, value in shown:
        assert int(value) == counts[int(number) - 1], number


def _budget(here: World) -> None:
    """Each site has spent exactly one release a round, whatever was killed."""
    for site in SITES:
        jobs = spent(here)[site]
        assert jobs
        for entries in jobs.values():
            assert len({entry["request"] for entry in entries}) == len(entries) == ROUNDS, (site, entries)
