"""Measures what views add to a step of semi-supervised training: a weak and a strong view of each row, next to the step itself.

    python benchmarks/views.py

A step is that of FixMatch on a CNN of 8, 16 and 32 channels with GroupNorm, on images of 28 x 28: a forward pass of the weak view, a
forward and a backward pass of the strong one, and an update. One core; medians of processor time, which other work on the machine hardly moves.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from atoll.views import row_keys, strong, weak
from torch import nn


def seconds(calls: dict[str, Callable[[], Any]], repeats: int) -> dict[str, list[float]]:
    """Return the times of several calls, made in turn, so that a busy moment does not hit one of them alone."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 3):
        for name, call in calls.items():
            begin = time.process_time()
            call()
            if turn >= 3:
                taken[name].append(time.process_time() - begin)
    return taken


def cnn(widths: tuple[int, ...] = (8, 16, 32), channels: int = 1) -> nn.Module:
    """Return the network of the benchmark."""
    layers: list[nn.Module] = []
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.GroupNorm(4, width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels * 9, 10))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=100)
    options = parser.parse_args()
    torch.set_num_threads(1)
    n = options.batch
    rows = torch.rand(n, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    keys = row_keys(torch.tensor([1, 2]), torch.arange(n))
    views = {"weak": weak("images"), "strong": strong("images")}
    net = cnn()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.03, momentum=0.9, nesterov=True)

    def step() -> None:
        with torch.no_grad():
            target = net(rows).argmax(-1)
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(rows), target).backward()
        optimiser.step()

    taken = seconds(
        {"step": step, **{name: lambda view=view: view(rows, keys) for name, view in views.items()}}, options.repeats
    )
    for name, times in taken.items():
        print(f"{name}: {statistics.median(times) / n * 1e6:.1f} us a row, at best {min(times) / n * 1e6:.1f}")
    shares = [(w + s) / (w + s + t) for t, w, s in zip(*taken.values(), strict=True)]
    print(f"views are {statistics.median(shares):.1%} of a step with them (median over turns)")


if __name__ == "__main__":
    main()
