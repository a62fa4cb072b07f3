"""Processes that are killed in the middle of a job: the next attempt ends where an undisturbed one would have."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
from front_toys import World, played, write_job


def children(pid: int) -> list[int]:
    """Processes that another one has started."""
    found = [path.read_text(encoding="ascii").split() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    return [int(child) for part in found for child in part]


async def kill(world: World, what: str) -> None:
    """kill -9, and start it again if it is a front."""
    if what == "job":  # a site's process of the job alone
        (pid,) = children(world.poc.process("site-2").pid)
        os.kill(pid, signal.SIGKILL)
        return
    process = world.poc.process(what)
    process.kill()
    await process.wait()
    await world.poc.start(what)


def test_whatever_is_killed_the_result_is_the_same(tmp_path: Path) -> None:
    victims = ("job", "site-1", "server")  # each in a round of its own of one job
    gates = {str(number): tmp_path / f"gate-{number}" for number in (2, 3, 4)}

    async def body(world: World) -> None:
        plain = (await world.admin.submit(write_job(tmp_path / "b")))["job"]
        assert (await world.end(plain))["attempts"] == 1
        wanted = await world.result(plain, tmp_path / "plain")
        for gate in gates.values():
            gate.touch()
        arguments = {"gates": {number: str(gate) for number, gate in gates.items()}}
        job = (await world.admin.submit(write_job(tmp_path / "a", arguments=arguments)))["job"]
        for attempt, (what, gate) in enumerate(zip(victims, gates.values(), strict=True), 1):
            await world.until(job, "server", f"done {attempt}")
            assert (await world.admin.job(job))["attempts"] == attempt
            await kill(world, what)
            gate.unlink()
        ended = await world.end(job)
        assert (ended["state"], ended["attempts"]) == ("finished", 1 + len(victims))
        np.testing.assert_array_equal(wanted, await world.result(job, tmp_path / "after"))
        # No round was done twice at the server: it went on from its checkpoint.
        lines = [text async for _, node, text in world.admin.logs(job) if node == "server"]
        assert [line for line in lines if line.startswith("done")] == [f"done {i}" for i in range(1, 7)]
        for name in ("site-1", "site-2"):  # nothing of a job that has ended stays at a site
            assert not list((world.poc.folder / "run" / name / "jobs").rglob("*.py"))

    played(tmp_path / "project", body)
