"""Large messages between real processes: 192 MiB down to each site and up again, and daemons that hold a small part of one at a time."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from atoll.core.persistence.files import read_message
from tests.support.failing_world import SITES, ended, world, write_job

NUMBERS = 24 << 20
LARGE = f"""
import numpy as np

import atoll


@atoll.task
def double(island, message):
    return {{"w": atoll.Sum(message["w"] * 2)}}


async def walk(fed):
    w = np.arange({NUMBERS}, dtype=np.float64)
    total = (await fed.sum(fed.parties, double, {{"w": w}}))["w"]
    return {{"x": np.array([np.abs(total - 4 * w).max(), total[-1], len(total)])}}
"""


def peak(pid: int) -> int:
    """The most memory that a process has had, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


@pytest.mark.slow
def test_messages_of_192_mib_arrive_whole_and_no_daemon_holds_one(tmp_path: Path) -> None:
    async def play() -> None:
        async with world(tmp_path / "project") as here:
            admin = await here.admin()
            before = {name: peak(here.fronts[name].pid) for name in ("server", *SITES)}
            job = (await admin.submit(write_job(tmp_path / "large", LARGE)))["job"]
            found = await ended(admin, job)
            assert found["state"] == "finished", found
            await admin.result(job, tmp_path / "made")
            wrong, last, length = read_message(tmp_path / "made" / "result.msg")["x"]
            assert (wrong, last, length) == (0.0, 4.0 * (NUMBERS - 1), NUMBERS)
            for name, held in before.items():
                grown = (peak(here.fronts[name].pid) - held) / 2**20
                assert grown < 96, f"{name} grew by {grown:.0f} MiB"

    asyncio.run(play())
