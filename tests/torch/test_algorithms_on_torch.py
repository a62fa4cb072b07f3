"""Algorithms with state of their own, several gradients a step, and server scalars; oracles for the arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.algorithms import FedAvg, FedSGD
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Parts, Sum, Vote
from atoll.core.errors import CompositionError
from atoll.learn.algorithm import Algorithm, Stateful
from atoll.torch import LocalTraining, params_of
from tests.support.torch_toys import broadcast_of, compare, keys_of, seeded, shards_of, worst


@dataclass(frozen=True, kw_only=True)
class Everything(Algorithm, Stateful):
    """Momentum, an anchor, a step counter, private state, two gradients a step, every summable aggregate."""

    def client_init(self, params: Any) -> Any:
        return {"c": T.zeros_like(params), "rounds": np.float32(0.0)}

    def start(self, broadcast: Any, client: Any) -> Any:
        zeros = T.zeros_like(broadcast["params"])
        return {"params": broadcast["params"], "m": zeros, "anchor": broadcast["params"], "c": client["c"], "t": 0}

    def step(self, local: Any, grad: Any, broadcast: Any) -> Any:
        here, there = grad(local["params"]), grad(local["anchor"])
        m = T.map(lambda m, a, b, c: 0.9 * m + a - 0.1 * b + c, local["m"], here, there, local["c"])
        scaled = T.scale(m, broadcast["lr"] / (1.0 + local["t"]))
        return {**local, "params": T.sub(local["params"], scaled), "m": m, "t": local["t"] + 1}

    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        update = T.sub(local["params"], broadcast["params"])
        state = {"c": T.scale(update, 1.0 / work.steps), "rounds": client["rounds"] + 1.0}
        reply = {
            "update": Mean(update, work.examples),
            "control": Sum(T.sub(state["c"], client["c"])),
            "vote": Vote(update),
            "steps": Mean(work.steps * 1.0, work.examples, role="metric"),
        }
        return reply, state


@pytest.mark.every(2)
@pytest.mark.parametrize("sizes", [[12, 12, 12], [12, 3, 7]], ids=["equal", "unequal"])
@pytest.mark.parametrize("mode", ["vector", "single"])
def test_state_several_gradients_and_all_aggregates(sizes: list[int], mode: str) -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    choices = {"mode": mode, "block": 2 if mode == "vector" else 1}
    training = LocalTraining(model, Everything(epochs=2, batch_size=5), compile="never", choices=choices)
    shards = shards_of(sizes, (6,))
    assert compare(training, shards, broadcast_of(model)) < 1e-4
    rng = np.random.default_rng(1)
    mixed = [
        None,
        *[{"c": T.map(lambda p: rng.normal(size=p.shape).astype("f4") * 0.1, params_of(model)), "rounds": 3.0}] * 2,
    ]
    assert compare(training, shards, broadcast_of(model), mixed) < 1e-4


@dataclass(frozen=True, kw_only=True)
class Single(Algorithm):
    def finish(self, local: Any, broadcast: Any, client: Any, work: Any) -> Any:
        return {"model": Parts(local["params"], work.examples)}, client


def test_single_replies_are_given_by_many_and_refused_by_sums() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, Single(), compile="never")
    shards, keys = shards_of([8, 8], (6,)), keys_of(2)
    (batch,) = training.many(shards, broadcast_of(model), None, keys)
    want = training.one(shards[1], broadcast_of(model), None, int(keys[1]))[0]["model"].value
    assert worst(want, T.map(lambda leaf: leaf[1], batch.reply["model"].value)) < 1e-5
    with pytest.raises(CompositionError, match="a reply of kind 'parts' is not summable"):
        training.many_sum(shards, broadcast_of(model), None, keys)


def test_a_step_that_changes_the_structure_is_named() -> None:
    class Growing(FedAvg):
        def step(self, local: Any, grad: Any, broadcast: Any) -> Any:
            return {**super().step(local, grad, broadcast), "extra": 1.0}

    model = seeded(lambda: nn.Linear(6, 4))
    choices = {"mode": "vector", "block": 2}
    training = LocalTraining(model, Growing(), compile="never", choices=choices)
    with pytest.raises(CompositionError, match=r"Growing\.step returns another structure"):
        training.many_sum(shards_of([8, 8], (6,)), broadcast_of(model), None, keys_of(2))


def test_one_full_batch_step_is_the_softmax_regression_gradient() -> None:
    """Closed form: dL/dW = (softmax(xW'+b) - onehot(y))' x / n, dL/db its column mean."""
    model = seeded(lambda: nn.Linear(6, 4)).double()
    ((x, y),) = shards_of([9], (6,))
    x = x.astype(np.float64)
    params = params_of(model)
    z = x @ params["weight"].T + params["bias"]
    p = np.exp(z - z.max(1, keepdims=True))
    p /= p.sum(1, keepdims=True)
    slope = (p - np.eye(4)[y]) / len(x)
    training = LocalTraining(model, FedAvg(batch_size=None, steps=1), dtype="float64", compile="never")
    for update in (
        training.one((x, y), broadcast_of(model), None, 0)[0]["update"].value,
        T.scale(training.many_sum([(x, y)], broadcast_of(model), None, keys_of(1)).totals["update"].value, 1 / 9),
    ):
        np.testing.assert_allclose(update["weight"], -0.1 * slope.T @ x, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(update["bias"], -0.1 * slope.sum(0), rtol=1e-12, atol=1e-14)


@settings(max_examples=6)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.sampled_from([nn.Tanh, nn.ReLU, nn.Sigmoid, nn.GELU]),
    st.integers(1, 9),
    st.booleans(),
)
def test_gradients_of_random_models_are_those_of_autograd(
    widths: list[int], activation: Any, rows: int, bias: bool
) -> None:
    def make() -> nn.Module:
        layers: list[nn.Module] = []
        for before, width in zip([6, *widths], widths, strict=False):
            layers += [nn.Linear(before, width, bias=bias), activation()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], 4))

    model = seeded(make).double()
    ((x, y),) = shards_of([rows], (6,))
    training = LocalTraining(model, FedSGD(), dtype="float64", compile="never")
    summed = training.many_sum([(x, y), (x, y)], broadcast_of(model), None, keys_of(2))
    loss = nn.functional.cross_entropy(model(torch.tensor(x, dtype=torch.float64)), torch.tensor(y))
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    for name, gradient in zip(dict(model.named_parameters()), wanted, strict=True):
        got = summed.totals["gradient"].value[name] / summed.totals["gradient"].weight
        np.testing.assert_allclose(got, gradient.numpy(), rtol=1e-9, atol=1e-12)
    assert summed.losses == pytest.approx([loss.item()] * 2)
