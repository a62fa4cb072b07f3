"""A module as a learner in a federation, and a user's own training loop."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg
from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError
from atoll.core.execution.executor import Executor
from atoll.core.persistence.state_table import StateTable
from atoll.core.requests.chain import Chain
from atoll.core.requests.cohort import Cohort
from atoll.core.requests.party import Parties, Roster
from atoll.core.requests.request import Request
from atoll.core.requests.stage import Identity
from atoll.data import Dataset, Islands, dirichlet
from atoll.learn.learner import LearnerSettings, adapt
from atoll.torch import CustomLoop, TorchLearner, init, params_of
from tests.support.torch_toys import Images, broadcast_of, seeded


def _islands(parties: int = 6) -> Islands:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(120, 6)).astype("f4") + y[:, None]
    return dirichlet(Dataset({"x": x, "y": y}, name="blobs"), parties=parties, alpha=1.0, seed=0)


def _fold(learner: Any, task: str, message: Any, islands: Islands, vectorised: bool) -> Any:
    roster = Roster(islands.names)
    executor = Executor(roster, islands, vectorised=vectorised)
    request = Request("round/1", getattr(learner, task), message, "main", key=11)
    return asyncio.run(executor.fold(request, np.arange(len(islands)), {request.slot: StateTable()}))


def _settings(**more: Any) -> LearnerSettings:
    return LearnerSettings(algorithm=FedAvg(lr=0.1, epochs=2, batch_size=4), compile="never", **more)


@pytest.mark.parametrize("task", ["train", "measure"])
def test_the_vectorised_fold_equals_the_party_by_party_one(task: str) -> None:
    islands = _islands()
    model = seeded(lambda: nn.Linear(6, 3))
    learner = adapt(model, _settings(), islands)
    assert isinstance(learner, TorchLearner)
    message = {"broadcast": broadcast_of(model), "phase": "train"} if task == "train" else {"params": params_of(model)}
    plain = _fold(learner, task, message, islands, False)
    quick = _fold(learner, task, message, islands, True)
    assert not plain.errors
    assert not quick.errors
    assert plain.senders.tolist() == quick.senders.tolist()
    assert plain.nbytes.tolist() == quick.nbytes.tolist()
    assert set(plain.totals) == set(quick.totals) == ({"update", "loss"} if task == "train" else {"measure"})
    if task == "measure":
        for a, b in zip(plain.totals["measure"].value, quick.totals["measure"].value, strict=True):
            assert {n: float(v) for n, v in a.value.items()} == pytest.approx({n: float(v) for n, v in b.value.items()})
        return
    for name in ("weight", "bias"):
        a, b = plain.totals["update"].value[name], quick.totals["update"].value[name]
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    assert plain.totals["loss"].result() == pytest.approx(quick.totals["loss"].result(), rel=1e-5)
    assert learner.choices["mode"] == "vector"


def test_the_fold_of_single_replies_goes_through_many() -> None:
    """With a stage in the uplink the engine asks for single replies in blocks instead of sums."""
    islands = _islands()
    model = seeded(lambda: nn.Linear(6, 3))
    learner = adapt(model, _settings(), islands)
    message = {"broadcast": broadcast_of(model), "phase": "train"}
    roster = Roster(islands.names)
    request = Request("round/1", learner.train, message, "main", key=11, uplink=Chain([Identity()]), public=(None,))
    executor = Executor(roster, islands, vectorised=True)
    staged = asyncio.run(executor.fold(request, np.arange(len(islands)), {request.slot: StateTable()}))
    plain = _fold(learner, "train", message, islands, True)
    for name in ("weight", "bias"):
        a, b = plain.totals["update"].value[name], staged.totals["update"].value[name]
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_tuning_is_recorded_and_recalled() -> None:
    islands = _islands()
    model = seeded(lambda: nn.Linear(6, 3))
    learner = adapt(model, _settings(), islands)
    tuning = learner.train.tuning
    assert tuning is not None
    assert tuning.choices == {}
    roster = Roster(islands.names)
    cohort = Cohort(Parties(roster, np.arange(3)), np.arange(3, dtype=np.uint64), islands)
    assert tuning.prepare(cohort, {"broadcast": broadcast_of(model), "phase": "train"}) > 0.0
    assert tuning.choices["block"] == 3
    assert tuning.seconds["trace"] > 0.0
    again = adapt(model, _settings(), islands).train.tuning
    assert again is not None
    again.recall(tuning.choices)
    assert again.choices == tuning.choices


def test_the_loss_follows_the_task() -> None:
    def named(task: str, outputs: int) -> str:
        return TorchLearner(seeded(lambda: nn.Linear(2, outputs)), _settings(), task).training.network.loss.name

    assert named("classification", 3) == "cross_entropy"
    assert named("regression", 1) == "mse"
    assert named("binary", 1) == "hinge"
    assert named("binary", 2) == "cross_entropy"


def test_a_model_that_does_not_fit_is_refused_when_adapted() -> None:
    with pytest.raises(DataError, match="does not fit a model with 2 outputs"):
        adapt(seeded(lambda: nn.Linear(6, 2)), _settings(), _islands())


def test_a_factory_starts_from_the_runs_seed() -> None:
    def make() -> nn.Module:
        return nn.Linear(6, 3)

    learner = adapt(seeded(make), _settings(factory=make), _islands())
    first, again, other = (learner.init(Rng.of(s)) for s in (1, 1, 2))
    assert np.array_equal(first["weight"], again["weight"])
    assert not np.array_equal(first["weight"], other["weight"])
    assert np.array_equal(first["weight"], params_of(init(make, Rng.of(1)))["weight"])


def test_export_and_buffers() -> None:
    model = seeded(lambda: Images(nn.BatchNorm2d(4)))
    learner = TorchLearner(model, _settings())
    buffers = learner.buffers()
    assert set(buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}
    moved = {name: value + 2.0 for name, value in buffers.items()}
    exported = learner.export({**params_of(model), **moved})
    assert float(exported.norm.running_mean[0]) == 2.0
    assert not exported.training
    assert TorchLearner(model, _settings(buffers="local")).buffers() == {}
    assert TorchLearner(seeded(lambda: nn.Linear(2, 2)), _settings()).buffers() == {}


def _sgd_loop(model: nn.Module, shard: Any, config: dict[str, Any], rng: np.random.Generator) -> dict[str, float]:
    optimiser = torch.optim.SGD(model.parameters(), lr=config["lr"])
    x, y = torch.tensor(np.array(shard["x"], dtype="f4")), torch.tensor(np.array(shard["y"]))
    order = torch.tensor(rng.permutation(len(x)))
    for rows in order.split(8):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(x[rows]) + 0.0 * torch.rand(1), y[rows])
        loss.backward()
        optimiser.step()
    return {"last_loss": loss.item()}


def test_a_users_own_loop_trains_and_repeats() -> None:
    islands = _islands()
    model = seeded(lambda: nn.Linear(6, 3))
    learner = adapt(CustomLoop(model, _sgd_loop, {"lr": 0.1}), _settings(), islands)
    message = {"broadcast": broadcast_of(model), "phase": "train"}
    first, again = (_fold(learner, "train", message, islands, True) for _ in range(2))
    assert not first.errors
    assert np.array_equal(first.totals["update"].value["weight"], again.totals["update"].value["weight"])
    assert first.totals["update"].weight == 120.0
    assert set(first.totals) == {"update", "last_loss"}
    # One client by hand: the difference of parameters, weighted by its examples.
    shard = islands.shard(0)
    trained, _ = CustomLoop(model, _sgd_loop, {"lr": 0.1}).run(model, shard, 5)
    by_hand = seeded(lambda: nn.Linear(6, 3))
    _sgd_loop_with_torch_kept(by_hand, shard, 5)
    assert np.array_equal(params_of(trained)["weight"], params_of(by_hand)["weight"])
    assert learner.evaluate(params_of(trained), shard)["n"] == len(shard)


def _sgd_loop_with_torch_kept(model: nn.Module, shard: Any, key: int) -> None:
    with torch.random.fork_rng(devices=[]):
        _sgd_loop(model, shard, {"lr": 0.1}, Rng(key).child("custom-loop").generator())


def test_a_loop_that_returns_nonsense_is_named() -> None:
    def broken(model: nn.Module, shard: Any, config: Any, rng: Any) -> str:
        return "done"

    loop = CustomLoop(seeded(lambda: nn.Linear(6, 3)), broken)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"the training loop returned str.*broken"):
        loop.run(seeded(lambda: nn.Linear(6, 3)), None, 1)


def test_a_cohort_without_gather_is_fetched_shard_by_shard() -> None:
    from atoll.core.requests.cohort import Community

    rng = np.random.default_rng(0)
    data = [{"x": rng.normal(size=(5, 6)).astype("f4"), "y": rng.integers(0, 3, 5)} for _ in range(3)]
    model = seeded(lambda: nn.Linear(6, 3))
    learner = TorchLearner(model, _settings())
    population = Community(data)
    roster = Roster(list(population.names))
    cohort = Cohort(Parties(roster, np.arange(3)), np.arange(3, dtype=np.uint64), population)
    (batch,) = learner.train.batches(cohort, {"broadcast": broadcast_of(model), "phase": "train"})
    assert batch.positions.tolist() == [0, 1, 2]
