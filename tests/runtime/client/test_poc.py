"""``atoll poc``: what real processes reach is what the simulator reaches."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.cli import run
from atoll.cli.commands import poc
from atoll.cli.commands.poc import poc_job
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError
from atoll.runs import RunFolder, read_model, result_of, yaml
from atoll.runtime.client.poc import Poc, digits_at, site_names, write_parts
from atoll.runtime.jobs.spec import parse_job
from atoll.runtime.provision import Kit

COUNTING = """
import atoll


@atoll.task
def count(island, message):
    return {"rows": atoll.Sum(len(island.data))}


async def census(fed):
    return {"rows": (await fed.sum(fed.parties, count, {}))["rows"]}
"""


def test_poc_equals_the_simulator(tmp_path: Path) -> None:
    names = site_names(2)
    settings = {**poc_job(names, seed=5), "rounds": 3}
    job = tmp_path / "job.yaml"
    job.write_text(yaml.dump(settings), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli", "poc", str(job), "--sites", "2", "--seed", "5", "--folder", "all", "--json"],
        cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)

    config = parse_job(settings)
    training = config.made()
    islands = digits_at(names, seed=5).with_test(config.test_set())
    simulated = atoll.simulate(training, islands, engine="inline", seed=5)
    assert said["accuracy"] == simulated.metrics[-1]["test/accuracy"]
    assert (said["status"], said["rounds"], said["sites"]) == ("finished", 3, names)
    found = read_model(tmp_path / "all" / "result" / "model.safetensors")
    for leaf, value in T.items(simulated.params):
        np.testing.assert_array_equal(found[leaf], np.asarray(value))
    assert (tmp_path / "all" / "result" / "report.html").exists()
    assert RunFolder(tmp_path / "all" / "result").metrics()[-1]["test/accuracy"] == said["accuracy"]
    assert Kit.read(tmp_path / "all" / "kits" / "site-2").role == "site"


@pytest.mark.slow
def test_a_program_prints_what_it_returned(tmp_path: Path) -> None:
    """In words; that the same object is printed with --json is shown above, on a training."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "counting.py").write_text(COUNTING, encoding="utf-8")
    job = {"name": "census", "source": "code", "job": "program", "program": "counting:census"}
    (tmp_path / "job.yaml").write_text(yaml.dump(job), encoding="utf-8")
    words = [sys.executable, "-m", "atoll.cli", "poc", "job.yaml", "--sites", "1", "--folder", "all"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rows = sum(len(part.dataset()) for part in digits_at(site_names(1)))
    assert f'result: {{"rows": {rows}}}' in done.stdout
    assert " 0 B" not in done.stdout
    said = result_of(RunFolder(tmp_path / "all" / "result"))  # what --json adds the job's id and sites to
    assert said["result"] == {"rows": rows}
    assert said["bytes_up"] > 50


def test_parts_are_the_rows_of_the_simulated_clients(tmp_path: Path) -> None:
    islands = digits_at(site_names(3), alpha=0.1, seed=2)
    files = write_parts(islands, tmp_path)
    assert list(files) == ["site-1", "site-2", "site-3"]
    sizes = []
    for shard in islands:
        with np.load(files[str(shard.name)], allow_pickle=False) as rows:
            np.testing.assert_array_equal(rows["x"], shard.dataset()["x"])
            np.testing.assert_array_equal(rows["y"], shard.dataset()["y"])
            sizes.append(len(rows["y"]))
    assert sum(sizes) + len(islands.test or ()) == 1797


def test_a_front_that_does_not_begin_says_why(tmp_path: Path) -> None:
    async def body() -> None:
        async with Poc(tmp_path, {"site-1": [str(tmp_path / "absent.npz")]}, transport="tcp"):
            pass

    with pytest.raises(AtollError, match=r"`atoll site` did not start: it ended with exit code 3; .*absent"):
        asyncio.run(body())


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_trial_that_is_stopped_leaves_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    steps: list[Any] = []

    async def trial(place: Path, *rest: Any) -> None:
        (place / "key.pem").touch()
        steps.append(place)
        try:
            signal.raise_signal(number)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            steps.append("put away")

    monkeypatch.setattr(poc, "_trial", trial)
    assert run(["poc"]) == 130
    assert steps[1:] == ["put away"]
    assert not steps[0].exists()
