"""Measures a step of a split network between two parties beside one of the same network in plain PyTorch: processor time of both parties, encoding and switching included.

    python benchmarks/split.py                   # ten columns and a bottom of 32 and 16 at each party, 64 rows a step

One thread each, in one process. Processor time changes little with other work on the machine.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np

_ROWS, _EPOCHS = 6400, 4


def time_plain(x: Any, y: Any, batch: int) -> float:
    """Seconds of a step in plain PyTorch: modules, and ``torch.optim.Adam``."""
    import torch
    from torch import nn

    def bottom() -> nn.Module:
        return nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())

    bottoms = nn.ModuleList([bottom(), bottom()])
    top = nn.Sequential(nn.Linear(32, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam([*bottoms.parameters(), *top.parameters()], lr=0.003)
    left, right, labels = (torch.from_numpy(one.copy()) for one in (x[:, :10], x[:, 10:], y.astype(np.float32)))

    def epoch() -> None:
        order = torch.randperm(_ROWS)
        for k in range(0, _ROWS, batch):
            at = order[k : k + batch]
            optimizer.zero_grad()
            made = top(torch.cat([bottoms[0](left[at]), bottoms[1](right[at])], 1))[:, 0]
            nn.functional.binary_cross_entropy_with_logits(made, labels[at]).backward()
            optimizer.step()

    epoch()
    began = time.process_time()
    for _ in range(_EPOCHS):
        epoch()
    return (time.process_time() - began) / (_EPOCHS * -(-_ROWS // batch))


def time_split(x: Any, y: Any, batch: int) -> float:
    """Seconds of a step of both parties, from the guest's first to its last."""
    import atoll
    from atoll.vertical import SplitNet, Vertical

    spent = []

    class Timed(SplitNet):
        async def train_guest(self, *given: Any, **more: Any) -> Any:
            began = time.process_time()
            found = await SplitNet.train_guest(self, *given, **more)
            spent.append(time.process_time() - began)
            return found

    ids = np.arange(_ROWS)
    bank = {"id": ids, "y": y, **{f"a{k}": x[:, k] for k in range(10)}}
    shop = {"id": ids, **{f"b{k}": x[:, 10 + k] for k in range(10)}}
    job = Vertical(model=Timed(epochs=_EPOCHS, batch=batch), test=0.0)
    atoll.simulate(job, {"bank": bank, "shop": shop}, engine="inline", progress=False)
    return spent[0] / (_EPOCHS * -(-_ROWS // batch))


def main() -> None:
    """Measure and print."""
    import torch

    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    x = np.random.default_rng(0).normal(size=(_ROWS, 20)).astype(np.float32)
    y = (x.sum(axis=1) > 0).astype(int)
    for _ in range(given.repeats):
        plain, split = (how(x, y, given.batch) for how in (time_plain, time_split))
        told = {"plain_ms": 1e3 * plain, "split_ms": 1e3 * split, "ratio": split / plain}
        print(json.dumps({name: round(value, 3) for name, value in told.items()}), flush=True)


if __name__ == "__main__":
    main()
