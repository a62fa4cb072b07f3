"""``kill -9`` of a role's process in the middle of a session: all roles go on at the last step that they agreed on, over mutual TLS."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from atoll.core.errors import TaskError
from atoll.core.event import Laplace
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.runs import yaml
from tests.support.bridge import Bridge
from tests.support.certificates import authority
from tests.support.front_toys import SITES, played, write_data

pytestmark = pytest.mark.network

STEPS, FATAL = 5, 3


@pytest.fixture(scope="module")
def bridge(tmp_path_factory):
    made = Bridge(tmp_path_factory.mktemp("b"), "tcp", authority())
    yield made
    made.close()


@task
async def walks(island, peers, other, diary):
    """Says a number drawn for its step, hears the other's, and spends; the second party dies once, in the middle of a step."""
    state = await peers.restore({"step": 0, "heard": []})
    while state["step"] < STEPS:
        step = state["step"]
        with (Path(diary) / island.name).open("a") as file:
            file.write(f"{step}\n")
        island.spend(Laplace(epsilon=1.0, scope=island.name))
        await peers.channel("numbers").send(other, np.full(20, island.data + step))
        heard = await peers.channel("numbers").recv(other)
        last_words = Path(diary) / "dead"
        if step == FATAL and island.name == "client-1" and not last_words.exists():
            last_words.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        island.state = {"sum": (island.state or {"sum": 0.0})["sum"] + heard.sum()}
        state = {"step": step + 1, "heard": [*state["heard"], float(heard[0])]}
        await peers.checkpoint(state)
    return state["heard"], island.state["sum"]


def walk(diary):
    async def program(fed):
        roles = {role: (at, walks.with_args(other=other, diary=str(diary))) for role, at, other in CAST}
        return await fed.session(roles)

    return program


CAST = (("a", "client-0", "b"), ("b", "client-1", "a"))


def lived(engine, folder, diary, *, resume=False):
    async def main():
        world = World(Community([1.0, 2.0]), engine, folder=folder, resume=resume, sealing="real")
        result, fed = await run_program(world, walk(diary))
        return result, fed.bytes()

    return run(main())


@pytest.mark.parametrize("direct", [True, False])
def test_a_killed_site_goes_on_at_the_last_agreed_step(bridge, tmp_path, direct):
    diary, folder = tmp_path / "diary", tmp_path / "run"
    diary.mkdir()
    with pytest.raises(TaskError, match=r"job process went away|link to site"):
        lived(bridge.engine(sites=2, direct=direct), folder, diary)
    result, total = lived(bridge.engine(sites=2, direct=direct), folder, diary, resume=True)
    for name in ("client-0", "client-1"):
        steps = [int(line) for line in (diary / name).read_text().split()]
        assert steps[:4] == [0, 1, 2, 3], name
        assert steps[steps.index(FATAL) + 1 :] in ([3, 4], [4, 3, 4]), name
    again = tmp_path / "again"
    again.mkdir()
    (again / "dead").write_text("")
    assert result == lived(Inline(), None, again)[0]
    assert total["messages_relayed"] == (0 if direct else 2 * STEPS)
    assert total["messages_between"] == (2 * STEPS if direct else 0)
    for number, name in enumerate(("client-0", "client-1"), 1):  # each step once, and the one that was cut off again
        booked = (folder / "sites" / f"site-{number}" / "ledger.jsonl").read_text().count('"laplace"')
        assert booked == STEPS + 1, name


WALK = """
import os
import signal

import numpy as np

import atoll


@atoll.task
async def walks(island, peers, other, fatal):
    state = await peers.restore({"step": 0, "x": np.zeros(4)})
    fresh = state["step"] == 0
    while state["step"] < 6:
        print("step", state["step"], flush=True)
        await peers.send(other, np.asarray(island.data.x).mean(axis=0) + state["x"])
        heard = await peers.recv(other)
        if state["step"] == fatal and fresh:
            os.kill(os.getpid(), signal.SIGKILL)
        state = {"step": state["step"] + 1, "x": 0.5 * state["x"] + heard}
        await peers.checkpoint(state)
    return state["x"]


async def walk(fed, sites, fatal):
    roles = {"a": (sites[0], walks.with_args(other="b", fatal=-1)), "b": (sites[1], walks.with_args(other="a", fatal=fatal))}
    found = await fed.session(roles)
    return {"x": found["a"] + found["b"], "bytes": fed.bytes()}


walk.tasks = [walks]
"""


@pytest.mark.slow
@pytest.mark.parametrize("direct", [True, False])
def test_a_job_goes_on_at_the_last_agreed_step(tmp_path, direct):
    """Daemons, job processes and mutual TLS: the attempt after the kill does no agreed step again, and the job ends as an undisturbed one."""
    folder, data = tmp_path / "project", write_data(tmp_path / "project")
    data["site-2"] = [*data["site-2"], "--direct", "127.0.0.1:0"]

    async def ran(world, name, fatal):
        job = tmp_path / name
        (job / "code").mkdir(parents=True)
        (job / "code" / "walking.py").write_text(WALK, encoding="utf-8")
        tree = {
            "name": "walk",
            "sites": SITES,
            "source": "code",
            "job": "program",
            "program": "walking:walk",
            "patience": 60.0,
        }
        tree |= {
            "attempts": 1,
            "resources": {"cpus": 1.0},
            "direct": direct,
            "arguments": {"sites": SITES, "fatal": fatal},
        }
        (job / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
        number = (await world.admin.submit(job))["job"]
        ended = await world.end(number)
        assert ended["state"] == "finished", ended
        await world.admin.result(number, tmp_path / f"result-{name}")
        manifest = yaml.read(tmp_path / f"result-{name}" / "manifest.json")
        lines = [(node, text) async for _, node, text in world.admin.logs(number) if text.startswith("step")]
        return manifest["result"], lines

    async def body(world):
        whole, _ = await ran(world, "whole", -1)
        killed, lines = await ran(world, "killed", 3)
        assert killed == whole
        for site in SITES:
            steps = [int(text.split()[1]) for node, text in lines if node == site]
            assert steps.count(0) == steps.count(1) == steps.count(2) == 1
            assert steps.count(5) == 1

    played(folder, body, data=data)
