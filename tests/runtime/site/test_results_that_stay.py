"""Named results stay at their sites, between real processes over mutual TLS: exactly one after a kill, readable by later jobs, exported at the site alone."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.persistence.files import read_message
from atoll.runs import yaml
from tests.support.front_toys import DEADLINE, SITES, World, played, write_data
from tests.support.waiting import read_files

MODULE = """
import threading
from pathlib import Path

import numpy as np

import atoll


@atoll.task
def learn(island, message):
    while message["gate"] and Path(message["gate"]).exists():
        threading.Event().wait(0.01)
    half = (island.state if island.state is not None else 0.0) + np.asarray(island.data.x).mean(axis=0)
    island.state = half
    island.leave("half", {"w": half, "round": message["round"], "mark": island.name + " keeps this"})
    print("round", message["round"], flush=True)
    return {"n": atoll.Sum(np.int64(len(island.data.x)))}


async def train(fed, gate=""):
    state = await fed.restore({"round": 0})
    while state["round"] < 4:
        number = state["round"] + 1
        await fed.sum(fed.parties, learn, {"round": number, "gate": gate if number == 3 else ""}, at=number)
        state = {"round": number}
        await fed.checkpoint(state)
        print("done", number, flush=True)
    return {"rounds": 4}


@atoll.task
def use(island, message):
    half = island.left("half")
    return {"w": atoll.Sum(half["w"] / half["round"])}


async def predict(fed):
    return {"w": (await fed.sum(fed.parties, use))["w"]}
"""


def write_job(folder: Path, program: str, **arguments: Any) -> Path:
    (folder / "code").mkdir(parents=True)
    (folder / "code" / "halves.py").write_text(MODULE, encoding="utf-8")
    tree = {"name": program, "sites": SITES, "source": "code", "job": "program", "program": f"halves:{program}"}
    (folder / "job.yaml").write_text(yaml.dump({**tree, "arguments": arguments, "patience": 60.0}), encoding="utf-8")
    return folder


async def at_site(world: World, site: str, *words: str, code: int = 0) -> Any:
    """What ``atoll result`` says when it is typed at a site."""
    kit, place = str(world.poc.folder / "kits" / site), str(world.poc.folder / "run" / site)
    full = [sys.executable, "-m", "atoll.cli", "result", *words, "--kit", kit, "--folder", place, "--json"]
    running = await asyncio.create_subprocess_exec(*full, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    async with asyncio.timeout(DEADLINE):
        out, err = await running.communicate()
    assert running.returncode == code, err.decode()
    return json.loads(out)


@pytest.mark.slow
@pytest.mark.both_carriers
def test_a_half_of_a_model_stays_where_it_was_learned(tmp_path: Path) -> None:
    gate, data = tmp_path / "gate", write_data(tmp_path / "project")
    means = {site: np.load(files[0])["x"].mean(axis=0) for site, files in data.items()}

    async def body(world: World) -> None:
        gate.touch()
        job = (await world.admin.submit(write_job(tmp_path / "train", "train", gate=str(gate))))["job"]
        await world.until(job, "server", "done 2")
        assert (await at_site(world, "site-1"))["results"] == []  # the job has not ended
        world.poc.process("site-1").kill()
        await world.poc.process("site-1").wait()
        gate.unlink()
        await world.poc.start("site-1")
        assert (await world.end(job))["state"] == "finished"

        for site in SITES:
            listed = (await at_site(world, site))["results"]
            assert [(row["party"], row["name"], row["job"]) for row in listed] == [(site, "half", job)]
            out = tmp_path / f"{site}.msg"
            assert (await at_site(world, site, "half", "--out", str(out)))["file"] == str(out)
            half = read_message(out)
            np.testing.assert_allclose(half["w"], 4 * means[site], rtol=1e-12)
            assert half["round"] == 4
        told = await at_site(world, "site-1", "hall", code=2)
        assert "0 parties have a result 'hall' Did you mean 'half'?" in told["error"]["what"].replace(".", "")

        second = (await world.admin.submit(write_job(tmp_path / "predict", "predict")))["job"]
        ended = await world.end(second)
        assert ended["state"] == "finished", ended
        await world.admin.result(second, tmp_path / "fetched")
        found = read_message(tmp_path / "fetched" / "result.msg")
        np.testing.assert_allclose(found["w"], sum(means.values()), rtol=1e-12)

        # It never travels: the server's folder has the jobs, their logs and checkpoints, and no word of it.
        everything = read_files(world.poc.folder / "run" / "server").values()
        assert len(everything) > 5
        assert not any(b"site-1 keeps" in content for content in everything)
        kept = read_files(world.poc.folder / "run" / "site-1" / "results")
        assert any(b"site-1 keeps" in content for path, content in kept.items() if path.suffix == ".msg")

    played(tmp_path / "project", body, data=data)
