"""Evaluation over a data set and over many clients at once."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from atoll.torch import FunctionalModule, buffers_of, evaluate, evaluate_many, params_of
from tests.support.torch_toys import Dropped, Images, seeded, shards_of

CPU = torch.device("cpu")


def _network(model: nn.Module, loss: str = "cross_entropy") -> FunctionalModule:
    return FunctionalModule(model, loss, CPU, torch.float32)


def test_sums_are_those_of_the_module() -> None:
    model = seeded(Dropped)
    ((x, y),) = shards_of([5000], (6,))
    sums = evaluate(_network(model), params_of(model), (x, y))
    model.eval()
    with torch.no_grad():
        outputs = model(torch.tensor(x))
    assert sums["n"] == 5000
    assert sums["correct"] == int((outputs.argmax(1).numpy() == y).sum())
    assert sums["loss_sum"] == pytest.approx(
        float(F.cross_entropy(outputs, torch.tensor(y), reduction="sum")), rel=1e-5
    )


def test_each_client_of_many_is_evaluated_on_its_own_rows() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards = shards_of([30, 0, 7, 2500], (6,))
    network = _network(model)
    many = evaluate_many(network, params_of(model), shards, 4)
    for i, shard in enumerate(shards):
        one = evaluate(network, params_of(model), shard)
        for name, value in one.items():
            assert many[name][i] == pytest.approx(value, rel=1e-6)
    assert many["n"].tolist() == [30, 0, 7, 2500]
    assert evaluate_many(network, params_of(model), [], 0)["n"].shape == (0,)


def test_regression_and_binary() -> None:
    model = seeded(lambda: nn.Linear(6, 1))
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 6)).astype("f4"), rng.normal(size=20)
    z = (x @ params_of(model)["weight"].T + params_of(model)["bias"])[:, 0]
    sums = evaluate(_network(model, "mse"), params_of(model), (x, y))
    assert sums["squared_error"] == pytest.approx(((z - y) ** 2).sum(), rel=1e-5)
    assert sums["absolute_error"] == pytest.approx(np.abs(z - y).sum(), rel=1e-5)
    signs = np.where(y > 0, 1, -1)
    sums = evaluate(_network(model, "hinge"), params_of(model), (x, signs))
    assert sums["correct"] == (np.sign(z) == signs).sum()
    assert sums["loss_sum"] == pytest.approx(np.maximum(0, 1 - signs * z).sum(), rel=1e-5)


def test_one_score_and_a_loss_of_ones_own_give_no_accuracy() -> None:
    """Which of logits, probabilities or counts the scores are only the loss knows."""
    model = seeded(lambda: nn.Linear(3, 1))
    x, y = np.ones((8, 3), np.float32), np.arange(8) % 2

    def own(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return nn.functional.binary_cross_entropy_with_logits(scores.squeeze(-1), targets.float())

    assert set(evaluate(_network(model, own), params_of(model), (x, y))) == {"n", "loss_sum"}
    named = evaluate(_network(model, "bce"), params_of(model), (x, y))
    assert named["correct"] == 4.0


def test_running_statistics_are_used_and_may_be_given() -> None:
    model = seeded(lambda: Images(nn.BatchNorm2d(4)))
    ((x, y),) = shards_of([12], (1, 8, 8))
    network = _network(model)
    plain = evaluate(network, params_of(model), (x, y))
    moved = {name: value + 1.0 for name, value in buffers_of(model).items()}
    assert evaluate(network, {**params_of(model), **moved}, (x, y))["loss_sum"] != pytest.approx(plain["loss_sum"])
    assert evaluate(network, {**params_of(model), **buffers_of(model)}, (x, y)) == pytest.approx(plain)
