"""The law of this room: a cohort in blocks gives what the readable reference gives, client by client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from atoll.algorithms import FedAvg, FedSGD
from atoll.core.algebra import tree as T
from atoll.torch import LocalTraining
from atoll.torch.blocks.update import StepForm
from tests.support.torch_toys import (
    Dropped,
    Images,
    Recurrent,
    broadcast_of,
    compare,
    keys_of,
    seeded,
    shards_of,
    worst,
)

EQUAL = [15] * 5
UNEQUAL = [15, 3, 11, 5, 16]
TOLERANCE = 1e-4  # float32, a few hundred operations deep; relative to the largest entry of a leaf


def _models() -> dict[str, tuple[Any, tuple[int, ...], bool]]:
    return {
        "linear": (lambda: nn.Linear(6, 4), (6,), False),
        "mlp-layernorm": (
            lambda: nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.LayerNorm(8), nn.Linear(8, 4)),
            (6,),
            False,
        ),
        "dropout": (Dropped, (6,), False),
        "conv-groupnorm": (lambda: Images(nn.GroupNorm(2, 4)), (1, 8, 8), False),
        "gru": (lambda: Recurrent(nn.GRU, num_layers=2, dropout=0.3), (3,), True),
        "lstm": (lambda: Recurrent(nn.LSTM, bidirectional=True), (3,), True),
        "rnn": (lambda: Recurrent(nn.RNN, bias=False), (3,), True),
    }


@pytest.mark.quick("vector-[lmdc]*-unequal", "single-linear-*", "single-dropout-unequal")  # one recurrent layer
@pytest.mark.parametrize("sizes", [EQUAL, UNEQUAL], ids=["equal", "unequal"])
@pytest.mark.parametrize("name", list(_models()))
@pytest.mark.parametrize("mode", ["vector", "single"])
def test_replies_and_sums(name: str, sizes: list[int], mode: str) -> None:
    make, shape, ids = _models()[name]
    model = seeded(make)
    training = LocalTraining(
        model,
        FedAvg(lr=0.1, epochs=2, batch_size=5),
        compile="never",
        choices={"mode": mode, "block": 3 if mode == "vector" else 1, "channels_last": mode == "single"},
    )
    assert compare(training, shards_of(sizes, shape, ids=ids), broadcast_of(model)) < TOLERANCE


@pytest.mark.quick("conv-groupnorm")
@pytest.mark.parametrize("name", ["conv-groupnorm", "dropout"])
def test_without_the_rows_that_pad_a_mini_batch_replies_are_the_same(name: str) -> None:
    """The real rows of a last mini-batch give the loss that weights would; random draws of a row do not depend on the rows after it."""
    make, shape, ids = _models()[name]
    model = seeded(make)
    choices = {"mode": "single", "channels_last": True, "trimmed": True, "widths": [5]}
    training = LocalTraining(model, FedAvg(lr=0.1, epochs=2, batch_size=5), compile="never", choices=choices)
    assert compare(training, shards_of(UNEQUAL, shape, ids=ids), broadcast_of(model)) < TOLERANCE
    blocks = training._runner._blocks.values()  # type: ignore[union-attr]
    forms = [key[0] for block in blocks for key in block.programs if isinstance(key[0], StepForm)]
    assert forms
    assert not any(form.weighted for form in forms)


@pytest.mark.parametrize(("heavy", "wanted"), [(1.0, True), (1e12, False)])
def test_rows_that_pad_are_left_out_of_heavy_steps(monkeypatch: pytest.MonkeyPatch, heavy: float, wanted: bool) -> None:
    monkeypatch.setattr("atoll.torch.blocks.decide._HEAVY", heavy)
    model = seeded(lambda: Images(nn.GroupNorm(2, 4)))
    training = LocalTraining(model, FedAvg(batch_size=5), compile="never")
    training.many_sum(shards_of([7, 6], (1, 8, 8)), broadcast_of(model), None, keys_of(2))
    assert training.choices["shapes"]["trimmed"] is wanted


@pytest.mark.quick("1-*", "3-2")
@pytest.mark.parametrize("block", [1, 2, 5, 8])
@pytest.mark.parametrize("unroll", [1, 3])
def test_no_block_size_or_unrolling_changes_a_result(block: int, unroll: int) -> None:
    model = seeded(Dropped)
    choices = {"mode": "vector", "block": block, "unroll": unroll}
    training = LocalTraining(model, FedAvg(batch_size=4, steps=7), compile="never", choices=choices)
    assert compare(training, shards_of(UNEQUAL, (6,)), broadcast_of(model)) < TOLERANCE


@pytest.mark.every(3)
@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(batch_size=None, epochs=3),
        FedAvg(batch_size=4, steps=3),
        FedAvg(batch_size=50, epochs=2),
        FedAvg(batch_size=1, steps=4),
        FedSGD(),
    ],
    ids=["full-batch", "steps", "batch-beyond-data", "one-row", "fedsgd"],
)
def test_every_kind_of_schedule(algorithm: Any) -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, algorithm, compile="never")
    assert compare(training, shards_of([15, 3, 11], (6,)), broadcast_of(model)) < TOLERANCE
    assert training.choices["mode"] == "vector"


def test_a_client_without_examples_replies_with_weight_zero() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, FedAvg(batch_size=4), compile="never")
    shards = shards_of([8, 0, 5], (6,))
    keys = keys_of(3)
    summed = training.many_sum(shards, broadcast_of(model), None, keys)
    assert summed.totals["update"].weight == 13.0
    assert summed.steps.tolist() == [2, 0, 2]
    assert np.isfinite(summed.totals["update"].value["weight"]).all()


def test_a_cohort_larger_than_a_block_and_one_that_grew() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, FedAvg(batch_size=4), compile="never")
    assert compare(training, shards_of([8] * 3, (6,)), broadcast_of(model)) < TOLERANCE
    chosen = training.choices
    assert compare(training, shards_of([8] * 10, (6,)), broadcast_of(model)) < TOLERANCE
    assert training.choices == chosen


def test_rows_fetched_many_at_once() -> None:
    model = seeded(lambda: nn.Linear(6, 4))
    training = LocalTraining(model, FedAvg(batch_size=4), compile="never")
    shards, keys = shards_of(UNEQUAL, (6,)), keys_of(5)

    def gather(positions: np.ndarray) -> Any:
        picked = [shards[p] for p in positions]
        offsets = np.cumsum([0, *[len(x) for x, _ in picked]])
        return np.concatenate([x for x, _ in picked]), np.concatenate([y for _, y in picked]), offsets

    want = training.many_sum(shards, broadcast_of(model), None, keys).totals["update"]
    got = training.many_sum(gather, broadcast_of(model), None, keys).totals["update"]
    assert T.map(np.array_equal, want.value, got.value) == {"weight": True, "bias": True}


def test_bytes_are_measurements_and_wider_integers_are_ids() -> None:
    model = seeded(lambda: nn.Sequential(nn.Flatten(), nn.Linear(4, 3)))
    rng = np.random.default_rng(0)
    pixels = [(rng.integers(0, 255, (6, 2, 2)).astype(np.uint8), rng.integers(0, 3, 6)) for _ in range(2)]
    floats = [(x.astype(np.float32), y) for x, y in pixels]
    training = LocalTraining(model, FedAvg(lr=1e-4), compile="never")
    want = training.many_sum(floats, broadcast_of(model), None, keys_of(2)).totals["update"].value
    assert worst(want, training.many_sum(pixels, broadcast_of(model), None, keys_of(2)).totals["update"].value) == 0.0


def test_repeating_recorded_choices_repeats_the_bits() -> None:
    model = seeded(Dropped)
    shards, keys = shards_of(UNEQUAL, (6,)), keys_of(5)
    first = LocalTraining(model, FedAvg(batch_size=4), compile="never")
    want = first.many_sum(shards, broadcast_of(model), None, keys).totals["update"].value
    again = LocalTraining(model, FedAvg(batch_size=4), compile="never", choices=first.choices)
    got = again.many_sum(shards, broadcast_of(model), None, keys).totals["update"].value
    assert all(T.leaves(T.map(np.array_equal, want, got)))
    assert again.choices == first.choices


def test_the_users_module_is_never_changed() -> None:
    model = seeded(Dropped).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    training = LocalTraining(model, FedAvg(batch_size=4), compile="never")
    training.many_sum(shards_of(EQUAL, (6,)), broadcast_of(model), None, keys_of(5))
    training.one(shards_of([5], (6,))[0], broadcast_of(model), None, 1)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
