"""A program that runs two trainings at once, between real processes over mutual TLS, whose server is killed in the middle."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.core import message as M
from atoll.core.persistence.files import read_message
from atoll.data import Islands
from atoll.runtime.admin import Admin
from atoll.runtime.job_spec import importing
from atoll.runtime.worker.sitedata import load_site_data
from tests.support.front_toys import SITES, World, played, write_job

PROGRAM = """
import asyncio
import threading
from pathlib import Path

import numpy as np

import atoll


class Pair:
    def __init__(self, gate=""):
        def wait(row):
            print("done", row["round"], flush=True)
            while row["round"] == 2 and gate and Path(gate).exists():
                threading.Event().wait(0.01)

        first = atoll.Training(model=atoll.models.linear(4, 2), algorithm=atoll.FedAvg(lr=0.3), rounds=3)
        other = first.replace(algorithm=atoll.algorithms.FedProx(lr=0.1, mu=0.1), callbacks=[wait])
        self.jobs = {"a": first, "b": other}

    async def __call__(self, fed):
        found = await asyncio.gather(*(fed.run(job, fed.parties, scope=scope) for scope, job in self.jobs.items()))
        return [{name: np.asarray(value) for name, value in one.params.items()} for one in found]
"""


def pair(folder: Path, **arguments: str) -> Path:
    made = write_job(folder, program="pairs:Pair", arguments=arguments)
    (folder / "code" / "pairs.py").write_text(PROGRAM, encoding="utf-8")
    return made


def undisturbed(folder: Path, data: Path) -> Any:
    """What both find in a simulation."""
    rows = {name: load_site_data({"path": str(data / name / "rows.npz")}, name).population for name in SITES}
    islands = Islands.from_datasets({name: next(iter(one)).dataset() for name, one in rows.items()})
    with importing(folder / "code"):
        return atoll.simulate(importlib.import_module("pairs").Pair(), islands, engine="inline")


@pytest.mark.slow
def test_two_trainings_of_one_program_go_on_after_the_server_was_killed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"

    async def body(world: World) -> None:
        gate.touch()
        job = (await world.admin.submit(pair(tmp_path / "job", gate=str(gate))))["job"]
        await world.until(job, "server", "done 2")
        server = world.poc.process("server")
        server.kill()
        await server.wait()
        gate.unlink()
        await world.poc.start("server")
        async with Admin(world.poc.kit("admin"), world.poc.address) as admin:
            here = World(world.poc, admin, world.said)
            assert (await here.end(job))["state"] == "finished"
            await admin.result(job, tmp_path / "result")
        found = read_message(tmp_path / "result" / "result.msg")
        assert M.equal(found, undisturbed(tmp_path / "job", tmp_path / "project" / "data"))

    played(tmp_path / "project", body)
