"""A model that is trained below a reducer's half: the same totals client by client, in blocks, and in native code, which hands them out by client."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg, FedDyn, FedNova, Mime, Scaffold
from atoll.core.algebra.aggregate import Sum, Total
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.chain import Chain
from atoll.core.requests.request import Reduced
from atoll.core.requests.task import Batch, task
from atoll.data import Dataset, Islands, dirichlet
from atoll.learn.learner import LearnerSettings, adapt
from atoll.native import cpp_compiler
from atoll.stages import Clip
from atoll.testing.conformance import check_task_many
from atoll.torch import LocalTraining
from atoll.torch.blocks.pool import Privates
from tests.support.torch_toys import broadcast_of, keys_of, seeded, shards_of

needs_a_compiler = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))


def _handed_on(totals: Any) -> dict[str, Sum]:
    """A total's value and weight as two sums under its kind and name: what a reducer needs to make the total again."""
    found = {f"{total.kind}/{name}/value": Sum(total.value, role=total.role) for name, total in totals.items()}
    weights = {n: t.weight if np.ndim(t.weight) else np.float64(t.weight) for n, t in totals.items()}
    return {**found, **{f"{total.kind}/{name}/weight": Sum(weights[name]) for name, total in totals.items()}}


def _idle_many(cohort: Any, message: Any) -> Any:
    for block in cohort.totals():
        yield Batch(block.positions, _handed_on(block.totals))


@task(many=_idle_many)
async def idle(island: Any, message: Any) -> Any:
    """Hands on its totals."""
    return _handed_on(await island.totals())


@task
async def idle_alone(island: Any, message: Any) -> Any:
    """The same without a `many`."""
    return _handed_on(await island.totals())


@dataclass(frozen=True)
class Handed(Reducer):
    """Exact: every total is made of two sums."""

    alone: bool = False

    async def reduce(self, reduction: Any) -> Reduced:
        found = await reduction.fold(idle_alone if self.alone else idle)
        made = {}
        for place in [name.removesuffix("/value") for name in found.totals if name.endswith("/value")]:
            kind, _, name = place.partition("/")
            value, weight = found.totals[f"{place}/value"], found.totals[f"{place}/weight"]
            made[name] = Total(kind, value.value, float(weight.value), value.n, value.role)
        return Reduced(made, found.senders)


def _islands(parties: int = 6) -> Islands:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 120)
    x = rng.normal(size=(120, 6)).astype("f4") + y[:, None]
    return dirichlet(Dataset({"x": x, "y": y}, name="blobs"), parties=parties, alpha=1.0, seed=0)


@pytest.mark.parametrize("half", [idle, idle_alone], ids=["many", "alone"])
@pytest.mark.parametrize("uplink", [(), (Clip(0.5),)], ids=["bare", "clipped"])
def test_a_model_below_a_half_trains_as_it_does_alone(half: Any, uplink: Any) -> None:
    model = seeded(lambda: nn.Linear(6, 3))
    islands = _islands()
    learner = adapt(model, LearnerSettings(algorithm=FedAvg(lr=0.1, batch_size=4), compile="never"), islands)
    message = {"broadcast": broadcast_of(model), "phase": "train"}
    check_task_many(learner.train, islands, message, uplink=Chain(uplink), half=half, tolerance=1e-4)


@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold, Mime, FedNova, FedDyn])
def test_a_half_in_blocks_changes_no_training(algorithm: Any) -> None:
    def weights(reducer: Reducer) -> Any:
        job = atoll.Training(
            model=atoll.models.linear(6, 3),
            algorithm=algorithm(lr=0.05, epochs=1, batch_size=8),
            selection=atoll.Uniform(4),
            rounds=3,
            reducer=reducer,
            evaluation=atoll.Evaluation(every=3),
        )
        return atoll.simulate(job, _islands(), engine="batched", workers=1).params

    plain = weights(Plain())
    for reducer in (Handed(), Handed(alone=True)):
        made = weights(reducer)
        for name, leaf in plain.items():
            np.testing.assert_allclose(np.asarray(made[name]), np.asarray(leaf), atol=1e-6)


# ---------------------------------------------------------------------- native code


def _training(algorithm: Any, threads: int = 1) -> LocalTraining:
    choices = {
        "mode": "vector",
        "block": 3,
        "native": True,
        "widths": [5],
        "stretch": 1024,
        "uneven": True,
        "threads": threads,
    }
    return LocalTraining(seeded(lambda: nn.Linear(6, 4)), algorithm, choices=choices)


@pytest.mark.every(2)
@needs_a_compiler
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("algorithm", [FedAvg, Scaffold])
def test_native_code_hands_out_what_each_client_adds(algorithm: Any, threads: int) -> None:
    training = _training(algorithm(lr=0.1, epochs=2, batch_size=5), threads)
    model, sizes = seeded(lambda: nn.Linear(6, 4)), [7, 4, 12, 30, 5]
    shards, keys = shards_of(sizes, (6,)), keys_of(5)
    broadcast = broadcast_of(model)
    if algorithm is Scaffold:
        broadcast["control"] = {name: np.full_like(leaf, 0.01) for name, leaf in broadcast["params"].items()}
    made = training.many_summands(shards, broadcast, None, keys)
    assert made is not None
    whole = training.many_sum(shards, broadcast, None, keys)
    batches = list(training.many(shards, broadcast, None, keys))
    assert made.totals.keys() == whole.totals.keys()
    for name, total in made.totals.items():
        assert float(np.sum(total.weight)) == pytest.approx(whole.totals[name].weight)
        for own, summed in zip(_leaves(total.value), _leaves(whole.totals[name].value), strict=True):
            assert own.shape == (5, *np.shape(summed))
            np.testing.assert_allclose(own.sum(axis=0), summed, rtol=1e-4, atol=1e-5)
        for batch in batches:
            mine = batch.reply[name].block_totals()
            np.testing.assert_allclose(total.weight[batch.positions], mine.weight)
            for own, one in zip(_leaves(total.value), _leaves(mine.value), strict=True):
                np.testing.assert_allclose(own[batch.positions], one, rtol=1e-4, atol=1e-4)
    assert sum(len(at) for at, _ in made.states) == (5 if algorithm is Scaffold else 0)


@needs_a_compiler
def test_a_client_whose_update_is_not_finite_adds_nothing() -> None:
    training, model = _training(FedAvg(batch_size=5)), seeded(lambda: nn.Linear(6, 4))
    shards = shards_of([5, 5, 5], (6,))
    shards[1][0][2, 3] = np.nan
    made = training.many_summands(shards, broadcast_of(model), None, keys_of(3))
    assert made is not None
    assert list(made.rejected) == [1]
    assert made.kept.tolist() == [0, 2]
    assert all(len(leaf) == 2 for total in made.totals.values() for leaf in _leaves(total.value))


@needs_a_compiler
def test_what_native_code_cannot_do_is_left_to_blocks() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([5, 5], (6,)), keys_of(2)
    undecided = LocalTraining(model, FedAvg(batch_size=5))
    assert undecided.many_summands(shards, broadcast_of(model), None, keys) is None
    wide = LocalTraining(model, FedAvg(batch_size=5), choices={"mode": "vector", "block": 2, "native": False})
    assert wide.many_summands(shards, broadcast_of(model), Privates.of(None, 2), keys) is None


@pytest.mark.slow
@needs_a_compiler
def test_the_learner_takes_native_code_below_a_half() -> None:
    model = seeded(lambda: nn.Linear(6, 3))
    islands = _islands(4)
    learner = adapt(model, LearnerSettings(algorithm=FedAvg(lr=0.1, batch_size=4), compile="always"), islands)
    calls = []
    handed_out = learner.training.many_summands

    def spied(*args: Any) -> Any:
        calls.append(handed_out(*args))
        return calls[-1]

    learner.training.many_summands = spied  # type: ignore[method-assign]
    message = {"broadcast": broadcast_of(model), "phase": "train"}
    check_task_many(learner.train, islands, message, half=idle, tolerance=1e-3)
    assert any(made is not None for made in calls)


def _leaves(value: Any) -> list[Any]:
    from atoll.core.algebra import tree as T

    return [np.asarray(leaf.numpy() if isinstance(leaf, torch.Tensor) else leaf) for leaf in T.leaves(value)]
