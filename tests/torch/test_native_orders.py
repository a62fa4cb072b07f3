"""Mini-batches drawn in native code are those of the reference, to the bit, wherever the rows are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from atoll.algorithms import FedAvg
from atoll.core.errors import DataError
from atoll.core.requests.party import Parties, Roster
from atoll.data import Dataset, Islands
from atoll.learn.local.update import batch_rows
from atoll.native import cpp_compiler
from atoll.torch import LocalTraining
from atoll.torch.blocks import source
from atoll.torch.blocks.pool import PoolPlace
from atoll.torch.blocks.source import Rows
from atoll.torch.native import MemoryLayout, compile, simple_graph  # noqa: A004
from atoll.torch.native.orders import Draws
from atoll.torch.native.program import NativeColumn
from tests.support.torch_toys import broadcast_of, keys_of, seeded

pytestmark = pytest.mark.skipif(cpp_compiler() is None, reason="no C++ compiler")
SIZES = np.array([50, 0, 64, 65, 7, 1, 1000, 10, 4, 129])
WIDTH = 10


class _InOrder(FedAvg):
    cyclic = True


@pytest.fixture(autouse=True)
def one_cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))


@pytest.fixture(scope="module")
def logger(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Native code that writes down what every client reads: rows and weights, step after step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ATOLL_CACHE", str(tmp_path_factory.getbasetemp() / "native"))
        one = torch.zeros(1, WIDTH)
        columns = [NativeColumn(one, kind) for kind in ("row", "drawn", "step", "step")]
        graph = simple_graph(lambda x, weights: [x + 0.5, weights + 0.5], [one, one])
        return compile({"step": graph}, MemoryLayout(columns, {"step": range(2)}, {"step": [(2, "="), (3, "=")]}))


@pytest.mark.parametrize(
    "algorithm",
    [
        FedAvg(epochs=3, batch_size=10),
        FedAvg(epochs=2, batch_size=7),
        FedAvg(steps=9, batch_size=4),
        _InOrder(epochs=1, batch_size=10),
    ],
    ids=["whole", "narrower", "steps", "cyclic"],
)
@pytest.mark.parametrize("order", [None, np.int32, np.int64], ids=["consecutive", "narrow", "wide"])
@pytest.mark.parametrize("threads", [1, 3])
def test_rows_are_those_of_the_reference(logger: Any, algorithm: Any, order: Any, threads: int) -> None:
    total = int(SIZES.sum())
    first, keys = np.cumsum(SIZES) - SIZES, keys_of(len(SIZES))
    where = None if order is None else np.random.default_rng(0).permutation(total).astype(order)
    place = PoolPlace((np.arange(total, dtype=np.float32), np.zeros(0)), first, where)
    draws = Draws.of(algorithm, place, SIZES, keys)
    seen, real = (np.zeros((int(draws.steps.sum()), WIDTH), np.float32) for _ in range(2))
    logger([place.columns[0], None, seen, real], draws.begins, draws, parts=np.array([0, 3, 3, 8, 10]), threads=threads)
    clients = [batch_rows(algorithm, n, int(key)) for n, key in zip(SIZES.tolist(), keys, strict=True)]
    assert draws.steps.tolist() == [len(batches) for batches in clients]
    at = 0
    for begin, batches in zip(first, clients, strict=True):
        for batch in batches:
            rows = begin + np.concatenate([batch, np.zeros(WIDTH - len(batch), np.int64)])
            np.testing.assert_array_equal(seen[at] - 0.5, rows if where is None else where[rows])
            np.testing.assert_array_equal(real[at] - 0.5, np.arange(WIDTH) < len(batch))
            at += 1
    partial = any(len(batch) < WIDTH for batches in clients for batch in batches)
    assert draws.partial(WIDTH) == partial


def _population(labels: Any = None) -> Islands:
    rng = np.random.default_rng(3)
    y = rng.integers(0, 4, 120) if labels is None else labels
    rows = Dataset({"x": rng.normal(size=(120, 6)).astype("f4"), "y": y}, classes=9)
    return Islands.from_owner(rows, rng.permutation(np.repeat(np.arange(6), 20)), 6)


def _training() -> LocalTraining:
    choices = {"mode": "vector", "block": 3, "native": True, "widths": [5]}
    return LocalTraining(_linear(), FedAvg(lr=0.1, epochs=3, batch_size=5), choices=choices)


def _linear() -> torch.nn.Module:
    return seeded(lambda: torch.nn.Linear(6, 4))


def test_rows_read_where_they_are_train_to_the_same_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A subset of a population whose rows are scattered; nothing is fetched once the labels were looked at."""
    islands = _population().subset([4, 1, 5])
    positions, keys = np.array([2, 0, 1]), keys_of(3)
    rows = Rows(islands, Parties(Roster(islands.names), positions).positions)
    fetched = _training().many_sum([islands.shard(int(p)) for p in positions], broadcast_of(_linear()), None, keys)
    training = _training()
    training.many_sum(rows, broadcast_of(_linear()), None, keys)
    monkeypatch.setattr(source.RowSource, "_fetch_pool", None)
    read = training.many_sum(rows, broadcast_of(_linear()), None, keys)
    for name, total in fetched.totals.items():
        np.testing.assert_equal(total.value, read.totals[name].value)
    np.testing.assert_array_equal(fetched.losses, read.losses)


def test_labels_of_other_clients_do_not_keep_a_cohort_from_training() -> None:
    labels = np.arange(120) % 4
    labels[7] = 8
    islands = _population(labels)
    bad = [i for i in range(6) if islands.shard(i)["y"].max() == 8]
    training, rest = _training(), np.array([i for i in range(6) if i not in bad])
    for _ in range(2):
        training.many_sum(Rows(islands, rest), broadcast_of(_linear()), None, keys_of(len(rest)))
    with pytest.raises(DataError, match="label"):
        training.many_sum(Rows(islands, np.array(bad)), broadcast_of(_linear()), None, keys_of(1))
