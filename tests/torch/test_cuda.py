"""On a GPU a training is the one of the CPU: every kind of layer, method, stage and evaluation, killed runs too. Skipped without a device."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.algorithms import DPSGD, FedAdam, FedDyn, FedNova, FedProx, Mime, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.errors import AtollError
from atoll.data import Dataset
from atoll.torch.blocks.decide import StepCost, block_size
from tests.support.torch_toys import Images, Recurrent, seeded

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, activation="gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.layers(self.embed(x)).mean(1))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


MODELS: dict[str, tuple[Any, tuple[int, ...], bool]] = {
    "linear": (lambda: nn.Linear(6, 4), (6,), False),
    "mlp": (normalised, (6,), False),
    "cnn": (lambda: Images(nn.GroupNorm(2, 4)), (1, 8, 8), False),
    "batchnorm": (lambda: Images(nn.BatchNorm2d(4)), (1, 8, 8), False),
    "lstm": (lambda: Recurrent(nn.LSTM), (7,), True),
    "gru": (lambda: Recurrent(nn.GRU), (7,), True),
    "transformer": (Attending, (7,), True),
}
ALGORITHMS = {
    "FedAvg": atoll.FedAvg(lr=0.05, epochs=2, batch_size=5),
    "FedProx": FedProx(lr=0.05, mu=0.1, batch_size=5),
    "Scaffold": Scaffold(lr=0.05, batch_size=5),
    "FedDyn": FedDyn(lr=0.05, batch_size=5),
    "FedNova": FedNova(lr=0.05, batch_size=5),
    "Mime": Mime(lr=0.05, batch_size=5),
    "FedAdam": FedAdam(lr=0.05, batch_size=5),
}


def islands_of(shape: tuple[int, ...], ids: bool) -> Any:
    rng = np.random.default_rng(3)

    def rows(n: int) -> Dataset:
        x = rng.integers(0, 20, (n, *shape)) if ids else rng.normal(size=(n, *shape)).astype(np.float32)
        return Dataset({"x": x, "y": rng.integers(0, 4, n)}, task="classification", classes=4)

    return {f"client-{i}": rows(n) for i, n in enumerate([10, 4, 7, 12, 5])}


def trained(model: str, algorithm: str, device: str, engine: str = "batched", **more: Any) -> Any:
    make, shape, ids = MODELS[model]
    job = atoll.Training(
        model=seeded(make),
        algorithm=copy.deepcopy(ALGORITHMS[algorithm]),
        selection=atoll.Uniform(3),
        rounds=4,
        device=device,
        **{"compile": "never", **more},
    )
    return atoll.simulate(job, islands_of(shape, ids), engine=engine, seed=1, progress=False)


def same(got: Any, want: Any, tolerance: float = 2e-3) -> None:
    for a, b in zip(T.leaves(want.params), T.leaves(got.params), strict=True):
        np.testing.assert_allclose(np.asarray(b), np.asarray(a), rtol=tolerance, atol=tolerance)


@pytest.fixture(autouse=True)
def exact_products() -> Iterator[None]:
    """Convolutions in full single precision, as on the CPU."""
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.mark.parametrize("model", MODELS)
def test_models(model: str) -> None:
    same(trained(model, "FedAvg", "cuda"), trained(model, "FedAvg", "cpu"))


@pytest.mark.parametrize("model", ["mlp", "cnn", "transformer"])
def test_models_compiled(model: str) -> None:
    same(trained(model, "FedAvg", "cuda", compile="always"), trained(model, "FedAvg", "cpu"))


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_algorithms(algorithm: str) -> None:
    same(trained("mlp", algorithm, "cuda"), trained("mlp", algorithm, "cpu"))


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_engines_and_stages(engine: str) -> None:
    uplink = (atoll.Clip(0.5), atoll.stages.RandomK(0.5, shared=True))
    same(
        trained("cnn", "FedAvg", "cuda", engine, uplink=uplink), trained("cnn", "FedAvg", "cpu", engine, uplink=uplink)
    )


def test_a_seed_gives_the_same_bits_again() -> None:
    first, second = (trained("mlp", "FedAvg", "cuda") for _ in range(2))
    for a, b in zip(T.leaves(first.params), T.leaves(second.params), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


def test_a_block_leaves_room_on_the_device() -> None:
    memory = torch.cuda.get_device_properties(0).total_memory
    device = torch.device("cuda")
    assert block_size(StepCost(1e6, 1e3, False), 4096, device) == 1024
    assert block_size(StepCost(1e6, memory / 40, False), 4096, device) == 10
    assert block_size(StepCost(1e6, memory, False), 4096, device) == 1


def test_forked_workers_are_refused_in_words() -> None:
    with pytest.raises(AtollError, match=r"CUDA cannot be shared by forked processes.*engine='batched'"):
        trained("mlp", "FedAvg", "cuda", "processes")


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_large_cohorts_stay_in_one_process(model: str) -> None:
    make, shape, ids = MODELS[model]
    few = islands_of(shape, ids)
    many = {f"{name}-{i}": rows for i in range(20) for name, rows in few.items()}
    job = atoll.Training(model=seeded(make), algorithm=atoll.FedAvg(lr=0.05, batch_size=5), rounds=3, device="cuda")
    result = atoll.simulate(job, many, engine="batched", seed=1, progress=False)
    assert result.engine["tasks"]["atoll.torch:train"]["workers"] == 1
    same(result, atoll.simulate(job.replace(device="cpu"), many, engine="batched", seed=1, progress=False))


def images() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_private_examples_give_the_model_of_the_cpu(engine: str) -> None:
    x = np.random.default_rng(0).normal(size=(120, 1, 8, 8)).astype(np.float32)
    islands = atoll.data.iid(Dataset({"x": x, "y": (x[:, 0, 0, 0] > 0).astype(np.int64)}), parties=4, seed=0)
    found = {}
    for device in ("cpu", "cuda"):
        private = DPSGD(base=atoll.FedAvg(lr=0.5, epochs=2), noise=0.01, clip=1.0, batch=16)
        shown = atoll.Evaluation(every=2, clients=0)
        job = atoll.Training(model=seeded(images), algorithm=private, rounds=2, device=device, evaluation=shown)
        found[device] = atoll.simulate(job, islands, engine=engine, secret_seed=1, progress=False).params
    for name, leaf in found["cpu"].items():
        np.testing.assert_allclose(np.asarray(found["cuda"][name]), np.asarray(leaf), atol=1e-5)
