"""A server that has many jobs, as a process of its own."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.support.front_toys import World, project, write_job

JOBS = 2700


def multiply(folder: Path, jobs: int) -> None:
    """Copy the only job, in the server's database."""
    with sqlite3.connect(folder / "jobs.sqlite") as open_:
        names = [row[1] for row in open_.execute("PRAGMA table_info(jobs)") if row[1] not in ("number", "id", "token")]
        columns = ", ".join(names)
        open_.executemany(
            f"INSERT INTO jobs (id, token, {columns}) SELECT ?, ?, {columns} FROM jobs WHERE number = 1",
            [(f"{n:08d}-copy", f"copy {n}") for n in range(2, jobs + 1)],
        )
    open_.close()


@pytest.mark.both_carriers
@pytest.mark.slow
def test_a_server_with_many_queued_jobs_is_soon_there_again(tmp_path: Path) -> None:
    """2,700 jobs in less than 5 s of processor time, which says the same on a busy machine; its quick sibling, `test_a_new_job_looks_at_no_other`, counts."""

    async def body() -> None:
        async with project(tmp_path / "project") as world:
            job = write_job(tmp_path / "job", sites=["site-1", "nowhere"])
            assert (await world.admin.submit(job))["state"] == "queued"
            await stopped(world)
            multiply(tmp_path / "project" / "run" / "server", JOBS)
            await world.poc.start("server")
            found: list[Any] = await world.admin.jobs(states=["queued"])
            assert len(found) == JOBS
            assert "'nowhere'" in found[-1]["reason"]
            await world.admin.abort(found[0]["job"])
            spent = world.poc.process("server").cpu()
            print(f"{spent:.2f} s of processor time")
            assert spent < 5.0

    asyncio.run(body())


async def stopped(world: World) -> None:
    world.poc.process("server").kill()
    await world.poc.process("server").wait()
