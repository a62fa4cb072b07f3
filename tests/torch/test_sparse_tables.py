"""Tables with sparse gradients train as dense ones do, and no way of training that is tried prints a traceback."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import atoll
from atoll.algorithms import DPSGD, FedAvg
from atoll.core.algebra.rng import Rng
from atoll.data import Dataset
from atoll.selection import Everyone
from atoll.torch import LocalTraining
from atoll.torch.learner import seeded
from tests.support.torch_toys import broadcast_of

RNG = np.random.default_rng(0)
ISLANDS = {f"c{i}": Dataset({"x": RNG.integers(0, 7, (6 + i, 3)), "y": np.arange(6 + i) % 2}) for i in range(2)}


class Words(nn.Module):
    """A table, read by a function or by a layer, and a linear layer."""

    def __init__(self, kind: str, sparse: bool) -> None:
        super().__init__()
        self.kind, self.sparse = kind, sparse
        layer = nn.EmbeddingBag if kind == "bag" else nn.Embedding
        self.table, self.last = layer(7, 4, sparse=sparse), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        if self.kind == "function":
            found = F.embedding(x, self.table.weight, sparse=self.sparse)
        elif self.kind == "bags":
            found = F.embedding_bag(x, self.table.weight, mode="sum", sparse=self.sparse)
        else:
            found = self.table(x)
        return self.last(found if found.dim() == 2 else found.sum(1))


def train(model: Any, algorithm: Any, engine: str) -> Any:
    job = atoll.Training(model=model, algorithm=algorithm, rounds=1, selection=Everyone())
    return atoll.simulate(job, ISLANDS, engine=engine, progress=False).params


@pytest.mark.parametrize(
    ("kind", "engine"), [("layer", "batched"), ("function", "inline"), ("bag", "inline"), ("bags", "batched")]
)
def test_a_sparse_gradient_has_the_values_of_a_dense_one(kind: str, engine: str, capfd: Any) -> None:
    _compare(kind, FedAvg(lr=0.3, epochs=2, batch_size=4), engine)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("kind", ["layer", "bags"])
@pytest.mark.filterwarnings("ignore:Words makes the gradient of every example:RuntimeWarning")
def test_examples_of_a_sparse_table_are_clipped_as_those_of_a_dense_one(kind: str) -> None:
    algorithm, rows, made = DPSGD(FedAvg(lr=0.3, steps=2), clip=0.5, noise=1.0, rate=1.0), ISLANDS["c1"], []
    for sparse in (False, True):
        model = seeded(lambda sparse=sparse: Words(kind, sparse), 1)
        reply, _ = LocalTraining(model, algorithm).one(rows, broadcast_of(model), None, 1, noise=Rng.of(3))
        made.append(reply["update"].value)
    for name, value in made[0].items():
        np.testing.assert_allclose(made[1][name], value, atol=1e-6)


def _compare(kind: str, algorithm: Any, engine: str) -> None:
    dense, sparse = (train(seeded(lambda s=s: Words(kind, s), 1), algorithm, engine) for s in (False, True))
    for name, value in dense.items():
        np.testing.assert_allclose(sparse[name], value, atol=1e-5)


class Sorted(nn.Module):
    """Multiplies by a sparse matrix, for which vmap has no rule, or takes a loss that no tracer takes."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.first, self.last = kind, nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Any) -> Any:
        h = self.first(x.float())
        if self.kind == "sparse":
            return self.last(torch.sparse.mm(torch.eye(len(h)).to_sparse(), h))
        return self.last(torch.linalg.lstsq(h.T @ h + torch.eye(4), h.T).solution.T)


@pytest.mark.parametrize("kind", ["sparse", "lstsq"])
@pytest.mark.filterwarnings("ignore:Sorted is :RuntimeWarning")
def test_ways_that_are_tried_in_vain_print_nothing(kind: str, capfd: Any) -> None:
    train(seeded(lambda: Sorted(kind), 1), FedAvg(batch_size=None), "batched")
    assert "Traceback" not in capfd.readouterr().err
