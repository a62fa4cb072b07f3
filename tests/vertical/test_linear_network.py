"""Linear models between real processes, one of which is killed."""

from __future__ import annotations

import asyncio
import csv
import json

import numpy as np
import pytest

import atoll
from atoll.runs import yaml
from atoll.runtime.job_spec import JobConfig
from atoll.runtime.poc import helper_names
from atoll.vertical import Vertical, VerticalLinear, VerticalResult
from tests.support.front_toys import played
from tests.support.vertical_toys import as_parties, draw

pytestmark = pytest.mark.network


def agreed_step(folder):
    """The step of the training that all roles have agreed on; 0 before the first."""
    for file in folder.glob("run/server/jobs/*/state/checkpoints/decisions.jsonl"):
        for line in file.read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            if row.get("session", "").startswith("main/atoll.vertical.job:"):
                return int(row["step"]["step"])
    return 0


def write_tables(folder, parties):
    """A file a party, with keys that a reader of numbers would change; returns what each site is started with."""
    for columns in parties.values():
        columns["id"] = np.array([f"{int(one.partition('-')[2]):05}" for one in columns["id"].tolist()])
    files = {}
    for name, columns in parties.items():
        files[name] = [str(folder / f"{name}.csv"), "--id", "id"]
        with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            rows.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    return files


def write_job(file, job, parties):
    """A configuration of the job; returns its path."""
    config = JobConfig.of(job, name=file.stem, sites=list(parties), patience=60.0)
    file.write_text(yaml.dump(config.model_dump(exclude_defaults=True)), encoding="utf-8")
    return file


def is_aligned(folder):
    """Whether the alignment is over, so that the training has begun."""
    return any(folder.glob("run/server/jobs/*/state/checkpoints/generation-*.msg"))


async def kill_and_end(world, folder, asked, victim, begun=agreed_step):
    """Kill a party once it has begun, such as after a step that all agreed on, or later, or when the job has ended: all are legal; the job ends well."""
    ending = asyncio.ensure_future(world.end(asked))
    while not begun(folder) and not ending.done():
        await asyncio.wait({ending}, timeout=0.05)
    world.poc.process(victim).kill()
    await world.poc.start(victim)
    ended = await ending
    assert ended["state"] == "finished", ended


@pytest.mark.parametrize(
    ("security", "victim", "bound"),
    [
        pytest.param("pair", "host-1", 0.0, marks=pytest.mark.slow),  # trees are killed and go on by the same steps
        pytest.param("pair", "guest", 0.0, marks=pytest.mark.slow),
        pytest.param("arbiter", "arbiter", 0.0, marks=pytest.mark.slow),
        ("shared", "host-1", 1e-3),
        pytest.param("shared", "dealer", 1e-3, marks=pytest.mark.slow),
        pytest.param("ckks", "guest", 1e-5, marks=pytest.mark.slow),
    ],
)
def test_a_linear_model_goes_on_after_a_kill(tmp_path, security, victim, bound):
    """The same numbers where sums are exact; in bounds where noise is drawn anew."""
    pytest.importorskip("gmpy2")
    if security == "ckks":
        pytest.importorskip("tenseal")
    parties, _ = as_parties(draw(705, 260))
    files, folder = write_tables(tmp_path, parties), tmp_path / "project"
    job = Vertical(model=VerticalLinear(security=security), guest="guest")
    first = write_job(tmp_path / "vertical.yaml", job, parties)

    async def body(world):
        begun = is_aligned if security == "shared" else agreed_step  # which has no steps
        await kill_and_end(world, folder, (await world.admin.submit(first))["job"], victim, begun)

    played(folder, body, data=files, helpers=helper_names(job.helpers(), tuple(parties)))
    found = VerticalResult.read(job, {name: folder / "run" / name / "results" for name in parties})
    expected = atoll.simulate(job, parties, engine="inline", progress=False).outcome
    gap = np.abs(found.predictions["federated"] - expected.predictions["federated"]).max()
    assert gap <= bound
    np.testing.assert_array_equal(found.predictions["alone"], expected.predictions["alone"])
