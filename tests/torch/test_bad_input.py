"""What a user gets wrong is refused before training, with the numbers and the remedy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import ConfigError, DataError
from atoll.torch import LocalTraining
from tests.support.torch_toys import broadcast_of, keys_of, seeded, shards_of


def _train(model: nn.Module, shards: list[Any], **settings: Any) -> Any:
    training = LocalTraining(model, FedAvg(batch_size=4), compile="never", **settings)
    return training.many_sum(shards, broadcast_of(model), None, keys_of(len(shards)))


def test_labels_beyond_the_outputs() -> None:
    shards = shards_of([8, 8], (6,))
    shards[1][1][3] = 6
    with pytest.raises(DataError, match=r"label «6» does not fit a model with 4 outputs.*at least «7» outputs"):
        _train(seeded(lambda: nn.Linear(6, 4)), shards)


def test_negative_labels() -> None:
    with pytest.raises(DataError, match="label «-1» does not fit"):
        _train(seeded(lambda: nn.Linear(6, 4)), [(np.zeros((2, 6), "f4"), np.array([0, -1]))])


def test_inputs_of_the_wrong_width() -> None:
    with pytest.raises(DataError, match=r"Linear cannot take inputs of shape \(2, 5\).*reshape the column 'x'"):
        _train(seeded(lambda: nn.Linear(6, 4)), shards_of([8], (5,)))
    with pytest.raises(
        DataError, match=r"type torch\.int.*amounts are floating-point numbers: x\.astype\(np\.float32\)"
    ):
        _train(seeded(lambda: nn.Linear(6, 4)), [(np.zeros((2, 6), "i1"), np.array([0, 1]))])


def test_float_labels_for_classes() -> None:
    with pytest.raises(DataError, match="needs whole-number labels, not float64"):
        _train(seeded(lambda: nn.Linear(6, 4)), [(np.zeros((2, 6), "f4"), np.zeros(2))])


def test_one_output_for_two_targets() -> None:
    with pytest.raises(DataError, match=r"the model must return 2 value\(s\) per example"):
        _train(seeded(lambda: nn.Linear(6, 1)), [(np.zeros((3, 6), "f4"), np.zeros((3, 2)))], loss="mse")


def test_signs_for_hinge() -> None:
    with pytest.raises(DataError, match=r"label «0» with loss 'hinge'.*encode the two classes as -1 and 1"):
        _train(seeded(lambda: nn.Linear(6, 1)), [(np.zeros((3, 6), "f4"), np.array([1, -1, 0]))], loss="hinge")


def test_a_model_that_returns_no_tensor() -> None:
    class Pair(nn.Linear):
        def forward(self, x: torch.Tensor) -> Any:
            return super().forward(x), x

    with pytest.raises(DataError, match="Pair returns tuple, not a tensor"):
        _train(seeded(lambda: Pair(6, 4)), shards_of([8], (6,)))


def test_a_model_without_trainable_parameters() -> None:
    with pytest.raises(DataError, match="Flatten has no trainable parameters"):
        LocalTraining(nn.Flatten(), FedAvg())


def test_more_targets_than_inputs() -> None:
    with pytest.raises(DataError, match="3 inputs and 4 targets"):
        _train(seeded(lambda: nn.Linear(6, 4)), [(np.zeros((3, 6), "f4"), np.zeros(4, int))])


def test_a_shard_without_columns() -> None:
    with pytest.raises(DataError, match="a shard of type dict has no columns 'x' and 'y'"):
        _train(seeded(lambda: nn.Linear(6, 4)), [{"features": np.zeros(3)}])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": nn.CrossEntropyLoss}, r"loss=CrossEntropyLoss is a class.*give an instance.*nn.CrossEntropyLoss\(\)"),
        ({"loss": "cross_entrpy"}, "loss='cross_entrpy' is not known. Did you mean 'cross_entropy'"),
        ({"device": "gpu"}, "device='gpu' is not known"),
        ({"device": "cuda:99"}, "device='cuda:99'"),
        ({"compile": "sometimes"}, "compile='sometimes' is not known"),
        ({"buffers": "shared"}, "buffers='shared' is not known"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' is not known"),
        ({"choices": {"mode": "warp"}}, "are not of this version"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LocalTraining(seeded(lambda: nn.Linear(2, 2)), FedAvg(), **settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is there")
def test_a_device_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match=r"device='cuda' is not available.*use device='cpu' or 'auto'"):
        LocalTraining(seeded(lambda: nn.Linear(2, 2)), FedAvg(), device="cuda")
    assert LocalTraining(seeded(lambda: nn.Linear(2, 2)), FedAvg(), device="auto").network.device.type in ("cpu", "mps")


@pytest.mark.parametrize("mode", ["vector", "single"])
def test_a_client_whose_update_is_not_finite_is_left_out_and_named(mode: str) -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    shards, keys = shards_of([8, 8, 8], (6,)), keys_of(3)
    choices = {"mode": mode, "block": 3 if mode == "vector" else 1}
    training = LocalTraining(model, FedAvg(batch_size=4), compile="never", choices=choices)
    clean = training.many_sum([shards[0], shards[2]], broadcast_of(model), None, keys[[0, 2]])
    shards[1][0][2, 3] = np.nan
    summed = training.many_sum(shards, broadcast_of(model), None, keys)
    assert summed.rejected == {1: "training loss (nan), update not finite"}
    assert summed.kept.tolist() == [0, 2]
    assert summed.totals["update"].n == 2
    assert summed.totals["update"].weight == 16.0
    np.testing.assert_allclose(
        summed.totals["update"].value["weight"], clean.totals["update"].value["weight"], rtol=1e-5, atol=1e-6
    )
    assert summed.totals["loss"].value == pytest.approx(clean.totals["loss"].value, rel=1e-5)
    rejected = {
        p: why for batch in training.many(shards, broadcast_of(model), None, keys) for p, why in batch.rejected.items()
    }
    assert rejected == summed.rejected


class _Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(3, 2), nn.Linear(5, 2)

    def forward(self, a: Any, b: Any) -> Any:
        return self.one(a) + self.two(b)


class _Parted(_Pair):
    def forward(self, x: Any) -> Any:  # type: ignore[override]
        a, b = x.split([3, 5], dim=1)
        return super().forward(a, b)


def test_a_model_of_two_inputs_is_told_where_they_come_from() -> None:
    x = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    data = {"only": atoll.data.Dataset({"x": x, "y": np.arange(6) % 2})}
    pair, parted = seeded(_Pair), seeded(_Parted)
    with pytest.raises(DataError, match=r"argument: 'b'.*put all inputs side by side there, and part them in forward"):
        atoll.simulate(atoll.Training(model=pair, rounds=1), data, engine="inline", progress=False)
    job = atoll.Training(model=parted, algorithm=atoll.FedAvg(lr=0.1, batch_size=None), rounds=1)
    made = atoll.simulate(job, data, engine="inline", progress=False)
    loss = nn.functional.cross_entropy(parted(torch.tensor(x)), torch.arange(6) % 2)
    (slope,) = torch.autograd.grad(loss, parted.one.weight)
    np.testing.assert_allclose(made.params["one.weight"], (parted.one.weight - 0.1 * slope).detach(), atol=1e-6)
