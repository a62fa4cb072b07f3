"""The limit of the ResNet of `benchmarks/real.py`: its convolutions alone, next to whole steps, on one core.

    python benchmarks/convolutions.py [--batch 16] [--turns 30]

A step is forward, backward and SGD of a mini-batch, as the bare loop takes it (`bare`), and with images and filters in the memory order that Atoll uses
(`channels last`). The convolutions alone are the same calls of oneDNN that such a step makes, forward, and backward for filters and inputs, with nothing between
them. Whatever runs around them, a step that calls them takes at least as long. All four take turns. A number is the median processor time in milliseconds, which other work on the machine changes little.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from peers.real_works import resnet


def step(order: torch.memory_format, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """A step of SGD in a memory order."""
    model = resnet().to(memory_format=order)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    x = x.contiguous(memory_format=order)

    def once() -> None:
        optimiser.zero_grad()
        cross_entropy(model(x), y).backward()
        optimiser.step()

    return once


def convolutions(order: torch.memory_format, x: torch.Tensor) -> Callable[[], None]:
    """The convolutions of a step in a memory order, on the inputs and output gradients that they have there."""
    model = resnet().to(memory_format=order)
    calls: list[tuple[Any, torch.Tensor, torch.Tensor]] = []

    def note(layer: nn.Module, given: tuple[torch.Tensor, ...], made: torch.Tensor) -> None:
        calls.append((layer, given[0].detach(), torch.randn_like(made)))

    layers = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    hooks = [layer.register_forward_hook(note) for layer in layers]
    model(x.contiguous(memory_format=order))
    for hook in hooks:
        hook.remove()

    @torch.no_grad()
    def once() -> None:
        for number, (layer, given, gradient) in enumerate(calls):
            stride, padding, dilation = layer.stride, layer.padding, layer.dilation
            torch.conv2d(given, layer.weight, None, stride, padding, dilation)
            wanted = [number > 0, True, False]  # the images need no gradient
            torch.ops.aten.convolution_backward(
                gradient, given, layer.weight, None, stride, padding, dilation, False, [0, 0], 1, wanted
            )

    return once


def main() -> None:
    """Measure and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--turns", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    x, y = torch.randn(args.batch, 3, 32, 32), torch.randint(0, 10, (args.batch,))
    last, first = torch.channels_last, torch.contiguous_format
    cases = {
        "bare": step(first, x, y),
        "channels last": step(last, x, y),
        "convolutions alone, bare": convolutions(first, x),
        "convolutions alone, channels last": convolutions(last, x),
    }
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(args.turns + 2):
        for name, once in cases.items():
            began = time.process_time()
            once()
            if turn > 1:
                times[name].append(1e3 * (time.process_time() - began))
    found = {name: round(statistics.median(some), 2) for name, some in times.items()}
    line = {**found, "limit": round(found["bare"] / found["convolutions alone, channels last"], 2)}
    print(json.dumps(line))


if __name__ == "__main__":
    main()
