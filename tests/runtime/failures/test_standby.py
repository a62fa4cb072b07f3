"""A standby takes over when the server's process is killed, by itself, and the job ends as if nothing had happened."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import numpy as np
import pytest

from atoll.core.errors import JobError
from atoll.runs import read_model
from atoll.runtime.store.database import Database
from tests.support.failing_world import SCAFFOLD, Follower, ended, trained, until, world, write_job


def free_ports(count: int) -> list[int]:
    """Ports of this machine that nobody uses at the moment."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    return ports


@pytest.mark.slow
def test_a_standby_takes_over_and_no_round_is_lost(tmp_path: Path) -> None:
    main, spare = free_ports(2)

    async def play() -> None:
        async with world(tmp_path / "project", port=main, spare=spare) as here:
            await here.start("spare", wait=False)
            await until("standby", lambda: any("stands by" in line for line in here.fronts["spare"].said))
            admin = await here.admin()
            job = (await admin.submit(write_job(tmp_path / "scaffold", **SCAFFOLD)))["job"]
            follower = Follower(admin, job)
            await until("five rounds", lambda: len(follower.of("server", "round")) >= 5)
            assert here.fronts["spare"].answer is None
            begin = time.perf_counter()
            await here.fronts["server"].end()
            await until("the standby", lambda: here.fronts["spare"].answer)
            taken = time.perf_counter() - begin
            assert here.fronts["spare"].answer["listening"].endswith(str(spare))
            # FLARE's servers change over within two periods of its overseer, 10 s.
            assert taken < 10, taken
            found = await ended(admin, job)
            assert found["state"] == "finished", found
            assert found["attempts"] == 2
            await admin.result(job, tmp_path / "made")
            made, plain = read_model(tmp_path / "made" / "model.safetensors"), trained()
            for leaf, value in plain.items():
                np.testing.assert_array_equal(made[leaf], value)

    asyncio.run(play())


def test_a_folder_is_waited_for_or_refused(tmp_path: Path) -> None:
    first = Database(tmp_path / "jobs.sqlite")
    with pytest.raises(JobError, match="another process holds the store"):
        Database(tmp_path / "jobs.sqlite")

    async def play() -> None:
        waiting = asyncio.create_task(asyncio.to_thread(Database, tmp_path / "jobs.sqlite", wait=True))
        await asyncio.sleep(0)
        assert not waiting.done()
        await asyncio.to_thread(first.close)
        (await waiting).close()

    asyncio.run(play())
