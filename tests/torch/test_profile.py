"""Representation profiles of PyTorch models: which elements, which statistics, and that nothing else changes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core import message as M
from atoll.core.errors import ConfigError
from atoll.data import Dataset, Islands
from atoll.learn.learner import LearnerSettings, adapt
from atoll.learn.profiles import divergence, selection_probabilities
from atoll.torch import FunctionalModule, evaluate, params_of, profile, profile_many
from atoll.torch import profile as profile_function
from atoll.torch.blocks.pool import pool_of
from atoll.torch.evaluate import _run_layer
from tests.support.torch_toys import Dropped, Images, Recurrent, broadcast_of, seeded, shards_of

CPU = torch.device("cpu")


def network(model: nn.Module) -> FunctionalModule:
    return FunctionalModule(model, "cross_entropy", CPU, torch.float32)


class Residual(nn.Module):
    """Post-activation of ``relu(x + bn(conv(relu(bn(conv x)))))``."""

    def __init__(self, channels: int = 2) -> None:
        super().__init__()
        self.one, self.first = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)
        self.two, self.second = nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x + self.second(self.two(torch.relu(self.first(self.one(x))))))


class Blocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block, self.last = nn.Conv2d(1, 2, 3), Residual(), nn.Linear(72, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(torch.relu(self.stem(x))).flatten(1))


def expected(name: str, model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """The elements written out by hand."""
    model = model.eval()
    if name == "dense":
        return model.first(x)
    if name == "conv":
        return model.conv(x).sum((2, 3))
    if name == "block":
        return model.block(torch.relu(model.stem(x))).sum((2, 3))
    if name == "sequence":
        return model[0](x).sum(1)
    _, end = model.cells(model.embed(x))
    hidden = end[0] if name.startswith("lstm") else end
    layers = 2 if name.startswith("lstm") else 3
    return hidden.reshape(layers, -1, *hidden.shape[1:]).sum((1, 3)).T


CASES: dict[str, tuple[Any, str, tuple[int, ...], bool, int]] = {
    "dense": (Dropped, "first", (6,), False, 12),
    "conv": (lambda: Images(nn.GroupNorm(2, 4)), "conv", (1, 8, 8), False, 4),
    "block": (Blocks, "block", (1, 8, 8), False, 2),
    "sequence": (lambda: nn.Sequential(nn.Linear(6, 5), nn.Flatten(), nn.Linear(15, 4)), "0", (3, 6), False, 5),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.5), "cells", (3,), True, 2),
    "lstm both ways": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), "cells", (3,), True, 2),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=3), "cells", (3,), True, 3),
}


@pytest.mark.parametrize("name", list(CASES))
def test_the_elements_of_a_layer(name: str) -> None:
    make, layer, shape, ids, q = CASES[name]
    model = seeded(make)
    ((x, y),) = shards_of([40], shape, ids=ids)
    found = profile(network(model), params_of(model), (x, y), layer)
    with torch.no_grad():
        want = expected(name, model, torch.as_tensor(x)).double().numpy()
    assert found["mean"].shape == found["var"].shape == (q,)
    np.testing.assert_allclose(found["mean"], want.mean(0), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found["var"], want.var(0), rtol=1e-4, atol=1e-7)
    assert found["var"].dtype == found["mean"].dtype == np.float32


@pytest.mark.parametrize("name", list(CASES))
def test_a_cohort_at_once_is_each_client_by_itself(name: str) -> None:
    make, layer, shape, ids, _ = CASES[name]
    model = seeded(make)
    shards = shards_of([15, 0, 3, 1, 11], shape, ids=ids)
    many, sizes = profile_many(network(model), params_of(model), shards, len(shards), layer)
    assert sizes.tolist() == [15, 0, 3, 1, 11]
    for i, shard in enumerate(shards):
        one = profile(network(model), params_of(model), shard, layer)
        for key in ("mean", "var"):
            np.testing.assert_allclose(many[key][i], one[key], rtol=1e-5, atol=1e-6)
    assert not many["mean"][1].any()
    assert not many["var"][1].any()
    assert np.abs(many["var"][3]).max() < 1e-9  # a single row has no spread


def test_one_pass_over_more_rows_than_are_held_at_once_is_the_whole_batch() -> None:
    """The law of streaming: 4500 rows go through in three chunks, clients across their borders."""
    model = seeded(lambda: nn.Linear(6, 5))
    rng = np.random.default_rng(0)
    x = (1e3 + rng.normal(size=(4500, 6))).astype(
        np.float32
    )  # a large mean, where sums of squares would lose everything
    y = np.zeros(4500, int)
    cuts = [0, 1900, 2100, 4500]
    shards = [(x[a:b], y[a:b]) for a, b in itertools.pairwise(cuts)]
    many, _ = profile_many(network(model), params_of(model), shards, 3)
    for i, (rows, _) in enumerate(shards):
        with torch.no_grad():
            whole = model(torch.as_tensor(rows)).double().numpy()
        np.testing.assert_allclose(many["mean"][i], whole.mean(0), rtol=1e-6)
        np.testing.assert_allclose(many["var"][i], whole.var(0), rtol=1e-3)


@settings(max_examples=20, deadline=None)
@given(st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_no_cut_of_the_same_rows_into_chunks_matters(sizes: list[int]) -> None:
    model = seeded(lambda: nn.Linear(6, 3))
    x = np.random.default_rng(1).normal(size=(sum(sizes), 6)).astype(np.float32)
    many, counts = profile_many(
        network(model),
        params_of(model),
        [(x[sum(sizes[:i]) : sum(sizes[: i + 1])], np.zeros(n, int)) for i, n in enumerate(sizes)],
        len(sizes),
    )
    weights = counts[:, None].astype(float)
    if not sum(sizes):
        return
    mean = (weights * many["mean"]).sum(0) / weights.sum()
    var = (weights * (many["var"] + (many["mean"] - mean) ** 2)).sum(0) / weights.sum()
    whole = profile(network(model), params_of(model), (x, np.zeros(len(x), int)))
    np.testing.assert_allclose(whole["mean"], mean, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(whole["var"], var, rtol=1e-4, atol=1e-6)


def test_it_is_8_bytes_an_element() -> None:
    model = seeded(lambda: nn.Linear(6, 128))
    found = profile(network(model), params_of(model), shards_of([4], (6,))[0])
    assert sum(leaf.nbytes for leaf in found.values()) == 8 * 128
    assert M.nbytes(found) <= 8 * 128 + 128  # names, types and shapes


def test_auto_is_the_first_fully_connected_layer() -> None:
    model, shard = seeded(Dropped), shards_of([9], (6,))[0]
    ours, named = (profile(network(model), params_of(model), shard, layer) for layer in ("auto", "first"))
    assert np.array_equal(ours["mean"], named["mean"])
    with pytest.raises(ConfigError, match="no fully connected layer"):
        profile(network(seeded(lambda: nn.Sequential(nn.Conv2d(1, 2, 3)))), {}, shards_of([2], (1, 4, 4))[0])


def test_running_statistics_that_travel_are_used_and_dropout_is_off() -> None:
    model = seeded(lambda: Images(nn.BatchNorm2d(4)))
    shard = shards_of([12], (1, 8, 8))[0]
    params = {**params_of(model), "norm.running_mean": np.full(4, 5.0, np.float32)}
    plain, moved = (profile(network(model), p, shard, "norm") for p in (params_of(model), params))
    # 36 places of a channel, each lower by 5 (running variance 1, eps 1e-5)
    np.testing.assert_allclose(plain["mean"] - moved["mean"], np.full(4, 36 * 5 / np.sqrt(1 + 1e-5)), rtol=1e-4)
    dropped = seeded(Dropped)
    once, twice = (profile(network(dropped), params_of(dropped), shards_of([9], (6,))[0], "last") for _ in range(2))
    assert np.array_equal(once["mean"], twice["mean"])


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.shared, self.idle = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.shared(torch.relu(self.shared(x)))


@pytest.mark.parametrize(
    ("model", "shape", "layer", "message"),
    [
        (Twice, (6,), "shared", "runs 2 times"),
        (Twice, (6,), "idle", "runs 0 times"),
        (Twice, (6,), "sharde", r"no layer 'sharde'.*Did you mean 'shared'.*use 'auto' or one of shared, idle"),
        (Twice, (6,), "", "no layer ''"),
        (lambda: nn.Sequential(nn.Unflatten(1, (2, 3)), nn.Flatten(), nn.Linear(6, 4)), (6,), "0", "no elements"),
    ],
)
def test_a_layer_without_elements_is_refused(model: Any, shape: Any, layer: str, message: str) -> None:
    made = seeded(model)
    with pytest.raises(ConfigError, match=message):
        profile(network(made), params_of(made), shards_of([5], shape)[0], layer)


def test_a_hook_is_gone_afterwards_also_when_it_fails() -> None:
    made = network(seeded(Twice))
    shard = shards_of([5], (6,))[0]
    with pytest.raises(ConfigError, match="runs 2 times"):
        profile(made, params_of(made.evaluation), shard, "shared")
    assert not any(part._forward_hooks for part in made.evaluation.modules())
    assert evaluate(made, params_of(made.evaluation), shard)["n"] == 5


def blobs(kind: str, n: int, rng: np.random.Generator) -> Dataset:
    """Digits-like rows with labels; ``noisy`` ones have Gaussian noise on top, ``fake`` ones are nothing but noise."""
    y = rng.integers(0, 4, n)
    centres = 2.0 * np.random.default_rng(42).normal(size=(4, 16))
    x = centres[y] + 0.5 * rng.normal(size=(n, 16))
    x = x + {"clean": 0.0, "noisy": 2.5, "fake": 0.0}[kind] * rng.normal(size=x.shape)
    x = rng.normal(size=x.shape) if kind == "fake" else x
    return Dataset({"x": x.astype(np.float32), "y": y}, task="classification", classes=4)


def test_clients_with_noise_get_a_lower_score_on_a_trained_model() -> None:
    rng = np.random.default_rng(0)
    kinds = ["clean"] * 4 + ["noisy"] * 4 + ["fake"] * 2
    data = Islands.from_datasets([blobs(kind, 120, rng) for kind in kinds], test=blobs("clean", 300, rng))
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 24), nn.ReLU(), nn.Linear(24, 4)))
    job = atoll.Training(model=model, algorithm=FedAvg(lr=0.1), rounds=5, selection=atoll.Everyone(), compile="never")
    params = atoll.simulate(job, data, engine="inline").params
    learner = job.learner(data)
    own = learner.report_of(params, data.test, {"profile": None})["profile"]
    told = [learner.report_of(params, data.shard(i), {"profile": {"layer": "auto"}})["profile"] for i in range(10)]
    found = [divergence(profile, own) for profile in told]
    chances = selection_probabilities(found, 10.0)
    assert max(found[:4]) < 0.5 * min(found[4:])
    assert chances[:4].min() > 5 * chances[4:].max()


def test_the_hook_never_changes_what_training_gives() -> None:
    data = Islands.from_datasets([blobs("clean", n, np.random.default_rng(n)) for n in (10, 30)])
    model = seeded(lambda: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 4)))
    learner = adapt(model, LearnerSettings(algorithm=FedAvg(epochs=2), compile="never"), data)
    message = {"broadcast": broadcast_of(model), "phase": "train"}

    async def program(fed: Any, **more: Any) -> Any:
        return dict((await fed.sum(fed.parties, learner.train, {**message, **more}, at=1)).value)

    async def asking(fed: Any) -> Any:
        return await program(fed, reports={"profile": {"layer": "0"}})

    for engine in ("inline", "batched"):
        plain, hooked = (atoll.simulate(p, data, tasks=[learner.train], engine=engine) for p in (program, asking))
        told = hooked.pop("report/profile")
        assert M.equal(plain, hooked)
        assert [part.weight for part in told] == [10.0, 30.0]
        want = profile_function(learner.training.network, params_of(model), data.shard(0), "0")
        np.testing.assert_allclose(told[0].value["mean"], want["mean"], rtol=1e-5)


def odd(model: nn.Module, layer: str, x: np.ndarray[Any, Any]) -> float:
    """How far a layer's elements are from Gaussians: mean absolute skewness plus excess kurtosis."""
    pool = pool_of({"x": x, "y": np.zeros(len(x), int)}, np.array([0, len(x)]), CPU, torch.float32)
    with torch.no_grad():
        z = np.concatenate([found for _, found in _run_layer(network(model), params_of(model), pool, layer)])
    z = (z - z.mean(0)) / z.std(0)
    return float(np.abs((z**3).mean(0)).mean() + np.abs((z**4).mean(0) - 3).mean())


def test_elements_look_the_more_normal_the_more_they_sum_up() -> None:
    """Propositions 5.1 and 5.2: neurons with their fan-in, channels with the space that is fused."""
    rng = np.random.default_rng(0)
    dense = [
        odd(seeded(lambda n=n: nn.Linear(n, 32)), "auto", rng.exponential(size=(4000, n)).astype(np.float32))
        for n in (2, 16, 128)
    ]
    assert dense[0] > 2 * dense[1] > 4 * dense[2]
    images = [
        odd(
            seeded(lambda: nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU())),
            "1",
            rng.exponential(size=(3000, 1, side, side)).astype(np.float32),
        )
        for side in (3, 6, 14)
    ]
    assert images[0] > 2 * images[1] > 4 * images[2]
