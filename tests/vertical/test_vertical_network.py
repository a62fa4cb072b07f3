"""A training between real processes, one of which is killed: the same model."""

from __future__ import annotations

import asyncio
import csv
import json

import numpy as np
import pytest

import atoll
from atoll.core.persistence.named_results import NamedResults
from atoll.runs import yaml
from atoll.runtime.jobs.spec import JobConfig
from atoll.vertical import SecureBoost, Vertical, VerticalPrediction, VerticalResult
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


@pytest.mark.parametrize("victim", ["host-1", pytest.param("guest", marks=pytest.mark.slow)])
def test_a_killed_party_goes_on_to_the_same_model(tmp_path, victim):
    pytest.importorskip("gmpy2")
    parties, _ = as_parties(draw(400, 300))
    for columns in parties.values():  # keys that a reader of numbers would change
        columns["id"] = np.array([f"{int(one.partition('-')[2]):05}" for one in columns["id"].tolist()])
    model = {"trees": 6, "depth": 2, "bins": 8}
    files = {}
    for name, columns in parties.items():
        files[name] = [str(tmp_path / f"{name}.csv"), "--id", "id"]
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            rows.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    job = Vertical(model=SecureBoost(**model, short_exponents=True), guest="guest")
    config = JobConfig.of(job, name="vertical", sites=list(parties), patience=60.0)
    (tmp_path / "job.yaml").write_text(yaml.dump(config.model_dump(exclude_defaults=True)), encoding="utf-8")
    later = JobConfig.of(VerticalPrediction(guest="guest"), name="later", sites=list(parties))
    (tmp_path / "later.yaml").write_text(yaml.dump(later.model_dump(exclude_defaults=True)), encoding="utf-8")
    folder = tmp_path / "project"

    async def body(world):
        asked = (await world.admin.submit(tmp_path / "job.yaml"))["job"]
        ending = asyncio.ensure_future(world.end(asked))
        while not agreed_step(folder) and not ending.done():  # or later, or when it has ended: all are legal
            await asyncio.wait({ending}, timeout=0.05)
        world.poc.process(victim).kill()
        await world.poc.start(victim)
        ended = await ending
        assert ended["state"] == "finished", ended
        later = (await world.admin.submit(tmp_path / "later.yaml"))["job"]
        ended = await world.end(later)
        assert ended["state"] == "finished", ended

    played(folder, body, data=files)
    places = {name: folder / "run" / name / "results" for name in parties}
    plain = Vertical(model=SecureBoost(**model, security="none"), guest="guest")
    expected = atoll.simulate(plain, parties, engine="inline", progress=False).outcome
    found = VerticalResult.read(job, places)
    np.testing.assert_array_equal(found.predictions["federated"], expected.predictions["federated"])
    assert found.scores == expected.scores
    answers = NamedResults(places["guest"]).get("guest", "vertical-predictions")
    assert answers["ids"].tolist() == parties["guest"]["id"].tolist()
    told = dict(zip(found.predictions["id"].tolist(), found.predictions["federated"][:, 0], strict=True))
    np.testing.assert_array_equal(answers["predictions"], [told[key] for key in answers["ids"].tolist()])
