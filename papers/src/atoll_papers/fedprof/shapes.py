"""Section 5.3: whether hidden representations are Gaussian (Figure 5.3, proposition 5.1); 6,000 digits train."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import ArrayLike

from atoll.reproduce import Claim

from .quality import BATCH, RATE, some
from .tasks import lenet

if TYPE_CHECKING:
    from torch import nn

__all__ = ["Shape", "fan_in", "judge_shapes", "shape_of", "shapes"]

_NEURONS = (1, 15, 21, 75, 127)
"""The neurons of Figure 5.3, counted from 1."""


@dataclass(frozen=True)
class Shape:
    """How far numbers are from Gaussian: both values are 0 for a Gaussian.

    Attributes:
        skewness: third standardised moment.
        kurtosis: fourth, less 3.
    """

    skewness: float
    kurtosis: float


def shape_of(values: ArrayLike) -> Shape:
    """Return skewness and excess kurtosis; both 0 if all values are equal."""
    x = np.asarray(values, dtype=np.float64).ravel()
    spread = x.std()
    if spread == 0:
        return Shape(0.0, 0.0)
    z = (x - x.mean()) / spread
    return Shape(float((z**3).mean()), float((z**4).mean() - 3))


def fan_in(
    widths: Sequence[int] = (4, 16, 64, 256), units: int = 64, rows: int = 4000, seed: int = 0
) -> dict[int, Shape]:
    """Pre-activations of a dense layer with fresh weights over skewed, independent inputs: mean absolute shape over its units, by fan-in.

    Inputs are exponential, of skewness 2 and excess kurtosis 6; weights are uniform in ``+- 1/sqrt(n)``, as PyTorch draws them. The sum of n such terms has
    ``1/sqrt(n)`` of that skewness and ``1/n`` of that kurtosis, up to the weights' own moments (9/5 for the kurtosis).
    """
    rng, found = np.random.default_rng(seed), {}
    for n in widths:
        weights = rng.uniform(-1, 1, (n, units)) / np.sqrt(n)
        found[n] = _mean([shape_of(column) for column in (rng.exponential(size=(rows, n)) @ weights).T])
    return found


def _mean(made: Sequence[Shape]) -> Shape:
    return Shape(
        float(np.mean([abs(one.skewness) for one in made])), float(np.mean([abs(one.kurtosis) for one in made]))
    )


def shapes(epochs: Sequence[int] = (0, 1, 6, 10), rows: int = 6000, seed: int = 0) -> dict[int, list[Shape]]:
    """Pre-activations of the first dense layer of LeNet-5 over 2,000 test digits, after some epochs of training on MNIST: one shape for each neuron.

    Args:
        epochs: the epochs to check after; 0 is the model before training.
        rows: training rows.
        seed: of the rows, the first weights and the batches.
    """
    import torch

    from atoll.torch.learner import seeded

    data = some(rows, 2000, seed)
    x, y = torch.tensor(np.asarray(data.x)), torch.tensor(np.asarray(data.y).astype(np.int64))
    seen = torch.tensor(np.asarray(data.test.x))  # type: ignore[union-attr]
    model = seeded(lenet(), seed)
    optimiser, rng = torch.optim.SGD(model.parameters(), lr=RATE), np.random.default_rng(seed)
    found = {}
    for epoch in range(max(epochs) + 1):
        if epoch in epochs:
            with torch.no_grad():
                # Up to and including the first dense layer, before its activation.
                outputs = cast("nn.Sequential", model)[:8](seen).numpy()
            found[epoch] = [shape_of(column) for column in outputs.T]
        if epoch == max(epochs):
            break
        for batch in np.array_split(rng.permutation(rows), rows // BATCH):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()  # type: ignore[no-untyped-call]
            optimiser.step()
    return found


def judge_shapes(widths: Mapping[int, Shape], trained: Mapping[int, Sequence[Shape]]) -> list[Claim]:
    """Proposition 5.1 with independent inputs, and Figure 5.3 with a trained network."""
    order = sorted(widths)
    told = ", ".join(f"{n}: {widths[n].skewness:.2f}/{widths[n].kurtosis:.2f}" for n in order)
    falling = all(
        widths[b].skewness < widths[a].skewness and widths[b].kurtosis < widths[a].kurtosis
        for a, b in itertools.pairwise(order)
    )
    claims = [
        Claim(
            "Proposition 5.1: skewness and kurtosis of a dense layer's outputs shrink with its fan-in",
            "tend to 0",
            told,
            falling,
            "mean absolute skewness/excess kurtosis by fan-in, independent exponential inputs; holds if both fall at each step",
        )
    ]
    for epoch in sorted(trained):
        mean, five = _mean(trained[epoch]), _mean([trained[epoch][n - 1] for n in _NEURONS if n <= len(trained[epoch])])
        claims.append(
            Claim(
                f"Figure 5.3: outputs of the first dense layer on MNIST match a Gaussian well, after {epoch} epochs",
                "matches well",
                f"mean |skewness| {mean.skewness:.2f}, |excess kurtosis| {mean.kurtosis:.2f}; the figure's neurons {five.skewness:.2f}, {five.kurtosis:.2f}",
                mean.skewness < 0.5 and mean.kurtosis < 0.5,
                "over test digits; holds if both means are below 0.5 (a uniform has 0 and 1.2, an exponential 2 and 6)",
            )
        )
    return claims
