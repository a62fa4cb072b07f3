"""Small split networks, clients with rows of their own, and modules of PyTorch with the same initial weights."""

from __future__ import annotations

import numpy as np

from atoll.data import Dataset, Islands
from atoll.vertical import SplitNet

SMALL = {"hidden": (5,), "width": 4, "top": (3,), "epochs": 2, "batch": 30}


class DoubleNet(SplitNet):
    """The same in double precision."""

    precision = np.float64


def draw_clients(sizes, classes=2, seed=0):
    rng = np.random.default_rng(seed)
    made = {}
    for k, rows in enumerate(sizes):
        x = rng.normal(size=(rows, 6))
        signal = x[:, 0] * x[:, 1] + x[:, 2] + k
        y = np.digitize(signal, [0.5, 1.5][: classes - 1])
        made[f"client-{k}"] = Dataset({"x": x, "y": y}, task="classification", classes=classes)
    return Islands.from_datasets(made)


def module_of(segment):
    """A segment of dense layers as a module of PyTorch's own, in double precision."""
    import torch

    parts = []
    for k in range(0, len(segment.weights), 2):
        weight, bias = segment.weights[k : k + 2]
        one = torch.nn.Linear(*weight.shape[::-1], dtype=torch.float64)
        one.load_state_dict({"weight": weight.detach(), "bias": bias.detach()})
        parts += [*([torch.nn.ReLU()] if k else []), one]
    return torch.nn.Sequential(*parts, *([torch.nn.ReLU()] if segment.layers.activated else []))
