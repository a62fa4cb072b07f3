"""Models as trees, and losses on padded batches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from atoll.algorithms import FedAvg
from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError
from atoll.learn.local.own_loss import LOSS_NAMES
from atoll.torch import LOSSES, LocalTraining, buffers_of, init, load, params_of
from tests.support.torch_toys import broadcast_of, compare, seeded, shards_of


def test_a_round_trip_leaves_the_module_alone() -> None:
    model = seeded(lambda: nn.Linear(3, 2))
    tree = params_of(model)
    tree["weight"] += 1.0
    assert not np.allclose(params_of(model)["weight"], tree["weight"])
    made = load(model, tree)
    assert np.array_equal(params_of(made)["weight"], tree["weight"])
    assert not np.array_equal(params_of(model)["weight"], tree["weight"])


def test_load_refuses_what_does_not_fit() -> None:
    model = seeded(lambda: nn.Linear(3, 2))
    tree = params_of(model)
    with pytest.raises(DataError, match=r"no parameter 'wieght'. Did you mean 'weight'"):
        load(model, {"wieght": tree["weight"]})
    with pytest.raises(DataError, match=r"'bias' has shape \(3,\), the model needs \(2,\)"):
        load(model, {**tree, "bias": np.zeros(3)})
    with pytest.raises(DataError, match=r"parameters \['bias'\] are missing"):
        load(model, {"weight": tree["weight"]})


def test_initial_weights_follow_the_stream_and_nothing_else() -> None:
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GRU(4, 2))

    first, again, other = (params_of(init(make, Rng.of(seed))) for seed in (1, 1, 2))
    assert all(np.array_equal(first[n], again[n]) for n in first)
    assert not np.array_equal(first["0.weight"], other["0.weight"])
    model = seeded(make)
    before = params_of(model)
    assert np.array_equal(params_of(init(model, Rng.of(1)))["0.weight"], first["0.weight"])
    assert all(np.array_equal(before[n], value) for n, value in params_of(model).items())


def test_frozen_parameters_stay_and_buffers_are_listed() -> None:
    model = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)))
    model[0].requires_grad_(False)
    assert set(params_of(model)) == {"1.weight", "1.bias", "2.weight", "2.bias"}
    assert set(buffers_of(model)) == {"1.running_mean", "1.running_var"}
    frozen = seeded(lambda: nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    frozen[0].requires_grad_(False)
    training = LocalTraining(frozen, FedAvg(batch_size=4), compile="never")
    assert compare(training, shards_of([8, 7], (6,)), broadcast_of(frozen)) < 1e-5


def test_tied_parameters_travel_once_and_train_together() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)
            self.b.weight = self.a.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.b(torch.tanh(self.a(x)))

    model = seeded(Tied)
    assert set(params_of(model)) == {"a.weight", "a.bias", "b.bias"}
    ((x, y),) = shards_of([8], (6,))
    training = LocalTraining(model, FedAvg(batch_size=None, steps=2), compile="never")
    assert compare(training, [(x, y), (x, y)], broadcast_of(model)) < 1e-5
    reply, _ = training.one((x, y), broadcast_of(model), None, 0)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = params_of(model)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(model(torch.tensor(x)), torch.tensor(y)).backward()
        optimiser.step()
    np.testing.assert_allclose(
        params_of(model)["a.weight"] - before["a.weight"], reply["update"].value["a.weight"], rtol=1e-4, atol=1e-7
    )


OUTPUTS = {"mse": (2,), "l1": (2,), "bce": (), "hinge": (), "squared_hinge": ()}


@settings(max_examples=40)
@given(st.sampled_from(sorted(LOSSES)), st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_padding_never_changes_a_loss(name: str, real: int, padded: int, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    rows = real + padded
    loss = LOSSES[name]
    if loss.task == "classes":
        outputs, targets = torch.randn(rows, 3, generator=draw), torch.randint(0, 3, (rows,), generator=draw)
    else:
        outputs = torch.randn(rows, *OUTPUTS[name], generator=draw)
        targets = torch.randint(0, 2, (rows, *OUTPUTS[name]), generator=draw)
        targets = targets * 2 - 1 if name.endswith("hinge") else targets
    weights = torch.tensor([1.0] * real + [0.0] * padded)
    torch.testing.assert_close(loss(outputs, targets, weights), loss(outputs[:real], targets[:real]))


def test_losses_against_pytorchs_own() -> None:
    draw = torch.Generator().manual_seed(0)
    scores, labels = torch.randn(7, 4, generator=draw), torch.randint(0, 4, (7,), generator=draw)
    torch.testing.assert_close(LOSSES["cross_entropy"](scores, labels), F.cross_entropy(scores, labels))
    logs = F.log_softmax(scores, 1)
    torch.testing.assert_close(LOSSES["nll"](logs, labels), F.nll_loss(logs, labels))
    z, bits = scores[:, :1], labels % 2
    torch.testing.assert_close(LOSSES["bce"](z, bits), F.binary_cross_entropy_with_logits(z[:, 0], bits.float()))
    torch.testing.assert_close(
        LOSSES["hinge"](z, bits * 2 - 1),
        F.hinge_embedding_loss(1 - (bits * 2 - 1) * z[:, 0], -torch.ones(7), margin=0.0)
        + (1 - (bits * 2 - 1) * z[:, 0]).clamp(min=0).mean(),
    )


def test_multiclass_hinge_by_hand() -> None:
    # Rows: rival 2 against true 1 -> 1 + 2 - 1 = 2; rival 0 against true 3 -> max(0, 1 + 0 - 3) = 0.
    scores = torch.tensor([[1.0, 2.0, -1.0], [0.0, -1.0, 3.0]])
    loss = LOSSES["multiclass_hinge"]
    assert float(loss(scores, torch.tensor([0, 2]))) == 1.0


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("loss", "outputs", "targets"),
    [
        ("mse", 1, lambda rng, n: rng.normal(size=n)),
        ("mse", 2, lambda rng, n: rng.normal(size=(n, 2))),
        ("l1", 1, lambda rng, n: rng.normal(size=(n, 1))),
        ("bce", 1, lambda rng, n: rng.integers(0, 2, n)),
        ("hinge", 1, lambda rng, n: rng.integers(0, 2, n) * 2 - 1),
        ("hinge", 4, lambda rng, n: rng.integers(0, 4, n)),
        ("multiclass_hinge", 4, lambda rng, n: rng.integers(0, 4, n)),
    ],
)
def test_training_with_each_loss(loss: str, outputs: int, targets: object) -> None:
    rng = np.random.default_rng(2)
    model = seeded(lambda: nn.Linear(6, outputs))
    shards = [(rng.normal(size=(n, 6)).astype("f4"), targets(rng, n)) for n in (9, 4, 7)]  # type: ignore[operator]
    training = LocalTraining(model, FedAvg(batch_size=4), loss=loss, compile="never")
    assert compare(training, shards, broadcast_of(model)) < 1e-5
    assert training.choices["mode"] == "vector"


def test_every_loss_has_a_name_that_files_may_say() -> None:
    assert tuple(LOSSES) == LOSS_NAMES
