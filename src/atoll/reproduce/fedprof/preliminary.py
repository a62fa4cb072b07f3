"""Section 5.3: what bad data do to FedAvg (Figure 5.1), and whether hidden representations are Gaussian (Figure 5.3, proposition 5.1).

Smaller than the thesis's: 60 digits a client in place of 600, and 6,000 for the normality check. The thesis gives neither rate nor batch; 0.05 and 10 learned
fast with one client on training rows held out. Noise has half of the deviation of the pixels.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import ArrayLike

from atoll.core.errors import ConfigError

from ..entry import Claim, Lab
from .tasks import lenet

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Dataset, Islands

__all__ = [
    "CONDITIONS",
    "Shape",
    "conditions",
    "fan_in",
    "judge_conditions",
    "judge_shapes",
    "qualities",
    "quality_settings",
    "shape_of",
    "shapes",
]

CONDITIONS = ("original", "biased", "noisy", "biased and noisy")
"""Of Figure 5.1: as it is, a dominant class of 55 % a client, noise at 65 % of the clients, both."""
_CLIENTS, _ROWS, _SHARE = 100, 6_000, 0.3
_LR, _BATCH = 0.05, 10
_NEURONS = (1, 15, 21, 75, 127)
"""The neurons of Figure 5.3, counted from 1."""


def _some(rows: int, tests: int, seed: int) -> Dataset:
    from atoll.data import mnist

    data = mnist()
    test = data.test
    chosen = np.sort(np.random.default_rng(seed).permutation(len(data))[:rows])
    return data.take(chosen).with_test(None if test is None else test.take(np.arange(min(tests, len(test)))))


@functools.lru_cache(maxsize=4)
def qualities(condition: str, draw: int = 0, rows: int = _ROWS, clients: int = _CLIENTS) -> Islands:
    """The clients of Figure 5.1 under one of `CONDITIONS`.

    Args:
        condition: which.
        draw: seed of the partition and of the noise.
        rows: training rows in all.
        clients: how many.

    Raises:
        ConfigError: another condition.
        DataError: no data folder, or files missing from it.
    """
    from atoll.data import Noise, corrupt, dominant_class, iid

    if condition not in CONDITIONS:
        raise ConfigError(f"condition={condition!r}", where="qualities", remedy=f"use one of {', '.join(CONDITIONS)}")
    data = _some(rows, 2000, draw)
    biased = "biased" in condition
    made = (
        dominant_class(data, parties=clients, share=0.55, seed=draw)
        if biased
        else iid(data, parties=clients, seed=draw)
    )
    return corrupt(made, {Noise(sigma=0.5): 0.65}, seed=draw) if "noisy" in condition else made


def quality_settings(condition: str, rounds: int, seed: int = 0, rows: int = _ROWS) -> dict[str, Any]:
    """A run of Figure 5.1."""
    source = {"name": "atoll.reproduce.fedprof.preliminary:qualities", "condition": condition, "draw": seed}
    return {
        "name": f"quality-{condition.replace(' ', '-')}",
        "data": {"source": {**source, "rows": rows}},
        "model": {"name": "atoll.reproduce.fedprof.tasks:lenet"},
        "algorithm": {"name": "FedAvg", "lr": _LR, "epochs": 5, "batch_size": _BATCH},
        "selection": {"name": "Uniform", "count": _SHARE},
        "rounds": rounds,
        "checkpoint_every": rounds,
        "seed": seed,
    }


def conditions(lab: Lab, rounds: int, rows: int = _ROWS) -> dict[str, tuple[float, ...]]:
    """Accuracy by round under each condition."""
    return {
        name: tuple(float(row["test/accuracy"]) for row in lab.train(quality_settings(name, rounds, rows=rows)).rows)
        for name in CONDITIONS
    }


def judge_conditions(found: Mapping[str, Sequence[float]]) -> list[Claim]:
    """Figure 5.1: bias and noise make the model worse and slower, both together most. Best accuracy, and its mean over the rounds."""
    best = {name: max(trace) for name, trace in found.items()}
    mean = {name: float(np.mean(trace)) for name, trace in found.items()}
    return [
        Claim(
            f"Figure 5.1: a model from {name} data is worse, and slower to learn, than one from the original",
            "worse and slower",
            f"best {best[name]:.3f} against {best['original']:.3f}, mean of all rounds {mean[name]:.3f} against {mean['original']:.3f}",
            best[name] < best["original"] and mean[name] < mean["original"],
            f"FedAvg, {len(found[name])} rounds, one seed; both orders",
        )
        for name in CONDITIONS[1:]
    ]


@dataclass(frozen=True)
class Shape:
    """How far from Gaussian numbers are: both are 0 for a Gaussian.

    Attributes:
        skewness: third standardised moment.
        kurtosis: fourth, less 3.
    """

    skewness: float
    kurtosis: float


def shape_of(values: ArrayLike) -> Shape:
    """Skewness and excess kurtosis; both 0 where all values are equal."""
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
    """Pre-activations of the first dense layer of LeNet-5 over 2,000 test digits, after some epochs of training on MNIST: a shape a neuron.

    Args:
        epochs: after how many to look; 0 is the model before training.
        rows: training rows.
        seed: of the rows, the first weights and the batches.
    """
    import torch

    from atoll.torch.learner import seeded

    data = _some(rows, 2000, seed)
    x, y = torch.tensor(np.asarray(data.x)), torch.tensor(np.asarray(data.y).astype(np.int64))
    seen = torch.tensor(np.asarray(data.test.x))  # type: ignore[union-attr]
    model = seeded(lenet(), seed)
    optimiser, rng = torch.optim.SGD(model.parameters(), lr=_LR), np.random.default_rng(seed)
    found = {}
    for epoch in range(max(epochs) + 1):
        if epoch in epochs:
            with torch.no_grad():
                # Up to and with the first dense layer, before its activation.
                outputs = cast("nn.Sequential", model)[:8](seen).numpy()
            found[epoch] = [shape_of(column) for column in outputs.T]
        if epoch == max(epochs):
            break
        for batch in np.array_split(rng.permutation(rows), rows // _BATCH):
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
