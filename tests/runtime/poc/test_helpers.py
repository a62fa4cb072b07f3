"""Parties beside the clients, each at a helper of its own: real processes, certificates and connections."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.core.persistence.files import read_message
from atoll.core.requests.cohort import Community
from atoll.runs import yaml
from atoll.runtime.job_spec import importing
from atoll.runtime.poc import digits_at, helper_names, site_names
from atoll.runtime.provision import Kit, ProjectConfig, provision
from tests.support.front_toys import World, played

WAIST = Path(__file__).parents[2] / "waist"
COMPARE = """
from tests.waist.test_secure_comparison import compare


async def larger(fed):
    return {"larger": await compare(fed)}


larger.others = {"dealer": "dealer"}
"""
NUMBERS = """
import numpy as np


def numbers(name):
    x, y = np.random.default_rng(0).integers(2**18, size=(2, 20))
    y[:3] = x[:3] + np.array([0, 1, -1])
    return x if name == "left" else y


def left():
    return numbers("left")


def right():
    return numbers("right")
"""

# Sums under masks of a key holder, who remembers how often it was asked. It waits while a file is there.
VEILED = """
import threading
from pathlib import Path

import numpy as np

import atoll


@atoll.task
def deal(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    masks = [np.frombuffer(island.secret.bytes(8), np.uint64)[0] for _ in message["names"][1:]]
    with np.errstate(over="ignore"):
        masks.append(-sum(masks, np.uint64(0)))
    for name, mask in zip(message["names"], masks, strict=True):
        island.post(name, mask)
    island.state = {"dealt": (island.state or {"dealt": 0})["dealt"] + 1}


@atoll.task
def veiled(island, message):
    with np.errstate(over="ignore"):
        return np.uint64(len(island.data) * message["times"]) + np.uint64(island.inbox["holder"])


@atoll.task
def dealt(island, message):
    return island.state["dealt"]


async def sums(fed, rounds=3, gate=""):
    holder, names = fed.parties.named("holder"), list(fed.parties.names)
    state = await fed.restore({"found": []})
    while len(state["found"]) < rounds:
        number = len(state["found"]) + 1
        message = {"names": names, "gate": gate if number == 2 else ""}
        print("round", number, flush=True)
        masks = await fed.exchange(holder, deal, message, at=number)
        told = await fed.exchange(fed.parties, veiled, {"times": number}, mail=masks.mail, at=number)
        with np.errstate(over="ignore"):
            state = {"found": [*state["found"], int(sum((np.uint64(v) for v in told.values), np.uint64(0)))]}
        fed.record({"round": number})
        await fed.checkpoint(state)
    return {"found": state["found"], "dealt": (await fed.ask_all(holder, dealt)).values[0]}


sums.others = {"holder": "key holder"}
"""
HELPERS = {"keys": "key holder", "dealer": "dealer"}


def write_compare(folder: Path) -> Path:
    """The job of the comparison, with the protocol as it stands."""
    (folder / "code").mkdir(parents=True)
    shutil.copy(WAIST / "test_secure_comparison.py", folder / "code")
    (folder / "code" / "comparing.py").write_text(COMPARE, encoding="utf-8")
    return _written(folder, name="compare", program="comparing:larger")


def write_sums(folder: Path, **settings: Any) -> Path:
    """The job of the veiled sums."""
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "veiling.py").write_text(VEILED, encoding="utf-8")
    return _written(folder, name="sums", program="veiling:sums", **settings)


def _written(folder: Path, **settings: Any) -> Path:
    tree = {"sites": ["left", "right"], "source": "code", "job": "program", "patience": 60.0, **settings}
    (folder / "job.yaml").write_text(yaml.dump(tree), encoding="utf-8")
    return folder


def simulated(job: Path, program: str, **arguments: Any) -> Any:
    """What the simulator makes of the same program and data."""
    module, _, name = program.partition(":")
    with importing(job / "code"):
        run = getattr(__import__(module), name)
        made: dict[str, Callable[..., Any]] = {}
        exec(NUMBERS, made)
        people = Community({name: made["numbers"](name) for name in ("left", "right")})
        whole = atoll.rounds.ProgramJob(run, arguments)
        return atoll.simulate(whole, people, engine="inline").outcome


@pytest.mark.slow
def test_helpers_between_organisations(tmp_path: Path) -> None:
    """One project for many questions: starting its processes takes most of the time."""
    folder, gate = tmp_path / "project", tmp_path / "gate"
    (folder / "run").mkdir(parents=True)
    for site in ("left", "right"):
        (folder / "run" / site).mkdir(mode=0o700)
        (folder / "run" / site / "pairs.py").write_text(NUMBERS, encoding="utf-8")

    async def body(world: World) -> None:
        admin = world.admin
        plays = {site["site"]: site["plays"] for site in await admin.sites()}
        assert plays == {"left": "", "right": "", **HELPERS}

        # A protocol with a dealer, and one with a key holder who is killed in the middle.
        compare = write_compare(tmp_path / "compare")
        veiled = write_sums(tmp_path / "sums", arguments={"gate": str(gate)}, on_lost="drop")
        gate.touch()
        first, second = (await admin.submit(compare))["job"], (await admin.submit(veiled))["job"]
        await world.until(second, "server", "round 2")
        world.poc.process("keys").kill()
        gate.unlink()
        await world.poc.start("keys")
        ended = [await world.end(job) for job in (first, second)]
        assert [(job["state"], job["sites"]) for job in ended] == [
            ("finished", ["left", "right", "dealer"]),
            ("finished", ["left", "right", "keys"]),
        ]
        assert (ended[0]["attempts"], ended[1]["attempts"]) == (1, 2)
        found = {}
        for job in (first, second):
            await admin.result(job, tmp_path / job)
            found[job] = read_message(tmp_path / job / "result.msg")
        np.testing.assert_array_equal(found[first]["larger"], simulated(compare, "comparing:larger")["larger"])
        assert found[second] == simulated(veiled, "veiling:sums") == {"found": [40, 80, 120], "dealt": 3}

        # A clone asks its job anew; jobs that no helper can be found for, or that take one for a client, are never there.
        assert (await world.end((await admin.clone(second))["job"]))["state"] == "finished"
        before = len(await admin.jobs())
        other = VEILED.replace('"holder": "key holder"', '"holder": "second server"')
        (write_sums(tmp_path / "other") / "code" / "veiling.py").write_text(other, encoding="utf-8")
        with pytest.raises(
            ConfigError,
            match=r"needs a second server for 'holder', and nobody .*\(in job 'sums', helpers\).*project.yaml",
        ):
            await admin.submit(tmp_path / "other")
        with pytest.raises(ConfigError, match=r"sites names 'keys', a helper \(key holder\), which has no clients"):
            await admin.submit(write_sums(tmp_path / "client", sites=["left", "keys"]))
        assert len(await admin.jobs()) == before

        # A helper whose kit is revoked is cut off: what it plays in waits, and nothing new is given to it.
        gate.touch()
        held = (await admin.submit(write_sums(tmp_path / "held", arguments={"gate": str(gate)})))["job"]
        await world.until(held, "server", "round 2")
        provision(project_of(), folder / "kits", revoke=["keys"])
        await world.waits(held, "waits for its helper at site 'keys' to connect")
        with pytest.raises(ConfigError, match="needs a key holder for 'holder', and nobody in the project plays it"):
            await admin.submit(write_sums(tmp_path / "late"))
        assert (await admin.abort(held))["state"] == "aborted"

    data = {name: [f"pairs:{name}"] for name in ("left", "right")}
    played(folder, body, data=data, helpers=HELPERS)


def project_of() -> ProjectConfig:
    """The project of the `Poc` above."""
    direct = ["127.0.0.1"]
    return ProjectConfig.model_validate(
        {
            "project": "poc",
            "servers": [{"name": "server", "hosts": direct, "listen": "127.0.0.1"}],
            "sites": [{"name": name, "org": name, "direct": direct} for name in ("left", "right")],
            "helpers": {name: {"role": role, "direct": direct} for name, role in HELPERS.items()},
            "admins": [
                {"name": "admin", "org": "poc"},
                {"name": "auditor", "org": "poc", "role": "auditor"},
            ],
        }
    )


def test_a_trial_names_helpers_after_their_parties_where_it_can() -> None:
    needed = {"key-holder": "key holder", "Server": "second server", "a/b": "dealer", "ca": "judge"}
    assert helper_names(needed, ("site-1", "server")) == {
        "key-holder": "key holder",
        "helper-2": "second server",
        "helper-3": "dealer",
        "helper-4": "judge",
    }


@pytest.mark.slow
def test_a_trial_starts_the_helpers_of_its_job(tmp_path: Path) -> None:
    write_sums(tmp_path / "job", sites="all")
    words = [
        sys.executable,
        "-m",
        "atoll.cli",
        "poc",
        str(tmp_path / "job"),
        "--sites",
        "2",
        "--folder",
        "all",
        "--json",
    ]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    rows = sum(len(part.dataset()) for part in digits_at(site_names(2)))
    assert said["result"] == {"found": [rows, 2 * rows, 3 * rows], "dealt": 3}
    assert said["sites"] == ["site-1", "site-2", "holder"]
    assert Kit.read(tmp_path / "all" / "kits" / "holder").plays == "key holder"
