"""A site that stands still without being dead: found out within the job's patience, named, and let go."""

from __future__ import annotations

import asyncio
import importlib
import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.data import Dataset, Islands
from atoll.runtime.job_spec import importing
from tests.support.failing_world import (
    DEADLINE,
    SITES,
    WALK,
    Follower,
    ended,
    error_of,
    outcome,
    until,
    world,
    write_job,
)

PATIENCE = 4.0


def simulated(folder: Path) -> bytes:
    """Where the walk ends if nothing disturbs it."""
    with importing(folder / "code"):
        program = importlib.import_module("failing_job").walk
        rows = Dataset({"x": np.zeros((1, 6))}, task="unlabelled")
        walked = atoll.simulate(program, Islands.from_datasets(dict.fromkeys(SITES, rows)), engine="inline")
    return np.asarray(walked["x"]).tobytes()


@pytest.mark.slow
def test_a_site_that_stands_still_is_named_and_let_go(tmp_path: Path) -> None:
    """How soon is asked on clocks that jump: of one attempt in server/test_parties.py, of the engine in security/test_patience.py."""
    gate = tmp_path / "gate"

    async def play() -> None:
        async with world(tmp_path / "project", quick={"answer_within": 5.0}) as here:
            admin, site = await here.admin(), here.fronts["site-2"]

            async def begun(name: str, **settings: object) -> str:
                """A job that takes half of each site."""
                half = {"patience": PATIENCE, "resources": {"cpus": 32.0}, **settings}
                return str((await admin.submit(write_job(tmp_path / name, WALK, **half)))["job"])

            async def stuck(*jobs: str) -> None:
                """Wait until jobs are in the middle of their third round."""
                for follower in [Follower(admin, job) for job in jobs]:
                    await until("round 2", lambda f=follower: f.ended or len(f.of("server", "round")) >= 2)

            # The site's job processes stand still: one job fails, the other goes on without the site.
            gate.touch()
            shut = {"arguments": {"gate": str(gate)}}
            failing = await begun("failing", **shut)
            dropping = await begun("dropping", **shut, on_lost="drop", min_sites=1)
            await stuck(failing, dropping)
            for victim in site.jobs():
                os.kill(victim, signal.SIGSTOP)
            gate.unlink()
            found = await ended(admin, failing)
            assert (found["state"], found["attempts"]) == ("failed", 1), found
            silence = re.search(r"no progress for (\d+) seconds", error_of(found))
            assert silence, error_of(found)
            assert int(silence[1]) >= PATIENCE
            assert "site site-2" in error_of(found)
            assert "raise `patience`" in error_of(found)
            found = await ended(admin, dropping)
            assert (found["state"], found["attempts"]) == ("finished", 1), found
            whole = simulated(tmp_path / "dropping")
            assert await outcome(admin, dropping, tmp_path / "less") != whole

            # What they held is free again. The whole machine stands still, front and all: others go on.
            gate.touch()
            frozen = await begun("frozen", **shut)
            await stuck(frozen)
            for victim in (*site.jobs(), site.pid):
                os.kill(victim, signal.SIGSTOP)
            gate.unlink()
            found = await ended(admin, frozen)
            assert found["state"] == "failed", found
            assert "site-2" in error_of(found)
            waits = await begun("waits", patience=DEADLINE)
            assert (await ended(admin, await begun("alone", sites=["site-1"])))["state"] == "finished"

            # It is welcome when it moves again.
            for pid in (site.pid, *site.jobs()):
                os.kill(pid, signal.SIGCONT)
            assert (await ended(admin, waits))["state"] == "finished"
            assert await outcome(admin, waits, tmp_path / "waited") == whole
            assert not any(front.jobs() for front in here.fronts.values())

    asyncio.run(play())
