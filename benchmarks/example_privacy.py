"""The cost of DP-SGD: a local step of Atoll's, next to bare PyTorch's plain step and Opacus' ghost clipping, in one run.

    python benchmarks/example_privacy.py [--workloads lr mlp cnn] [--repeats 9] [--noise]

Models, mini-batches and steps are those of the benchmark's `lr`, `mlp` and `cnn`. Every repeat runs every peer once, in turn; the table has medians of processor time and of the
clock for one step, and their ratios to the plain step. Opacus is left out if it is not installed (`pip install opacus`); Atoll's local training is that of a cohort in blocks, as the batched engine
runs it, and `alone` one client after another, with its mini-batches and its noise drawn from a client's secret.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from atoll.algorithms import DPSGD, FedAvg
from atoll.core.algebra.rng import Rng
from atoll.secure.keystream import NoiseStream
from atoll.torch.blocks.course import normal_transform
from atoll.torch.local import LocalTraining
from torch import nn

BATCH, EXAMPLES, CLASSES = 10, 50, 62
Run = Callable[[], None]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(784, 196), nn.ReLU(), nn.Linear(196, CLASSES))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(64 * 144, 128), nn.ReLU(), nn.Linear(128, CLASSES),
    )  # fmt: skip


def lr() -> nn.Module:
    return nn.Sequential(nn.Linear(60, CLASSES))


MODELS = {"lr": (lr, (60,), 5, 50), "mlp": (mlp, (784,), 2, 20), "cnn": (cnn, (1, 28, 28), 1, 4)}


def plain(model: nn.Module, shards: list[Any], epochs: int) -> Run:
    """Bare PyTorch: the gradient, and a multi-tensor step."""
    params, data = list(model.parameters()), [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in shards]

    def run() -> None:
        for x, y in data:
            for _ in range(epochs):
                order = torch.randperm(EXAMPLES)
                for rows in order.split(BATCH):
                    loss = nn.functional.cross_entropy(model(x[rows]), y[rows])
                    gradient = torch.autograd.grad(loss, params)
                    with torch.no_grad():
                        torch._foreach_add_(params, list(gradient), alpha=-1e-3)

    return run


def atoll_step(model: nn.Module, shards: list[Any], epochs: int, alone: bool = False) -> Run:
    """Atoll's local training with DP-SGD: a cohort in blocks, or ``alone``, one client after another."""
    private = DPSGD(FedAvg(lr=1e-3, epochs=epochs, batch_size=BATCH), clip=1.0, noise=1.0)
    training = LocalTraining(model, private, volume=10**6)
    params = {name: p.detach().numpy().copy() for name, p in model.named_parameters()}
    sent = private.broadcast(private.init(params), "train")
    keys = np.arange(len(shards), dtype=np.uint64)

    if alone:

        def each() -> None:
            for i, shard in enumerate(shards):
                training.one_of_many(shard, sent, None, i, Rng(i))

        return each

    def run() -> None:
        for _ in training.many(shards, sent, None, keys, secrets=[Rng(i) for i in range(len(shards))]):
            pass

    return run


def opacus_step(model: nn.Module, shards: list[Any], epochs: int) -> Run | None:
    """Opacus' fast gradient clipping with ghost norms, and its optimiser; mini-batches as in the plain step."""
    try:
        from opacus import PrivacyEngine
    except ImportError:
        return None
    data = [(torch.from_numpy(x), torch.from_numpy(y)) for x, y in shards]
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(*data[0]), batch_size=BATCH)
    made = PrivacyEngine(accountant="rdp").make_private(
        module=model, optimizer=torch.optim.SGD(model.parameters(), lr=1e-3), data_loader=loader, noise_multiplier=1.0,
        max_grad_norm=1.0, criterion=nn.CrossEntropyLoss(), grad_sample_mode="ghost", poisson_sampling=False,
    )  # fmt: skip
    model, optimizer, criterion = made[0], made[1], made[2]

    def run() -> None:
        for x, y in data:
            for _ in range(epochs):
                for rows in torch.randperm(EXAMPLES).split(BATCH):
                    optimizer.zero_grad()
                    criterion(model(x[rows]), y[rows]).backward()
                    optimizer.step()

    return run


def timed(peers: dict[str, Run], repeats: int) -> dict[str, tuple[float, float]]:
    """Return the median seconds of each peer: processor time, and by the clock."""
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in peers}
    for run in peers.values():
        run()
    for _ in range(repeats):
        for name, run in peers.items():
            cpu, clock = time.process_time(), time.perf_counter()
            run()
            took[name].append((time.process_time() - cpu, time.perf_counter() - clock))
    return {
        n: (statistics.median(c for c, _ in rows), statistics.median(w for _, w in rows)) for n, rows in took.items()
    }


def noise(repeats: int) -> None:
    """Print the time of a million normal numbers."""
    out, generator = np.empty(1_000_000, np.float32), np.random.default_rng()
    fast = NoiseStream(os.urandom(32))
    fast.transform = normal_transform()
    slow = NoiseStream(os.urandom(32))
    peers: dict[str, Run] = {
        "NumPy's generator": lambda: generator.standard_normal(out=out, dtype=np.float32),
        "keystream": lambda: slow.normal(len(out), out),
        "keystream, vector code": lambda: fast.normal(len(out), out),
    }
    for name, (cpu, clock) in timed(peers, repeats).items():
        print(f"{name:24} {1e3 * cpu:7.2f} ms processor, {1e3 * clock:7.2f} ms clock, a million normal numbers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--noise", action="store_true", help="time normal numbers only")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.noise:
        noise(given.repeats)
        return
    for name in given.workloads:
        make, shape, epochs, clients = MODELS[name]
        draw = np.random.default_rng(0)
        shards = [
            (draw.normal(size=(EXAMPLES, *shape)).astype(np.float32), draw.integers(0, CLASSES, EXAMPLES))
            for _ in range(clients)
        ]
        makers = {
            "plain": plain,
            "atoll": atoll_step,
            "alone": functools.partial(atoll_step, alone=True),
            "opacus": opacus_step,
        }
        made = {peer: maker(make(), shards, epochs) for peer, maker in makers.items()}
        peers = {peer: run for peer, run in made.items() if run is not None}
        steps = clients * epochs * EXAMPLES // BATCH
        found = timed(peers, given.repeats)
        for peer, (cpu, clock) in found.items():
            base = found["plain"]
            print(
                f"{name} {peer:7} {1e3 * cpu / steps:8.3f} ms processor ({cpu / base[0]:.2f}x), "
                f"{1e3 * clock / steps:8.3f} ms clock ({clock / base[1]:.2f}x) a step"
            )


if __name__ == "__main__":
    main()
