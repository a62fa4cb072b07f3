"""FedDF, FedMD, FedBoost and sub-models as job files between organisations: what a simulation of the same clients finds, with public rows that the server alone holds."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file
from safetensors.torch import save_file
from torch import nn

import atoll
from atoll.core.errors import AtollError, ConfigError, PolicyError
from atoll.core.persistence.named_results import NamedResults
from atoll.data import Dataset
from atoll.ensemble import FedBoost, FedMD
from atoll.ensemble.fedmd import KEPT_MODEL, PreparedAnswers
from atoll.runs import RunFolder
from atoll.runtime.job_spec import JobConfig, parse_job, require_travels
from tests.ensemble.test_distilling import ROWS
from tests.support.work_toys import held, islands_of, load_from, sites_of

SHORT = {"steps": 3, "lr": 0.05}
MLP = {"name": "mlp", "features": 4, "outputs": 2, "hidden": [3]}


def rows(seed: int) -> Dataset:
    """Eight rows, whose label follows the first column."""
    x = np.random.default_rng(seed).normal(size=(8, 4)).astype(np.float32)
    return Dataset({"x": x, "y": (x[:, 0] > 0).astype(np.int64)}, features=["a", "b", "c", "d"])


PARTS = {"east": rows(1), "west": rows(2)}


def public(folder: Path, rows: np.ndarray = ROWS, columns: str = "a,b,c,d") -> dict[str, Any]:
    """A source of public rows without labels, in another order of columns."""
    file = folder / "public.csv"
    order = [1, 0, 2, 3]
    names = [columns.split(",")[place] for place in order]
    np.savetxt(file, rows[:, order], delimiter=",", header=",".join(names), comments="")
    return {"name": "read_csv", "path": str(file), "target": None}


def members() -> list[nn.Module]:
    """Two classifiers of four columns."""
    return [nn.Linear(4, 2), nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 2))]


def simulated(job: dict[str, Any]) -> Any:
    """What a simulation of the same clients finds, with the public rows."""
    islands = islands_of(PARTS).with_public(Dataset({"x": ROWS}, features=["a", "b", "c", "d"]))
    return atoll.simulate(parse_job(dict(job)).made(), islands, seed=3, engine="inline", progress=False)


def test_feddf_in_a_job_file_is_the_simulation(tmp_path: Path) -> None:
    topology = {"name": "FedDF", "distillation": SHORT}
    job = {"model": MLP, "topology": topology, "rounds": 2, "selection": "Everyone", "seed": 3}
    there = held({**job, "data": {"public": public(tmp_path)}}, sites_of(PARTS), tmp_path / "job")
    found = load_file(there["model"])
    for name, value in simulated(job).params.items():
        assert np.allclose(found[name], value, atol=1e-6)
    with pytest.raises(AtollError, match=r"no rows without labels.*data\.public"):
        held(job, sites_of(PARTS), tmp_path / "without")
    with pytest.raises(AtollError, match=r"no column 'd' \(in data set 'public'\)"):
        held({**job, "data": {"public": public(tmp_path, columns="a,b,c,z")}}, sites_of(PARTS), tmp_path / "other")


@pytest.fixture
def one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sites are threads here, and PyTorch has one generator a process: real sites have a process each."""
    turn = threading.Lock()

    def alone(work: Any) -> Any:
        def run(self: Any, island: Any, message: Any) -> Any:
            with turn:
                return work(self, island, message)

        return run

    for name in ("_start", "_turn"):
        monkeypatch.setattr(PreparedAnswers, name, alone(getattr(PreparedAnswers, name)))


@pytest.mark.usefixtures("one_at_a_time")
def test_fedmd_in_a_job_file_leaves_models_at_their_sites(tmp_path: Path) -> None:
    models = {"east": MLP, "west": {"name": "mlp", "features": 4, "outputs": 2, "hidden": [5]}}
    steps = dict.fromkeys(("begin", "imitation", "revisit"), SHORT)
    job = {"job": "fedmd", "models": models, "rounds": 2, "answered": 10, **steps, "seed": 3}
    kept = {name: NamedResults() for name in PARTS}
    there = held({**job, "data": {"public": public(tmp_path)}}, sites_of(PARTS), tmp_path / "job", results=kept)
    assert there["result"] == {"clients": 2, "models": f"at each site, as the result {KEPT_MODEL}"}
    assert there["model"] is None
    for name, model in simulated(job).outcome.items():
        mine = kept[name].get(name, KEPT_MODEL)
        assert mine.keys() == model.state_dict().keys()
        assert all(np.allclose(mine[key], value, atol=1e-6) for key, value in model.state_dict().items())
    with pytest.raises(AtollError, match=r"no public row to answer.*data\.public"):
        held(job, sites_of(PARTS), tmp_path / "without")
    with pytest.raises(AtollError, match="'west' has no model"):
        held({**job, "models": {"east": MLP}}, sites_of(PARTS), tmp_path / "lost")


def test_a_site_says_which_of_these_it_admits(tmp_path: Path) -> None:
    """By kind, by whether results may stay, and by the privacy that it demands, which answers without noise have not."""
    steps = {name: {"steps": 1} for name in ("begin", "imitation", "revisit")}
    job = {"job": "fedmd", "models": MLP, "rounds": 1, **steps, "data": {"public": public(tmp_path)}}
    table = "a,b,c,d,y\n" + "\n".join(",".join(map(str, (*x, y))) for x, y in zip(*(PARTS["west"][c].tolist() for c in "xy"), strict=True))  # fmt: skip
    (tmp_path / "west.csv").write_text(table)

    def lived(policy: dict[str, Any], folder: str) -> dict[str, Any]:
        west = load_from({"path": str(tmp_path / "west.csv"), "target": "y", "policy": policy}, "west")
        return held(job, {**sites_of({"east": PARTS["east"]}), "west": west}, tmp_path / folder)

    for place, (policy, words) in enumerate(
        [
            ({"allow": ["training"]}, "fedmd"),
            ({"privacy": {"epsilon": 1.0, "delta": 1e-5}}, "answers to public rows"),
        ]
    ):
        with pytest.raises(AtollError, match=words):
            lived(policy, f"refused-{place}")
        assert not RunFolder(tmp_path / f"refused-{place}" / "server").metrics(), "nobody has trained a round"
    assert lived({"allow": ["fedmd"]}, "admitted")["replied"] == 2
    assert lived({"results": False}, "without")["replied"] == 1, "where no model may stay, none is trained"


def test_no_server_of_another_organisation_sees_a_model_of_fedmd() -> None:
    job = FedMD(models=atoll.models.mlp(4, 2, (3,)), rows=ROWS)
    ready = job.prepare(islands_of(PARTS))
    island: Any = SimpleNamespace(remote=True, state={"model": {}})
    with pytest.raises(PolicyError, match=f"stays with it.*{KEPT_MODEL}"):
        ready.show(island, {})
    assert [event.kind for event in ready.most(8)] == ["non-private"]
    seen = {(one.who, one.sees) for one in job.explain(islands_of(PARTS)).exposures}
    assert ("every client", "the mean of answers to public rows, classes x rows numbers") in seen


def test_fedboost_in_a_job_file_reads_members_at_the_server(tmp_path: Path) -> None:
    """Sites have the forms of the members; numbers come with the draw."""
    for place, one in enumerate(members()):
        save_file({name: value + 0.5 for name, value in one.state_dict().items()}, tmp_path / f"{place}.safetensors")
    name = f"{__name__}:members"
    job = {"job": "fedboost", "members": name, "saved": str(tmp_path), "sampled": 1, "rounds": 3, "seed": 3}
    there = held(job, sites_of(PARTS), tmp_path / "job")
    weights = simulated(job).outcome.weights
    assert list(there["result"]["weights"].values()) == pytest.approx(weights.tolist(), abs=1e-9)
    plain = simulated({**job, "saved": None}).outcome.weights
    assert abs(plain - weights).max() > 1e-4
    with pytest.raises(AtollError, match=r"0\.safetensors is no file of this member"):
        held({**job, "saved": str(tmp_path / "none")}, sites_of(PARTS), tmp_path / "lost")


def test_what_makes_members_travels_by_its_name() -> None:
    made = JobConfig.of(FedBoost(members=members, rounds=3))
    assert made.plain()["members"] == f"{__name__}:members"
    with pytest.raises(ConfigError, match=r"'tests' lies in .* which does not travel.*in job: members"):
        require_travels(made)
    with pytest.raises(ConfigError, match="lambda cannot travel"):
        JobConfig.of(FedBoost(members=lambda: members()))
    with pytest.raises(ConfigError, match="no module 'nowhere'"):
        require_travels(made.model_copy(update={"members": "nowhere:members"}))


def test_sub_models_can_be_named_in_a_job_file() -> None:
    algorithm = {"name": "HeteroFL", "base": "FedAvg", "widths": [0.5, 1.0]}
    job = parse_job(
        {"model": MLP, "algorithm": algorithm, "topology": {"name": "DeviceWidths", "clients": {"east": 0.5}}}
    )
    made: Any = job.made()
    assert made.algorithm.level(made.topology.clients["east"]) == 1
    assert "HeteroFL" in made.names()
    assert "HeteroFL" in atoll.Training.known_names()
