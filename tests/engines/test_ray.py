"""What the Ray engine adds to the laws of every engine: equal models, actors that die, states that stay with them, tasks of a script."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError, MissingExtraError, TaskError
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines.ray import Ray
from atoll.privacy import exact_epsilon
from atoll.runs import RunFolder, execute, parse_config, yaml
from atoll.simulation import run_in
from atoll.stages import Clip, GaussianNoise

SCAFFOLD = atoll.algorithms.Scaffold(lr=0.05)
ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=12, alpha=0.5, seed=0)


@pytest.fixture
def cluster():
    """Ray on this machine with room for two workers at least; every test after it stays with it, whichever comes first."""
    ray = pytest.importorskip("ray", reason="needs ray, which is not installed")
    if not ray.is_initialized():
        run_in(World(Community([0.0]), Ray(2)), nothing)
    return ray


async def nothing(fed):
    """Ask nobody; the engine has joined its cluster."""


@task
def dies_once(island, message):
    """The first actor that works for client-1 in round 2 dies, and the sum is that of a run where nobody does."""
    mark = Path(message["folder"], "died")
    if message["round"] == 2 and island.name == "client-1" and not mark.exists():
        mark.touch()
        os._exit(9)
    runs = (island.state or {"runs": 0.0})["runs"] + 1
    island.state = {"runs": runs}
    return {"x": Sum(island.data * runs + island.rng.generator().normal())}


@task
def always_dies(island, message):
    os._exit(9)


@pytest.mark.slow
def test_noise_and_policies_are_those_of_the_other_engines(cluster):
    """Noise comes from the actors' secrets, what it spends is in the driver's ledger, and a client's policy keeps its reply in."""
    name = str(ISLANDS.names[3])
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), rounds=2,
        uplink=[Clip(1.0), GaussianNoise(1.0)],
    )  # fmt: skip
    more = {"policy": {name: SitePolicy(stages=[Clip(0.5)])}, "secret_seed": 7, "workers": 2}
    here, there = (atoll.simulate(job, ISLANDS, engine=engine, **more) for engine in ("inline", "ray"))
    for key, leaf in here.params.items():
        assert np.allclose(leaf, there.params[key], rtol=1e-6, atol=1e-9)
    for result in (here, there):
        assert ["the uplink lacks Clip(bound=0.5)" in row["rejected_clients"][name] for row in result.metrics] == [
            True
        ] * 2
        assert result.metrics.column("epsilon") == pytest.approx([exact_epsilon(n, 1e-5) for n in (1, 2)])


@pytest.mark.parametrize(
    "model",
    [atoll.models.linear(64, 10), pytest.param(atoll.models.mlp(64, 10, (16,)), marks=pytest.mark.slow)],
    ids=["linear", "mlp"],
)
@pytest.mark.slow
def test_a_training_gives_the_model_of_the_batched_engine(cluster, model, tmp_path):
    job = atoll.Training(model=model, algorithm=SCAFFOLD, selection=atoll.Uniform(5), rounds=4)
    here = atoll.simulate(job, ISLANDS, workers=2, seed=3)
    there = atoll.simulate(job, ISLANDS, engine="ray", workers=2, seed=3, folder=tmp_path / "run")
    for name, leaf in here.params.items():
        # The engines cut a cohort of unequal clients into other blocks, so sums of float32 round in another order.
        near = 1e-6 * float(np.abs(leaf).max()) if leaf.dtype == np.float32 else 1e-9
        np.testing.assert_allclose(there.params[name], leaf, rtol=1e-6, atol=near)
    assert there.engine["name"] == "ray"
    assert there.bytes == here.bytes


@pytest.mark.slow
def test_a_configuration_names_the_engine(cluster, tmp_path):
    text = """
    data: {source: iris, partition: {name: iid, parties: 6}}
    model: {name: linear, features: 4, outputs: 3}
    selection: {name: Uniform, count: 3}
    rounds: 3
    workers: 1
    """
    settings = yaml.parse(textwrap.dedent(text), "run.yaml")
    here, there = (
        execute(parse_config({**settings, "engine": engine}, "run.yaml"), RunFolder(tmp_path / engine), report=False)
        for engine in ("batched", "ray")
    )
    assert there.engine["name"] == "ray"
    for name, leaf in here.params.items():
        assert np.allclose(leaf, there.params[name], rtol=1e-6, atol=1e-9)
    assert RunFolder(tmp_path / "ray").manifest()["status"] == "finished"


async def counted(fed, folder, rounds=3):
    """Sums of rounds whose states follow from those before."""
    state = await fed.restore({"round": 0, "sums": []})
    while state["round"] < rounds:
        got = await fed.sum(fed.parties, dies_once, {"round": state["round"], "folder": str(folder)})
        state = {"round": state["round"] + 1, "sums": [*state["sums"], float(got["x"])]}
        await fed.checkpoint(state)
    return state["sums"]


PEOPLE = Community([1.0, 2.0, 4.0, 8.0])


@pytest.mark.slow
def test_an_actor_that_dies_is_replaced_and_nothing_else_changes(cluster, tmp_path):
    def sums(engine, folder, alive):
        folder.mkdir()
        if alive:
            (folder / "died").touch()
        return run_in(World(PEOPLE, engine), lambda fed: counted(fed, folder))[0]

    alone = sums(atoll.engines.Inline(), tmp_path / "inline", True)
    assert sums(Ray(2), tmp_path / "alive", True) == pytest.approx(alone, rel=1e-12)
    assert sums(Ray(2), tmp_path / "killed", False) == sums(Ray(2), tmp_path / "again", True)
    assert (tmp_path / "killed" / "died").exists()


@pytest.mark.slow
def test_what_kills_every_actor_is_an_error_and_the_next_request_finds_new_ones(cluster, tmp_path):
    (tmp_path / "died").touch()

    async def program(fed):
        with pytest.raises(TaskError, match=r"a worker ended during its work"):
            await fed.sum(fed.parties, always_dies)
        assert [task for task in asyncio.all_tasks() if "_ask_one" in str(task.get_coro())] == []
        return await counted(fed, tmp_path, rounds=1)

    assert len(run_in(World(PEOPLE, Ray(2, retries=1)), program)[0]) == 1


class Watched(Ray):
    """Notes how many clients' states go with each request for a sum."""

    def __init__(self, workers):
        super().__init__(workers)
        self.sent = []

    def _frame_of_fold(self, i, request, part, loan):
        frame = super()._frame_of_fold(i, request, part, loan)
        assert len(frame["kept"]["held"]) == len(part)
        self.sent.append(int((~frame["kept"]["held"]).sum()))
        return frame


@pytest.mark.slow
def test_states_stay_with_the_actors(cluster, tmp_path):
    (tmp_path / "died").touch()
    engine = Watched(2)
    run_in(World(PEOPLE, engine), lambda fed: counted(fed, tmp_path))
    assert engine.sent == [2, 2, 0, 0, 0, 0]


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_from_its_folder(cluster, tmp_path):
    job = atoll.Training(model=atoll.models.linear(64, 10), algorithm=SCAFFOLD, selection=atoll.Uniform(5), rounds=4)
    whole = atoll.simulate(job, ISLANDS, engine="ray", workers=2)

    def stop(row):
        if row.get("round") == 2:
            raise KeyboardInterrupt("the second round is over")

    with pytest.raises(KeyboardInterrupt, match="the second round is over"):
        atoll.simulate(job, ISLANDS, engine="ray", workers=2, folder=tmp_path / "run", on_record=stop)
    resumed = atoll.simulate(job, ISLANDS, engine="ray", workers=2, folder=tmp_path / "run", resume=True)
    assert [row["round"] for row in resumed.metrics] == [row["round"] for row in whole.metrics]
    for name, leaf in whole.params.items():
        assert np.array_equal(leaf, resumed.params[name])


SCRIPT = """
    import numpy as np
    import atoll
    from atoll.core.requests.cohort import Community

    @atoll.task
    def first(island, message):
        return {"x": atoll.Sum(np.float64(island.data))}

    @atoll.task
    def second(island, message):
        return {"x": atoll.Sum(message * helper(island.data))}

    def helper(x):
        return x + 1.0

    async def program(fed):
        one = await fed.sum(fed.parties, first)
        two = await fed.sum(fed.parties, second, np.full(20_000, 2.0))
        return float(one["x"]), float(two["x"].sum())

    print(atoll.simulate(program, Community([1, 2, 3]), engine="ray", workers=2))
"""


@pytest.mark.slow
def test_tasks_of_a_script_reach_the_actors_and_ray_says_nothing(cluster, tmp_path):
    (tmp_path / "script.py").write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, "-W", "error", "script.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "(6.0, 360000.0)\n", "")


@pytest.mark.network
def test_more_workers_than_the_cluster_has_processors_are_refused(cluster):
    with pytest.raises(ConfigError, match=r"4000 workers need 4000 CPUs but the Ray cluster has .*use fewer workers"):
        run_in(World(PEOPLE, Ray(4000)), lambda fed: counted(fed, "."))


@pytest.mark.network
def test_data_that_cannot_be_sent_are_refused(cluster):
    async def program(fed):
        await fed.ask_all(fed.parties, always_dies)

    with pytest.raises(ConfigError, match=r"cannot be sent to another process: cannot pickle .*engine='batched'"):
        run_in(World(Community([sys.stdout]), Ray(2)), program)


@pytest.mark.slow
def test_actors_import_what_the_script_can_import(cluster, tmp_path):
    """From a folder that the script put on its path, although it works in another folder."""
    lib, elsewhere = tmp_path / "lib", tmp_path / "elsewhere"
    lib.mkdir()
    elsewhere.mkdir()
    (lib / "toys.py").write_text("class Doubled(int):\n    def value(self):\n        return 2.0 * self\n")
    script = tmp_path / "script.py"
    text = f"""
    import os, sys
    sys.path.append({str(lib)!r})
    os.chdir({str(elsewhere)!r})
    import atoll, toys
    from atoll.core.algebra.aggregate import Sum
    from atoll.core.requests.cohort import Community
    from atoll.core.requests.task import task

    @task
    def tell(island, message):
        return {{"x": Sum(island.data.value())}}

    async def program(fed):
        return float((await fed.sum(fed.parties, tell, None))["x"])

    print(atoll.simulate(program, Community([toys.Doubled(i) for i in (1, 2, 3)]), engine="ray", workers=2))
    """
    script.write_text(textwrap.dedent(text))
    found = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (found.stdout.strip(), found.returncode) == ("12.0", 0), found.stderr


def test_without_ray_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"the engine 'ray' needs ray.*pip install \"atoll\[ray\]\""):
        atoll.simulate(lambda fed: None, PEOPLE, engine="ray")


def test_a_number_of_retries_that_makes_no_sense_is_refused():
    with pytest.raises(ConfigError, match=r"retries=-1 .*use 0 or more"):
        Ray(2, retries=-1)
