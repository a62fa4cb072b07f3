"""Trainings between real processes, one of which is killed: the same model."""

from __future__ import annotations

import asyncio
import csv
import json

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, PolicyError
from atoll.core.persistence.named_results import NamedResults
from atoll.data import Dataset
from atoll.runs import yaml
from atoll.runtime.job_spec import JobConfig
from atoll.vertical import SFTL, VAFL, SecureBoost, SplitNet, Vertical, VerticalPrediction, VerticalResult
from tests.support.front_toys import played, typed
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


def play_killed(tmp_path, parties, job, later, victim):
    """Train between processes, one of which is killed after the first step that all agreed on, then predict; return each party's folder of results."""
    files = {}
    for name, columns in parties.items():
        columns["id"] = np.array([f"{int(str(one).rpartition('-')[2]):05}" for one in columns["id"].tolist()])
        files[name] = [str(tmp_path / f"{name}.csv"), "--id", "id"]  # keys that a reader of numbers would change
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(columns)
            rows.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))
    for name, one, more in (("job", job, {"patience": 60.0}), ("later", later, {})):
        config = JobConfig.of(one, name=name, sites=list(parties), **more)
        (tmp_path / f"{name}.yaml").write_text(yaml.dump(config.model_dump(exclude_defaults=True)), encoding="utf-8")
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
        ended = await world.end((await world.admin.submit(tmp_path / "later.yaml"))["job"])
        assert ended["state"] == "finished", ended

    played(folder, body, data=files)
    return {name: folder / "run" / name / "results" for name in parties}


@pytest.mark.parametrize("victim", ["host-1", pytest.param("guest", marks=pytest.mark.slow)])
def test_a_killed_party_goes_on_to_the_same_model(tmp_path, victim):
    pytest.importorskip("gmpy2")
    parties, _ = as_parties(draw(400, 300))
    model = {"trees": 6, "depth": 2, "bins": 8}
    job = Vertical(model=SecureBoost(**model, short_exponents=True), guest="guest")
    places = play_killed(tmp_path, parties, job, VerticalPrediction(guest="guest"), victim)
    plain = Vertical(model=SecureBoost(**model, security="none"), guest="guest")
    expected = atoll.simulate(plain, parties, engine="inline", progress=False).outcome
    found = VerticalResult.read(job, places)
    np.testing.assert_array_equal(found.predictions["federated"], expected.predictions["federated"])
    assert found.scores == expected.scores
    answers = NamedResults(places["guest"]).get("guest", "vertical-predictions")
    assert answers["ids"].tolist() == parties["guest"]["id"].tolist()
    told = dict(zip(found.predictions["id"].tolist(), found.predictions["federated"][:, 0], strict=True))
    np.testing.assert_array_equal(answers["predictions"], [told[key] for key in answers["ids"].tolist()])


@pytest.mark.slow  # a host of the trees above is killed in the same way, and in one process `split` kills each network at every point
@pytest.mark.parametrize(
    ("model", "victim"),
    [
        (SplitNet(epochs=6, batch=100, shape="u"), "host-1"),
        (SplitNet(epochs=6), "guest"),
        (VAFL(epochs=6, pace={"host-2": 2.5}), "host-2"),
    ],
)
def test_a_split_network_survives_a_killed_party(tmp_path, model, victim):
    pytest.importorskip("torch")
    parties, _ = as_parties(draw(402, 400), 2)
    job = Vertical(model=model, guest="guest")
    places = play_killed(tmp_path, parties, job, VerticalPrediction(guest="guest"), victim)
    expected = atoll.simulate(job, parties, engine="inline", progress=False).outcome
    found = VerticalResult.read(job, places)
    np.testing.assert_array_equal(found.predictions["federated"], expected.predictions["federated"])
    answers = NamedResults(places["guest"]).get("guest", "vertical-predictions")
    np.testing.assert_allclose(answers["predictions"], expected.predict(parties), rtol=0, atol=1e-6)


@pytest.mark.slow  # the same numbers in one process: `transfer/test_sftl.py`
def test_labels_reach_another_party_between_processes(tmp_path):
    """A method of transfer, by oblivious transfers: the target predicts all rows of its own, and the rows that it has alone too."""
    x = np.random.default_rng(0).normal(size=(300, 6))
    y = (x[:, 0] + x[:, 3] > 0).astype(np.int64)
    people = Dataset(
        {"x": x, "y": y, "id": np.arange(300)}, task="classification", features=[f"c{i}" for i in range(6)]
    )
    tables = atoll.data.transfer(people, parties={"guest": range(3), "shop": range(3, 6)}, overlap=0.2)
    parties = {}
    for name, table in tables.items():
        columns = {each: np.asarray(table.x)[:, j] for j, each in enumerate(table.about.features)}
        parties[name] = {"id": np.asarray(table["id"]), **columns, **({"y": table.y} if name == "guest" else {})}
    job = Vertical(model=SFTL(security="shared", steps=4), guest="guest", test=0.0)
    later = VerticalPrediction(guest="guest", target="shop")
    places = play_killed(tmp_path, parties, job, later, "shop")
    expected = atoll.simulate(job, parties, engine="inline", progress=False).outcome
    answers = NamedResults(places["shop"]).get("shop", "vertical-predictions")
    assert answers["ids"].tolist() == parties["shop"]["id"].tolist()
    np.testing.assert_allclose(answers["predictions"], expected.predict_own("shop", parties["shop"]), rtol=0, atol=1e-4)
    net = NamedResults(places["shop"]).get("shop", "vertical-model")["part"]["net"]
    np.testing.assert_array_equal(net["encode"], expected.replies["shop"]["half"]["part"]["net"]["encode"])


def write_table(file, columns):
    with file.open("w", newline="", encoding="utf-8") as out:
        rows = csv.writer(out)
        rows.writerow(columns)
        rows.writerows(zip(*(values.tolist() for values in columns.values()), strict=True))


def test_a_sites_people_predict_new_rows_with_the_kit_of_the_site(tmp_path):
    parties, _ = as_parties(draw(402, 300))
    for name, columns in parties.items():
        write_table(tmp_path / f"{name}.csv", columns)
    # The host limits what it answers for, as its own file says.
    (tmp_path / "host.yaml").write_text("path: host-1.csv\nid: [id]\npolicy: {predictions_per_hour: 20, allow: [vertical, vertical-prediction, SecureBoost]}\n")  # fmt: skip
    data = {"guest": [str(tmp_path / "guest.csv"), "--id", "id"], "host-1": [str(tmp_path / "host.yaml")]}
    bare = {name: values[20:4:-1] for name, values in parties["guest"].items() if name != "y"}
    write_table(tmp_path / "new.csv", bare)
    job = Vertical(model=SecureBoost(trees=3, depth=2, bins=8, security="none"), guest="guest", min_aligned=5)
    folder = tmp_path / "project"

    async def body(world):
        asked = (await world.admin.submit_job(job, name="vertical", sites=list(parties)))["job"]
        assert (await world.end(asked))["state"] == "finished"
        home = ("--folder", str(folder / "run" / "guest"))

        async def predict(file, out, *more, code=0, who="guest"):
            words = (asked, "--rows", str(tmp_path / file), "--out", str(tmp_path / out), *home, *more)
            return await typed(world, "predict", *words, code=code, who=who)

        assert (await predict("new.csv", "first.csv"))["rows"] == 16
        refused = (await predict("new.csv", "none.csv", code=PolicyError.exit_code))[
            "error"
        ]  # 16 of 20 have been asked for
        assert "predictions_per_hour=20" in refused["what"], refused
        told = await typed(world, "jobs", who="guest")
        assert {one["submitter"] for one in told["jobs"]} == {"admin", "guest"}
        wrong = (await predict("new.csv", "none.csv", code=ConfigError.exit_code, who="host-1"))["error"]
        assert "keeps no part of a model" in wrong["what"], wrong

    played(folder, body, data=data)
    assert not (tmp_path / "none.csv").exists()
    kept = [one.name for one in NamedResults(folder / "run" / "guest" / "results").all()]
    assert sorted(kept) == ["vertical-model", "vertical-outcome"]  # neither rows nor answers stay
    found = VerticalResult.read(job, {name: folder / "run" / name / "results" for name in parties})
    told = dict(zip(found.predictions["id"].tolist(), found.predictions["federated"][:, 0], strict=True))
    with (tmp_path / "first.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == bare["id"].tolist()
    assert [np.float32(row["probability_1"]) for row in rows] == [told[key] for key in bare["id"].tolist()]
