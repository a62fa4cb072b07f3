"""A site that stands still without being dead: found out within the job's patience, named, and let go."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

from failing_world import Follower, ended, error_of, outcome, until, world, write_job

PATIENCE = 5.0

WALK = """
import threading
from pathlib import Path

import numpy as np

import atoll


@atoll.task
def step(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    state = island.state if island.state is not None else {"speed": np.zeros(4)}
    island.state = {"speed": 0.9 * state["speed"] + island.rng.generator().normal(size=4)}
    return {"sum": atoll.Sum(message["x"] * 0.5 + island.state["speed"])}


async def walk(fed, rounds=8, gate="", at=3):
    state = await fed.restore({"x": np.zeros(4), "round": 0})
    while state["round"] < rounds:
        number = state["round"] + 1
        message = {"x": state["x"], "gate": gate if number == at else ""}
        total = await fed.sum(fed.parties, step, message, at=number, quorum=1)
        state = {"x": total["sum"], "round": number}
        fed.record({"round": number})
        await fed.checkpoint(state)
    return {"x": state["x"]}
"""


def test_a_site_that_stands_still_is_named_and_let_go(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def play() -> None:
        async with world(tmp_path / "project") as here:
            admin = await here.admin()

            async def stuck(name: str, *, front: bool, **settings: object) -> tuple[str, float]:
                """A job whose second site stands still in round 3, and when."""
                gate.touch()
                job = write_job(tmp_path / name, WALK, patience=PATIENCE, arguments={"gate": str(gate)}, **settings)
                made = (await admin.submit(job))["job"]
                follower = Follower(admin, made)
                await until("round 2", lambda: follower.ended or len(follower.of("server", "round")) >= 2)
                victims = here.fronts["site-2"].jobs() + ([here.fronts["site-2"].pid] if front else [])
                for victim in victims:
                    os.kill(victim, signal.SIGSTOP)
                began = time.monotonic()
                gate.unlink()
                await follower.end()
                return made, began

            # Its job's process stands still: the job fails in time, and what it held is free for the next one.
            job, began = await stuck("stuck", front=False)
            found = await ended(admin, job)
            assert time.monotonic() - began < 3 * PATIENCE + 6
            assert (found["state"], found["attempts"]) == ("failed", 1), found
            assert "no progress for" in error_of(found)
            assert "site site-2" in error_of(found)
            assert "raise `patience`" in error_of(found)
            job = (await admin.submit(write_job(tmp_path / "next", WALK)))["job"]
            assert (await ended(admin, job))["state"] == "finished"
            whole = await outcome(admin, job, tmp_path / "whole")

            # The whole machine stands still, front and all. Others go on, and it is welcome when it moves again.
            job, began = await stuck("frozen", front=True)
            found = await ended(admin, job)
            assert time.monotonic() - began < 3 * PATIENCE + 6
            assert found["state"] == "failed", found
            assert "site-2" in error_of(found)
            alone = (await admin.submit(write_job(tmp_path / "alone", WALK, sites=["site-1"])))["job"]
            assert (await ended(admin, alone))["state"] == "finished"
            waits = (await admin.submit(write_job(tmp_path / "waits", WALK)))["job"]
            for pid in [here.fronts["site-2"].pid, *here.fronts["site-2"].jobs()]:
                os.kill(pid, signal.SIGCONT)
            assert (await ended(admin, waits))["state"] == "finished"
            assert await outcome(admin, waits, tmp_path / "waited") == whole
            assert not any(front.jobs() for front in here.fronts.values())

            # Where the job says so, it goes on without the site.
            job, _ = await stuck("dropped", front=False, on_lost="drop", min_sites=1)
            found = await ended(admin, job)
            assert (found["state"], found["attempts"]) == ("finished", 1), found
            assert await outcome(admin, job, tmp_path / "less") != whole

    asyncio.run(play())
