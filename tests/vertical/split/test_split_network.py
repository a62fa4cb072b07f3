"""SplitFed and FedGKT between real processes: the networks of the simulation."""

from __future__ import annotations

import csv

import numpy as np
import pytest

import atoll
from atoll.core.persistence.named_results import NamedResults
from atoll.runs import yaml
from atoll.runtime.job_spec import JobConfig
from atoll.runtime.poc import helper_names
from atoll.vertical import FedGKT, FedGKTResult, SplitFed, SplitFedResult, SplitNet
from tests.support.front_toys import played
from tests.support.split_toys import SMALL, draw_clients

pytest.importorskip("torch")
pytestmark = pytest.mark.network

JOBS = {
    "split-1": SplitFed(net=SplitNet(**SMALL), version=1, rounds=2),
    "split-2": SplitFed(net=SplitNet(**SMALL, shape="u"), version=2, rounds=2),
    "gkt": FedGKT(net=SplitNet(**SMALL), rounds=2),
}


@pytest.mark.slow  # minutes on a busy machine; quicker: sessions and helpers between processes have tests of their own
@pytest.mark.parametrize("name", JOBS)
def test_networks_between_sites_are_those_of_the_simulation(tmp_path, name):
    job = JOBS[name]
    clients, files = draw_clients((70, 50)), {}
    for k, name in enumerate(clients.names):
        rows = clients.shard(k)
        files[name] = [str(tmp_path / f"{name}.csv"), "--target", "y"]
        with (tmp_path / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow([*(f"x{j}" for j in range(6)), "y"])
            writer.writerows([*x, y] for x, y in zip(rows["x"].tolist(), rows["y"].tolist(), strict=True))
    folder = tmp_path / "project"

    async def body(world):
        config = JobConfig.of(job, name=name, sites=list(files), patience=60.0)
        (tmp_path / "job.yaml").write_text(yaml.dump(config.model_dump(exclude_defaults=True)), encoding="utf-8")
        ended = await world.end((await world.admin.submit(tmp_path / "job.yaml"))["job"])
        assert ended["state"] == "finished", ended
        await world.admin.result(ended["job"], tmp_path / "result")

    helpers = helper_names(job.helpers(), tuple(files))
    played(folder, body, data=files, helpers=helpers)
    x = np.random.default_rng(9).normal(size=(20, 6))
    expected = atoll.simulate(job, clients, engine="inline", progress=False).outcome
    if isinstance(job, SplitFed):
        network = SplitFedResult.load(tmp_path / "result", job)
        np.testing.assert_allclose(network.predict(x), expected.predict(x), atol=1e-6)
        return
    places = {"top": next(iter(helpers)), **{client: client for client in files}}
    kept = {role: NamedResults(folder / "run" / site / "results").get(site, "gkt-model") for role, site in places.items()}  # fmt: skip
    for client in files:
        found = FedGKTResult(expected.objective, kept).predict(client, x)
        np.testing.assert_allclose(found, expected.predict(client, x), atol=1e-6)
