"""A key holder or a second server that is lost in the middle of a secure sum, or whose kit is revoked: real processes, over mutual TLS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import ConfigError
from atoll.runs import yaml
from atoll.runtime.provision import ProjectConfig, provision
from tests.support.front_toys import World, played

SITES = ["north", "south", "west"]
HELPERS = {"keys": "key-holder", "other": "second-server"}
# A training's shape: several sums, each on disk before the next. In the second the sites wait at a gate, while somebody kills the helper.
PROGRAM = """
import threading
from pathlib import Path

import numpy as np

import atoll
from atoll.secure import Encrypted, TwoServers

REDUCERS = {"key-holder": Encrypted, "second-server": TwoServers}


@atoll.task
def step(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    return {"x": atoll.Sum(np.asarray(island.data.x).sum(axis=0) * message["round"])}


async def sums(fed, helper, gate=""):
    state = await fed.restore({"found": []})
    while len(state["found"]) < 3:
        number = len(state["found"]) + 1
        message = {"round": number, "gate": gate if number == 2 else ""}
        print("round", number, flush=True)
        got = await fed.sum(fed.parties, step, message, reducer=REDUCERS[helper](), at=number)
        state = {"found": [*state["found"], got["x"].tolist()]}
        await fed.checkpoint(state)
    return {"found": state["found"]}


async def held(fed, gate=""):
    return await sums(fed, "key-holder", gate)


async def split(fed, gate=""):
    return await sums(fed, "second-server", gate)


held.others = {"key-holder": "key-holder"}
split.others = {"second-server": "second-server"}
"""


def write_job(folder: Path, program: str, gate: Path) -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "losing.py").write_text(PROGRAM, encoding="utf-8")
    tree = {"sites": SITES, "source": "code", "job": "program", "program": f"losing:{program}", "patience": 60.0, "on_lost": "drop", "arguments": {"gate": str(gate)}}  # fmt: skip
    (folder / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    return folder


@pytest.mark.slow  # its quick siblings are `test_a_lost_helper_is_named` and `test_without_the_holder_there_is_no_sum`
@pytest.mark.both_carriers
def test_a_helper_is_killed_in_a_sum_comes_back_and_is_revoked(tmp_path: Path) -> None:
    rows = {name: np.random.default_rng(i).normal(size=(4, 6)) for i, name in enumerate(SITES)}
    data = {name: [str(tmp_path / f"{name}.npz")] for name in SITES}
    for name, x in rows.items():
        np.savez(data[name][0], x=x, y=np.arange(4) % 2)
    whole = sum(x.sum(axis=0) for x in rows.values())
    gate, folder = tmp_path / "gate", tmp_path / "project"

    async def finished(world: World, job: str) -> Any:
        ended = await world.end(job)
        assert ended["state"] == "finished", ended
        await world.admin.result(job, tmp_path / job)
        return ended, json.loads((tmp_path / job / "manifest.json").read_text(encoding="utf-8"))["result"]["found"]

    async def body(world: World) -> None:
        for helper, program in (("keys", "held"), ("other", "split")):
            gate.touch()
            job = (await world.admin.submit(write_job(tmp_path / f"job-{program}", program, gate)))["job"]
            await world.until(job, "server", "round 2")
            world.poc.process(helper).kill()
            gate.unlink()
            await world.poc.start(helper)
            ended, found = await finished(world, job)
            assert ended["attempts"] == 2
            np.testing.assert_allclose(found, [whole * number for number in (1, 2, 3)], atol=1e-5)

        # Its kit is revoked in the middle of a sum: no sum is opened any more, and no job is given to it.
        gate.touch()
        job = (await world.admin.submit(write_job(tmp_path / "revoked", "held", gate)))["job"]
        await world.until(job, "server", "round 2")
        provision(project(), folder / "kits", revoke=["keys"])
        await world.waits(job, "waits for its helper at site 'keys' to connect")
        gate.unlink()
        with pytest.raises(
            ConfigError, match="needs a key-holder for 'key-holder', and nobody in the project plays it"
        ):
            await world.admin.submit(write_job(tmp_path / "late", "held", gate))
        assert (await world.admin.abort(job))["state"] == "aborted"

    played(folder, body, data=data, helpers=HELPERS)


def project() -> ProjectConfig:
    """The project of the trial."""
    direct = ["127.0.0.1"]
    return ProjectConfig.model_validate(
        {
            "project": "poc",
            "servers": [{"name": "server", "hosts": direct, "listen": "127.0.0.1"}],
            "sites": [{"name": name, "org": name, "direct": direct} for name in SITES],
            "helpers": {name: {"role": role, "direct": direct} for name, role in HELPERS.items()},
            "admins": [{"name": "admin", "org": "poc"}, {"name": "auditor", "org": "poc", "role": "auditor"}],
        }
    )
