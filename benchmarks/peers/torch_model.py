"""The workloads' models in PyTorch, shared by every peer that trains with it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import workloads
from workloads import Workload


def build(w: Workload) -> nn.Sequential:
    """Return the model of workload `w`; its parameters are in the order of `Plan.initial`."""
    if w.model == "lr":
        return nn.Sequential(nn.Linear(w.shape[0], w.classes))
    if w.model == "mlp":
        return nn.Sequential(nn.Linear(w.shape[0], w.hidden), nn.ReLU(), nn.Linear(w.hidden, w.classes))
    side = (w.shape[1] - 4) // 2
    layers = [
        nn.Conv2d(w.shape[0], 32, 3),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(0.25) if w.dropout else None,
        nn.Flatten(),
        nn.Linear(64 * side * side, 128),
        nn.ReLU(),
        nn.Dropout(0.5) if w.dropout else None,
        nn.Linear(128, w.classes),
    ]
    return nn.Sequential(*(layer for layer in layers if layer is not None))


@torch.no_grad()
def load(model: nn.Module, weights: Iterable[NDArray[np.float32]]) -> None:
    """Copy `weights` into the model's parameters, in place."""
    for parameter, value in zip(model.parameters(), weights, strict=True):
        parameter.copy_(torch.from_numpy(value))


def dump(model: nn.Module) -> list[NDArray[np.float32]]:
    """Return the model's parameters as NumPy arrays (copies)."""
    return [parameter.detach().numpy().copy() for parameter in model.parameters()]


class Initial(nn.Sequential):
    """A workload's model with its initial weights, for peers that build models by class name."""

    def __init__(self, workload: str) -> None:
        plan = workloads.load(workload)
        super().__init__(*build(plan.workload))
        load(self, plan.initial)
