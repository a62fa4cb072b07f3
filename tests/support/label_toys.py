"""Small images with few labels, and a small network, for the tests of methods."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

import atoll
import atoll.data
from atoll.core.algebra import tree as T
from atoll.data import Dataset, Islands
from atoll.learn import Algorithm, Training

CLASSES = 4


def images(rows: int = 96, share: float = 0.4, *, seed: int = 0, garbage: int | None = None) -> Dataset:
    """Return squares of noise with a bright bar that tells the class; ``share`` of them has a label, and ``garbage`` seeds what the others' hold."""
    draw = np.random.default_rng(seed)
    y = draw.integers(0, CLASSES, rows)
    x = 0.3 * draw.random((rows, 1, 8, 8))
    x[np.arange(rows), 0, 2 * y] += 1.0
    there = draw.random(rows) < share
    if garbage is not None:
        y = np.where(there, y, np.random.default_rng(garbage).integers(0, CLASSES, rows))
    return Dataset({"x": x.astype(np.float32), "y": y, "labelled": there}, classes=CLASSES)


def islands(data: Dataset | None = None, parties: int = 3) -> Islands:
    """Return the rows divided among parties of different sizes."""
    return atoll.data.quantity_skew(images() if data is None else data, parties=parties, alpha=2.0, seed=1)


def net() -> nn.Module:
    """Return a small convolutional network with group normalisation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Conv2d(1, 4, 3, 2, 1), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(64, CLASSES)
        )


def trained(algorithm: Algorithm, data: Islands | None = None, *, rounds: int = 2, **settings: Any) -> Any:
    """Return the parameters after a few rounds."""
    engine = settings.pop("engine", "inline")
    model = settings.pop("model", None) or net()
    job = Training(model=model, algorithm=algorithm, rounds=rounds, **settings)
    return atoll.simulate(job, islands() if data is None else data, engine=engine, seed=3, progress=False).params


def same(a: Any, b: Any) -> bool:
    """Tell whether two trees have the same bits."""
    return all(np.array_equal(one, two) for one, two in zip(T.leaves(a), T.leaves(b), strict=True))


def gap(a: Any, b: Any) -> float:
    """Return the largest difference of two trees."""
    return max(float(np.abs(one - two).max()) for one, two in zip(T.leaves(a), T.leaves(b), strict=True))
