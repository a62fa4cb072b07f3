"""A project with real processes, and a small job whose pace a test holds in its hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core.persistence.files import read_message
from atoll.runs import yaml
from atoll.runtime.admin import Admin
from atoll.runtime.poc import Poc
from tests.support.carriers import carrier

DEADLINE = 300.0
SITES = ["site-1", "site-2"]

# Random steps with memory at the parties: whatever is lost or done twice shows in the sum. A task waits at the gate of its round while a file is there.
PROGRAM = """
import threading
from pathlib import Path

import numpy as np

import atoll


@atoll.task
def step(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    if message["fail"]:
        raise ValueError("the columns are of another kind")
    state = island.state if island.state is not None else {"speed": np.zeros(4)}
    speed = 0.9 * state["speed"] + island.rng.generator().normal(size=4) + np.asarray(island.data.x).mean(axis=0)
    island.state = {"speed": speed}
    print("round", message["round"], flush=True)
    return {"sum": atoll.Sum(message["x"] * 0.5 + speed)}


async def walk(fed, rounds=6, gate="", at=3, fail=False, gates=None):
    state = await fed.restore({"x": np.zeros(4), "round": 0})
    while state["round"] < rounds:
        number = state["round"] + 1
        shut = (gates or {}).get(str(number), gate if number == at else "")
        message = {"x": state["x"], "round": number, "gate": shut, "fail": fail}
        total = await fed.sum(fed.parties, step, message, at=number)
        state = {"x": total["sum"], "round": number}
        fed.record({"round": number})
        await fed.checkpoint(state)
        print("done", number, flush=True)
    return {"x": state["x"]}
"""


def write_job(folder: Path, **settings: Any) -> Path:
    """A job's folder with its module; ``arguments`` go to the program."""
    (folder / "code").mkdir(parents=True, exist_ok=True)
    (folder / "code" / "walking.py").write_text(PROGRAM, encoding="utf-8")
    tree = {
        "name": "walk", "sites": SITES, "source": "code", "job": "program", "program": "walking:walk", "patience": 60.0,
        "resources": {"cpus": 1.0}, **settings,
    }  # fmt: skip
    (folder / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    return folder


def write_data(folder: Path) -> dict[str, list[str]]:
    """A few rows a site."""
    made = {}
    for number, name in enumerate(SITES):
        rows = np.random.default_rng(number).normal(size=(5, 4))
        file = folder / "data" / name / "rows.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez(file, x=rows, y=np.arange(5) % 2)
        made[name] = [str(file)]
    return made


class World:
    """A running project and an admin's connection to it."""

    def __init__(self, poc: Poc, admin: Admin, said: list[tuple[str, str]]) -> None:
        self.poc = poc
        self.admin = admin
        self.said = said

    async def until(self, job: str, node: str, line: str) -> None:
        """Wait until a node of a job has said something."""
        async with asyncio.timeout(DEADLINE):
            async for _, who, text in self.admin.logs(job, follow=True):
                if (who, text) == (node, line):
                    return
        raise AssertionError(f"{node} never said {line!r}")

    async def state(self, job: str, *wanted: str) -> dict[str, Any]:
        """Wait until a job is in one of these states."""
        async with asyncio.timeout(DEADLINE):
            async for found in self.admin.watch(job):
                if found[0]["state"] in wanted:
                    return found[0]
        raise AssertionError("the watch has ended")

    async def waits(self, job: str, why: str) -> None:
        """Wait until a job is in the queue for that."""
        async with asyncio.timeout(DEADLINE):
            async for found in self.admin.watch(job):
                if why in found[0]["reason"]:
                    return
        raise AssertionError("the watch has ended")

    async def end(self, job: str) -> dict[str, Any]:
        """Wait for the end of a job."""
        return await self.state(job, "finished", "failed", "aborted")

    async def result(self, job: str, folder: Path) -> Any:
        """What a job's program returned."""
        await self.admin.result(job, folder)
        return read_message(folder / "result.msg")["x"]


async def typed(world: World, command: str, *words: str, code: int = 0, who: str = "admin") -> Any:
    """What a command answers with --json, typed by the admin or with another kit."""
    kit = str(world.poc.folder / "kits" / who)
    full = [sys.executable, "-m", "atoll.cli", command, *words, "--kit", kit, "--server", world.poc.address, "--json"]
    running = await asyncio.create_subprocess_exec(*full, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    async with asyncio.timeout(DEADLINE):
        out, err = await running.communicate()
    assert running.returncode == code, err.decode()
    return json.loads(out)


@contextlib.asynccontextmanager
async def project(
    folder: Path,
    transport: str | None = None,
    data: dict[str, list[str]] | None = None,
    helpers: dict[str, str] | None = None,
) -> AsyncIterator[World]:
    """Start a project in a folder."""
    said: list[tuple[str, str]] = []
    told = data or write_data(folder)
    poc = Poc(folder, told, transport=transport or carrier(), on_line=lambda *line: said.append(line), helpers=helpers)
    try:
        async with poc, Admin(poc.kit("admin"), poc.address) as admin:
            yield World(poc, admin, said)
    except BaseException:
        for line in said:
            print(*line)
        raise


def played(folder: Path, body: Callable[[World], Awaitable[None]], **options: Any) -> None:
    """Run a test's body with a project of its own."""

    async def main() -> None:
        async with project(folder, **options) as world:
            await body(world)

    asyncio.run(main())
