"""What a client's rows or the model on them raise is that client's: named, and the others go on."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import FedAvg
from atoll.core.errors import DataError, TaskError
from atoll.data import Dataset, Islands
from atoll.torch import LocalTraining
from atoll.torch.tracing.keyed import Bounded, UnboundedIndexError
from tests.support.torch_toys import broadcast_of, keys_of, seeded, shards_of, worst


class Words(nn.Module):
    """Look-ups by the layer, or by the function beneath it."""

    def __init__(self, bare: bool = False) -> None:
        super().__init__()
        self.embed, self.last, self.bare = nn.Embedding(20, 5), nn.Linear(5, 4), bare

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = torch.embedding(self.embed.weight, x) if self.bare else self.embed(x)
        return self.last(found.mean(1))


class Picked(nn.Module):
    """Look-ups of another kind, which raise in a block as well as alone."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.last = nn.Parameter(torch.ones(20, 5)), nn.Linear(5, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.table[x].mean(1))


def _training(model: nn.Module, mode: str) -> LocalTraining:
    choices = {"mode": mode, "block": 3 if mode == "vector" else 1}
    return LocalTraining(model, FedAvg(batch_size=4), compile="never", choices=choices)


@pytest.mark.parametrize(("mode", "bare"), [("vector", False), ("vector", True), ("single", False)])
@pytest.mark.parametrize("index", [25, 1000, -1])
def test_an_index_beyond_a_table_never_reaches_another_client(mode: str, bare: bool, index: int) -> None:
    model = seeded(lambda: Words(bare))
    shards, keys = shards_of([8, 8, 8], (3,), ids=True), keys_of(3)
    training = _training(model, mode)
    want, _ = _replies(training, shards, keys)
    shards[1][0][6, 2] = index
    message = rf"index {index} in an embedding of 20 rows \(0\.\.19\).*number the ids from 0 to 19"
    with pytest.raises(DataError, match=message):
        training.many_sum(shards, broadcast_of(model), None, keys)
    got, errors = _replies(training, shards, keys)
    assert set(got) == {0, 2}
    assert all(worst(want[i], got[i]) == 0.0 for i in got)
    assert str(index) in str(errors.pop(1))
    assert not errors
    with pytest.raises(DataError, match=message):  # alone likewise
        training.one(shards[1], broadcast_of(model), None, 1)


def _replies(training: LocalTraining, shards: list[Any], keys: Any) -> tuple[dict[int, Any], dict[int, Exception]]:
    replies, errors = {}, {}
    for batch in training.many(shards, broadcast_of(training.network.training), None, keys):
        errors.update(batch.errors)
        assert not batch.rejected
        for row, place in enumerate(batch.positions.tolist()):
            replies[place] = batch.reply["update"].row(row).value
    return replies, errors


def test_functions_that_fill_by_index_are_not_run_in_a_block() -> None:
    seed, at = torch.zeros(2, dtype=torch.int64), torch.tensor([0])
    with Bounded(seed, strict=True), pytest.raises(UnboundedIndexError, match="index_fill"):
        torch.zeros(3).index_fill(0, at, 1.0)
    with Bounded(seed, strict=False):
        assert torch.zeros(3).index_fill(0, at, 1.0).sum() == 1.0


def _islands(x: list[Any]) -> Islands:
    return Islands.from_datasets([Dataset({"x": rows, "y": np.arange(len(rows)) % 4}, classes=4) for rows in x])


def _job(model: Any) -> atoll.Training:
    return atoll.Training(model=model, selection=atoll.Everyone(), rounds=2, algorithm=FedAvg(batch_size=4))


@pytest.mark.network
@pytest.mark.parametrize(("model", "kind"), [(Words, DataError), (Picked, TaskError)])
def test_in_a_cohort_the_client_and_the_round_are_named_and_the_others_go_on(model: Any, kind: Any) -> None:
    rows = [np.random.default_rng(i).integers(0, 20, (8, 3)) for i in range(4)]
    rows[2][5, 1] = 25
    data = _islands(rows)
    with pytest.raises(kind, match=r"@1/train at client-2"):
        atoll.simulate(_job(model), data)
    params = {e: atoll.simulate(_job(model), data, engine=e, errors="drop") for e in ("batched", "inline")}
    assert [result.metrics.last("replied") for result in params.values()] == [3, 3]
    assert worst(params["inline"].params, params["batched"].params) < 1e-5


def test_a_mini_batch_of_one_row_for_batch_normalisation() -> None:
    data = _islands([np.random.default_rng(i).normal(size=(n, 6)).astype(np.float32) for i, n in enumerate((8, 9, 6))])
    job = _job(lambda: nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 4)))
    message = r"mini-batch of 1 row \(its 9 rows in mini-batches of 4\).*at client-1.*choose a batch_size"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is trained client by client", RuntimeWarning)
        for engine in ("inline", "batched"):
            with pytest.raises(DataError, match=message):
                atoll.simulate(job, data, engine=engine)
            assert atoll.simulate(job, data, engine=engine, errors="drop").metrics.last("replied") == 2


def test_a_model_that_raises_on_some_batches_raises_in_every_engine() -> None:
    class Sized(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.training and x.shape[0] == 3:
                raise ValueError("three rows")
            return super().forward(x)

    data = _islands([np.ones((n, 6), np.float32) for n in (8, 7, 8)])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*is trained client by client", RuntimeWarning)
        for engine in ("inline", "batched"):
            with pytest.raises(TaskError, match=r"ValueError: three rows.*@1/train at client-1"):
                atoll.simulate(_job(lambda: Sized(6, 4)), data, engine=engine)
