"""The same job between sites and in the simulator: the same numbers, to the last bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
import atoll.data
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError
from atoll.data import Dataset, Islands
from atoll.report.facts import facts_of
from atoll.runs import RunFolder, read_model
from atoll.runtime.job_spec import parse_job
from tests.support.work_toys import held, islands_of, sites_of

FEDAVG = {"name": "FedAvg", "lr": 0.1, "epochs": 1, "batch_size": 16}
MLP = {"name": "mlp", "features": 64, "outputs": 10, "hidden": [16]}
SKLEARN = {"name": "sklearn_models:logistic"}

JOBS: dict[str, dict[str, Any]] = {
    "mlp": {"model": MLP, "algorithm": FEDAVG},
    "scaffold": {"model": MLP, "algorithm": {**FEDAVG, "name": "Scaffold"}, "selection": "Everyone"},
    "qsgd": {"model": MLP, "algorithm": FEDAVG, "uplink": [{"name": "QSGD", "levels": 16}]},
    "clients": {"model": MLP, "algorithm": FEDAVG, "evaluation": {"clients": -1}},
    "softmax": {"model": {"name": "linear", "features": 64, "outputs": 10}, "algorithm": FEDAVG},
    "sklearn": {"model": {"name": "tests.support.work_models:logistic"}, "algorithm": {"name": "FedAvg"}},
    "part": {"model": MLP, "algorithm": FEDAVG, "selection": {"name": "Uniform", "count": 2}},
}


@pytest.fixture(scope="module")
def parts() -> dict[str, Dataset]:
    """A few hundred digits at three sites, of unequal sizes."""
    rows = atoll.data.digits()
    bounds = [0, 60, 160, 300]
    return {f"site-{i + 1}": rows.take(slice(bounds[i], bounds[i + 1])) for i in range(3)}


@pytest.mark.every(3)
@pytest.mark.parametrize("name", list(JOBS))
def test_a_job_between_sites_equals_the_simulation(name: str, parts: dict[str, Dataset], tmp_path: Path) -> None:
    job = {"rounds": 3, "seed": 7, "data": {"test": "digits"}, **JOBS[name]}
    result = held(job, sites_of(parts), tmp_path)
    config = parse_job(job)
    simulated = atoll.simulate(config.made(), islands_of(parts, config.test_set()), engine="inline", seed=7)
    wanted = dict(T.items(simulated.params))
    found = read_model(tmp_path / "server" / "model.safetensors")
    assert set(found) == set(wanted)
    for leaf, value in found.items():
        assert np.array_equal(value, np.asarray(wanted[leaf])), leaf
    timeless = [{k: v for k, v in row.items() if k not in CLOCKED} for row in RunFolder(tmp_path / "server").metrics()]
    assert timeless == [{k: v for k, v in plain(row).items() if k not in CLOCKED} for row in simulated.metrics]
    assert result["status"] == "finished"
    assert result["accuracy"] == simulated.metrics[-1]["test/accuracy"]


CLOCKED = {"clock", "t_start", "t_end"}


def plain(row: dict[str, Any]) -> dict[str, Any]:
    import json

    from atoll.core.persistence.files import as_json

    return json.loads(as_json(row))


@pytest.mark.parametrize(
    ("holding", "said", "label"),
    [
        ((), "clients/… are measured on the rows that clients train on: ", ", training rows"),
        (("site-2",), "measured on the rows that they train on at site-1/site-1, site-3/site-3, and on held-out rows elsewhere: ", ", held-out or training rows"),
        (("site-1", "site-2", "site-3"), None, ", held-out rows"),
    ],
)  # fmt: skip
def test_a_result_says_at_which_sites_training_rows_were_measured(
    holding: tuple[str, ...], said: str | None, label: str, parts: dict[str, Dataset], tmp_path: Path
) -> None:
    shares = {name: Islands.from_datasets({name: rows}) for name, rows in parts.items()}
    sites = sites_of({name: one.with_held_out(0.25) if name in holding else one for name, one in shares.items()})
    held({"rounds": 1, "seed": 7, **JOBS["clients"]}, sites, tmp_path)
    folder = RunFolder(tmp_path / "server")
    told = [text for text in folder.manifest()["notices"] if "they train on" in text or "clients train on" in text]
    assert len(told) == (said is not None)
    assert said is None or said in told[0]
    facts = facts_of(folder)
    assert facts.rows_of("clients/accuracy") == label
    whole = sum(len(parts[name]) for name in holding)
    assert (facts.data["held_out"], facts.data["holding_out"]) == (whole // 4, len(holding))


def test_sites_with_several_clients_equal_the_simulation_of_all_of_them(
    parts: dict[str, Dataset], tmp_path: Path
) -> None:
    job = {"rounds": 2, "seed": 1, **JOBS["mlp"], "selection": {"name": "Uniform", "count": 3}}
    halves = {
        name: Islands.from_datasets([rows.take(slice(0, 25)), rows.take(slice(25, 60))]) for name, rows in parts.items()
    }
    held(job, sites_of(halves), tmp_path)
    named = {f"{site}/{shard.name}": shard.dataset() for site, islands in halves.items() for shard in islands}
    simulated = atoll.simulate(parse_job(job).made(), Islands.from_datasets(named), engine="inline", seed=1)
    found = read_model(tmp_path / "server" / "model.safetensors")
    assert all(np.array_equal(found[leaf], np.asarray(value)) for leaf, value in T.items(simulated.params))


def test_sites_with_some_labels_and_with_none_equal_the_simulation(parts: dict[str, Dataset], tmp_path: Path) -> None:
    few = dict(parts)
    few["site-2"] = Dataset({"x": parts["site-2"].x}, name="bare")  # no column of labels at all
    third = parts["site-3"]
    there = np.arange(len(third)) % 3 == 0
    few["site-3"] = third.with_columns({"labelled": there})
    job = {"rounds": 2, "seed": 3, "data": {"test": "digits"}, **JOBS["softmax"], "selection": "Everyone"}
    held(job, sites_of(few), tmp_path)
    config = parse_job(job)
    simulated = atoll.simulate(config.made(), islands_of(few, config.test_set()), engine="inline", seed=3)
    found = read_model(tmp_path / "server" / "model.safetensors")
    for leaf, value in dict(T.items(simulated.params)).items():
        assert np.array_equal(found[leaf], np.asarray(value)), leaf


def test_a_job_whose_sites_have_no_label_is_refused_and_names_them(parts: dict[str, Dataset], tmp_path: Path) -> None:
    none = {name: rows.with_columns({"labelled": np.zeros(len(rows), bool)}) for name, rows in parts.items()}
    job = {"rounds": 1, "data": {"test": "digits"}, **JOBS["softmax"]}
    with pytest.raises(AtollError, match="no client has a label: site-1, site-2, site-3"):
        held(job, sites_of(none), tmp_path)


def holed(parts: dict[str, Dataset]) -> dict[str, Dataset]:
    """The digits, with pixels missing at the first site alone; the second declares that there may be some, the third does not."""
    made = {}
    for name, rows in parts.items():
        x = np.array(rows.x, np.float32)
        if name == "site-1":
            x[np.random.default_rng(0).random(x.shape) < 0.2] = np.nan
        made[name] = Dataset({"x": x, "y": rows.y % 2}, classes=2, missing_features=name != "site-3")
    return made


def test_trees_over_missing_features_between_sites_equal_the_simulation(
    parts: dict[str, Dataset], tmp_path: Path
) -> None:
    some = holed(parts)
    held({"job": "trees", "rounds": 2, "max_depth": 3, "seed": 3}, sites_of(some), tmp_path)
    from atoll.trees import Trees, model_file

    simulated = atoll.simulate(Trees(rounds=2, max_depth=3), islands_of(some), engine="inline", seed=3, progress=False)
    assert (tmp_path / "server" / "model.json").read_bytes() == model_file(simulated.outcome)
    assert any(tree.default_left.any() for tree in simulated.outcome.trees)


def test_a_training_between_sites_refuses_missing_features(parts: dict[str, Dataset], tmp_path: Path) -> None:
    job = {"rounds": 1, **JOBS["softmax"], "model": {"name": "linear", "features": 64, "outputs": 2}}
    with pytest.raises(AtollError, match="the clients' features may be missing, which a Training cannot use"):
        held(job, sites_of(holed(parts)), tmp_path)
