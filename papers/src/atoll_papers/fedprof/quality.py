"""Section 5.3: what bad data does to FedAvg (Figure 5.1), and whether hidden representations are Gaussian (Figure 5.3, proposition 5.1).

Smaller than the thesis's: 60 digits per client in place of 600, and 6,000 digits that train. Noise has half of the deviation of the pixels, a value
that the thesis does not give.
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
from atoll.reproduce import Claim, Lab

from .tasks import lenet
from .trainings import FedProfFound, kept

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Dataset, Islands

__all__ = [
    "BATCH",
    "CONDITIONS",
    "RATE",
    "Shape",
    "conditions",
    "fan_in",
    "judge_conditions",
    "judge_shapes",
    "qualities",
    "quality_settings",
    "shape_of",
    "shapes",
    "some",
]


# ------------------------------------------------------------------ what bad data does to FedAvg (Figure 5.1)

CONDITIONS = ("original", "biased", "noisy", "biased and noisy")
"""The conditions of Figure 5.1: unchanged, a dominant class of 55 % per client, noise at 65 % of the clients, both."""
_CLIENTS, _ROWS, _SHARE = 100, 6_000, 0.3
RATE, BATCH = 0.05, 10
"""The thesis gives neither; with these, one client learned fast on held-out training rows."""


def some(rows: int, tests: int, seed: int) -> Dataset:
    """Return some of the training digits, and the first test digits.

    Args:
        rows: training digits.
        tests: test digits.
        seed: of the draw.
    """
    from atoll.data import mnist

    data = mnist()
    test = data.test
    chosen = np.sort(np.random.default_rng(seed).permutation(len(data))[:rows])
    return data.take(chosen).with_test(None if test is None else test.take(np.arange(min(tests, len(test)))))


@functools.lru_cache(maxsize=4)
def qualities(condition: str, draw: int = 0, rows: int = _ROWS, clients: int = _CLIENTS) -> Islands:
    """Return the clients of Figure 5.1 under one of `CONDITIONS`.

    Args:
        condition: one of them.
        draw: seed of the partition and of the noise.
        rows: training rows in all.
        clients: number of clients.

    Raises:
        ConfigError: another condition.
        DataError: no data folder, or files missing from it.
    """
    from atoll.data import Noise, corrupt, dominant_class, iid

    if condition not in CONDITIONS:
        raise ConfigError(f"condition={condition!r}", where="qualities", remedy=f"use one of {', '.join(CONDITIONS)}")
    data = some(rows, 2000, draw)
    biased = "biased" in condition
    made = (
        dominant_class(data, parties=clients, share=0.55, seed=draw)
        if biased
        else iid(data, parties=clients, seed=draw)
    )
    return corrupt(made, {Noise(sigma=0.5): 0.65}, seed=draw) if "noisy" in condition else made


def quality_settings(condition: str, rounds: int, seed: int = 0, rows: int = _ROWS) -> dict[str, Any]:
    """Return the settings of a run of Figure 5.1."""
    source = {"name": "atoll.reproduce.fedprof.quality:qualities", "condition": condition, "draw": seed}
    return {
        "name": f"quality-{condition.replace(' ', '-')}",
        "data": {"source": {**source, "rows": rows}},
        "model": {"name": "atoll.reproduce.fedprof.tasks:lenet"},
        "algorithm": {"name": "FedAvg", "lr": RATE, "epochs": 5, "batch_size": BATCH},
        "selection": {"name": "Uniform", "count": _SHARE},
        "rounds": rounds,
        "checkpoint_every": rounds,
        "seed": seed,
    }


def conditions(lab: Lab, rounds: int, rows: int = _ROWS, seeds: int = 1) -> dict[str, list[tuple[float, ...]]]:
    """Return accuracy by round under each condition, one trace per seed.

    Args:
        lab: runs and keeps trainings.
        rounds: rounds of each run.
        rows: training rows in all.
        seeds: runs per condition; each also draws its own digits, partition and noise. If nothing may be trained, the first ones that are kept.
    """

    def traces(name: str) -> list[tuple[float, ...]]:
        trained = kept(lab, (quality_settings(name, rounds, seed, rows) for seed in range(seeds)))
        return [tuple(float(row["test/accuracy"]) for row in run.rows) for run in trained]

    return {name: traces(name) for name in CONDITIONS}


def judge_conditions(found: Mapping[str, Sequence[Sequence[float]]]) -> list[Claim]:
    """Judge Figure 5.1: bias and noise make the model worse and slower, both together most. Best accuracy, and its mean over the rounds."""
    if not all(found.values()):
        return [Claim(_worse(name), "worse and slower", None, None, "not trained") for name in CONDITIONS[1:]]
    best = {name: FedProfFound.median([FedProfFound(max(trace)) for trace in traces]) for name, traces in found.items()}
    mean = {
        name: FedProfFound.median([FedProfFound(float(np.mean(trace))) for trace in traces])
        for name, traces in found.items()
    }
    rounds, seeds = len(found["original"][0]), len(found["original"])
    return [
        Claim(
            _worse(name),
            "worse and slower",
            ", ".join(
                f"{word} {of[name].told('best', '.3f')} against {of['original'].told('best', '.3f')}"
                for word, of in (("best", best), ("mean of all rounds", mean))
            ),
            best[name].best < best["original"].best and mean[name].best < mean["original"].best,
            f"FedAvg, {rounds} rounds, seeds: {seeds}; medians, both orders",
        )
        for name in CONDITIONS[1:]
    ]


def _worse(name: str) -> str:
    return f"Figure 5.1: a model from {name} data is worse, and slower to learn, than one from the original"


# ------------------------------------------------------------------ whether hidden representations are Gaussian (Figure 5.3)

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
