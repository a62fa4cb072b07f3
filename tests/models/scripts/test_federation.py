"""A script is a client like any other: stages, secure sums, algorithms, privacy ledgers, evaluation, engines and resumption know nothing of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAdam
from atoll.core.requests.policy import SitePolicy
from atoll.models import Script
from atoll.stages import Clip, GaussianNoise

pytestmark = pytest.mark.network

# Moves towards the mean of the client's rows by steps of random length; measures its distance.
TEXT = """
import random
import numpy as np
import atoll.client

with atoll.client.connect() as fed:
    for task in fed.rounds():
        goal = np.asarray(fed.data.x).mean(axis=0)
        if task.kind == "evaluate":
            task.reply(examples=len(fed.data), metrics={"distance": np.abs(task.model["w"] - goal).sum()})
            continue
        share = task.settings["share"] * (0.5 + 0.25 * np.random.uniform() + 0.25 * random.random())
        w = task.model["w"] + share * (goal - task.model["w"])
        task.reply({"w": w}, metrics={"loss": np.abs(w - goal).sum()})
"""
CLIENTS = 3


def islands() -> atoll.data.Islands:
    random = np.random.default_rng(0)
    rows = {f"site-{i}": random.normal(i, 1.0, (i + 2, 4)) for i in range(CLIENTS)}
    return atoll.data.Islands.from_datasets(
        {name: atoll.data.Dataset({"x": x, "y": np.zeros(len(x))}) for name, x in rows.items()}
    )


def job(folder: Path, script: dict[str, Any] | None = None, **settings: Any) -> atoll.Training:
    file = folder / "train.py"
    file.write_text(TEXT, encoding="utf-8")
    model = Script(script=str(file), model={"w": np.zeros(4)}, settings={"share": 0.5}, **(script or {}))
    return atoll.Training(**{"model": model, "selection": atoll.Everyone(), "rounds": 2, **settings})


def test_the_model_is_the_weighted_mean_and_random_numbers_follow_the_seed(tmp_path: Path) -> None:
    found = {}
    for seed in (1, 2):
        result = atoll.simulate(job(tmp_path, rounds=40), islands(), engine="inline", seed=seed)
        found[seed] = result.params["w"]
    again = atoll.simulate(job(tmp_path, rounds=40), islands(), engine="processes", seed=1, workers=2)
    np.testing.assert_array_equal(again.params["w"], found[1])
    assert not np.array_equal(found[1], found[2])
    goals = [np.asarray(shard.x).mean(axis=0) for shard in islands()]
    pooled = np.average(goals, axis=0, weights=islands().sizes)
    assert np.abs(found[1] - pooled).max() < 0.2 * np.abs(pooled).max()


def test_stages_policies_secure_sums_and_the_ledger_see_a_client(tmp_path: Path) -> None:
    plain = atoll.simulate(job(tmp_path, uplink=[Clip(0.5)]), islands(), engine="inline")
    assert np.linalg.norm(plain.params["w"]) <= 1.0 + 1e-9  # two rounds of at most 0.5
    secure = atoll.simulate(
        job(tmp_path, uplink=[Clip(0.5)], reducer=atoll.SecureAggregation()), islands(), engine="inline"
    )
    np.testing.assert_allclose(secure.params["w"], plain.params["w"], atol=1e-3)
    strict = SitePolicy(stages=[Clip(0.5), GaussianNoise(1.0)])
    (row,) = atoll.simulate(
        job(tmp_path, uplink=[Clip(0.5)], rounds=1, pacing=atoll.Synchronous(quorum=2)), islands(), engine="inline",
        policy={"site-0": strict},
    ).metrics  # fmt: skip
    assert "the uplink lacks GaussianNoise" in row["rejected_clients"]["site-0"]


def test_an_algorithm_of_the_server_goes_on_working(tmp_path: Path) -> None:
    result = atoll.simulate(job(tmp_path, algorithm=FedAdam(server_lr=0.1)), islands(), engine="inline")
    np.testing.assert_allclose(np.abs(result.params["w"]), 0.2, atol=0.05)  # two steps of Adam


def test_clients_measure_by_the_script_where_it_says_so(tmp_path: Path) -> None:
    measured = job(tmp_path, {"evaluates": True}, evaluation=atoll.Evaluation(server=False, clients=-1))
    rows = atoll.simulate(measured, islands(), engine="inline").metrics
    assert rows[-1]["clients/distance/values"][1] == pytest.approx(
        np.abs(np.asarray(islands().shard(1).x).mean(axis=0) - _last(tmp_path)).sum(), rel=1e-4
    )


def _last(folder: Path) -> Any:
    return atoll.simulate(job(folder), islands(), engine="inline").params["w"]


@pytest.mark.slow
def test_a_run_that_is_resumed_equals_one_that_was_not_cut(tmp_path: Path) -> None:
    whole = atoll.simulate(job(tmp_path, rounds=4), islands(), engine="inline")
    short = job(tmp_path, rounds=4, callbacks=[_Cut(2)])
    with pytest.raises(KeyboardInterrupt, match="cut"):
        atoll.simulate(short, islands(), engine="inline", folder=tmp_path / "run")
    resumed = atoll.simulate(job(tmp_path, rounds=4), islands(), engine="inline", folder=tmp_path / "run", resume=True)
    np.testing.assert_array_equal(resumed.params["w"], whole.params["w"])


class _Cut:
    """Stops a run in the hard way after some rounds."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, row: dict[str, Any]) -> None:
        if row["round"] == self.after:
            raise KeyboardInterrupt("cut")
