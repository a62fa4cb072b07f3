"""A cell of Upcycled-FL's synthetic tables: Atoll against a bare PyTorch loop, in seconds of processor time.

Both do FedAvg with local momentum 0.5, ten epochs, batches of 32, nine of thirty clients per round and 90 % stragglers,
on one thread. Run it as ``python benchmarks/upcycled.py [rounds]``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from atoll.reproduce import Lab
from atoll_papers.upcycled.data import KINDS, divided
from atoll_papers.upcycled.trainings import UpcycledMethod, UpcycledProtocol, settings

Arrays = list[tuple[torch.Tensor, torch.Tensor]]


def local(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, epochs: int) -> None:
    """Run local SGD in the usual form."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.03, momentum=0.5)
    for _ in range(epochs):
        for rows in torch.randperm(len(y)).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimiser.step()


def bare(kind: str, rounds: int) -> float:
    """Run the loop; return its accuracy."""
    train, test = divided(kind)
    shards: Arrays = [
        (torch.tensor(np.asarray(s.x), dtype=torch.float32), torch.tensor(np.asarray(s.y)))
        for s in (train.shard(i) for i in range(30))
    ]
    draw = np.random.default_rng(0)
    model = torch.nn.Linear(20, 2)
    held: dict[str, Any] = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    for _ in range(rounds):
        chosen = draw.choice(30, 9, replace=False)
        total = sum(len(shards[k][1]) for k in chosen)
        after = {name: torch.zeros_like(value) for name, value in held.items()}
        for k in chosen:
            model.load_state_dict(held)
            epochs = int(draw.integers(1, 10)) if draw.random() < 0.9 else 10
            local(model, *shards[k], epochs)
            for name, value in model.state_dict().items():
                after[name] += value * (len(shards[k][1]) / total)
        held = after
    model.load_state_dict(held)
    pooled = test.pooled()
    found = model(torch.tensor(np.asarray(pooled.x), dtype=torch.float32)).argmax(1).numpy()
    return float((found == np.asarray(pooled.y)).mean())


def ours(kind: str, rounds: int) -> float:
    """Run the reproduction's own cell."""
    with TemporaryDirectory() as folder:
        cell = settings(
            UpcycledMethod("FedAvg", "base", 0.03),
            kind,
            UpcycledProtocol(late=0.9, rounds=rounds),
            tuning=False,
            seed=0,
        )
        return Lab(Path(folder)).train(cell).last()


def main() -> None:
    """Time both on every population."""
    torch.set_num_threads(1)
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 80
    for kind in KINDS:
        row = []
        for run in (ours, bare):
            divided(kind)
            begun = time.process_time()
            accuracy = run(kind, rounds)
            row.append(f"{run.__name__} {time.process_time() - begun:.1f} s ({100 * accuracy:.1f} %)")
        sys.stdout.write(f"Syn({kind}), {rounds} rounds: " + ", ".join(row) + "\n")


if __name__ == "__main__":
    main()
