"""Fronts that are killed in the middle of a job: the next attempt ends where an undisturbed one would have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from front_toys import World, played, write_job


@pytest.mark.parametrize("killed", ["site-1", "server"])
def test_a_front_that_is_killed_and_started_again_changes_nothing(killed: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def body(world: World) -> None:
        gate.touch()
        job = (await world.admin.submit(write_job(tmp_path / "a", arguments={"gate": str(gate)})))["job"]
        await world.until(job, "server", "done 2")
        world.poc.process(killed).kill()
        await world.poc.process(killed).wait()
        await world.poc.start(killed)
        gate.unlink()
        ended = await world.end(job)
        assert (ended["state"], ended["attempts"]) == ("finished", 2)
        plain = (await world.admin.submit(write_job(tmp_path / "b")))["job"]
        assert (await world.end(plain))["attempts"] == 1
        np.testing.assert_array_equal(
            await world.result(job, tmp_path / "killed"), await world.result(plain, tmp_path / "plain")
        )
        # No round was done twice at the server: it went on from its checkpoint.
        lines = [text async for _, node, text in world.admin.logs(job) if node == "server"]
        assert [line for line in lines if line.startswith("done")] == [f"done {i}" for i in range(1, 7)]

    played(tmp_path / "project", body)
