"""Data, network, and one training of `labels-semi`, whose scores are kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.errors import DataError
from atoll.reproduce import Lab, NotKept

if TYPE_CHECKING:
    from torch import nn

    from atoll.data import Islands
    from atoll.learn import Training

__all__ = ["TrialSize", "digits", "network", "scores"]


@dataclass(frozen=True)
class TrialSize:
    """How large the trainings are.

    Attributes:
        rows: unlabelled rows of all clients.
        parties: clients.
        cohort: clients of a round.
        rounds: rounds.
        seeds: repetitions, with other labels and clients each.
        warm_up: steps on labels before the first round, if they are at the server.
        pooled: whether the network pools, which is slower and more accurate.
    """

    rows: int
    parties: int
    cohort: int
    rounds: int
    seeds: int
    warm_up: int
    pooled: bool = False


def digits(scale: TrialSize, seed: int, alpha: float = 0.5) -> Islands:
    """Return MNIST, divided among clients by class (Dirichlet), with 2,000 test rows."""
    import atoll.data

    whole = atoll.data.open("mnist")
    if whole.test is None:
        raise DataError("MNIST has no test rows here", where="ATOLL_DATA", remedy="add the files t10k-*")
    rows = Rng(seed).child("rows").generator().permutation(len(whole))[: scale.rows]
    made = atoll.data.dirichlet(whole.take(rows), parties=scale.parties, alpha=alpha, seed=seed)
    return made.with_test(whole.test.take(np.arange(2000)))


def network(pooled: bool = False) -> nn.Module:
    """Return three convolutions of 8, 16 and 32 channels with group normalisation: each with a stride, or with one pooling in place of two strides."""
    from torch import nn

    if pooled:
        return nn.Sequential(
            nn.Conv2d(1, 8, 5, 2, 2), nn.GroupNorm(4, 8), nn.ReLU(),
            nn.Conv2d(8, 16, 3, 1, 1), nn.GroupNorm(4, 16), nn.MaxPool2d(2), nn.ReLU(),
            nn.Conv2d(16, 32, 3, 1, 1), nn.GroupNorm(4, 32), nn.ReLU(),
            nn.Flatten(), nn.Linear(32 * 7 * 7, 10),
        )  # fmt: skip
    layers: list[nn.Module] = []
    for before, after in ((1, 8), (8, 16), (16, 32)):
        layers += [nn.Conv2d(before, after, 3, 2, 1), nn.GroupNorm(4, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))


def scores(
    lab: Lab, name: str, scale: TrialSize, make: Callable[[int], tuple[Training, Islands]]
) -> list[dict[str, Any]] | None:
    """Return the rows of the last round of each seed's training; ``None`` if one is not kept and nothing may be trained.

    Raises:
        Interrupted: the user asked to stop; finished trainings are kept.
    """
    try:
        return [
            lab.scores(f"{name}-{scale.rows}-{scale.rounds}-{seed}", partial(_one, make, seed))
            for seed in range(scale.seeds)
        ]
    except NotKept:
        return None


def _one(make: Callable[[int], tuple[Training, Islands]], seed: int) -> dict[str, Any]:
    import atoll

    job, data = make(seed)
    result = atoll.simulate(job, data, engine="batched", seed=seed, progress=False)
    rows = [{k: v for k, v in row.items() if isinstance(v, int | float)} for row in result.metrics]
    return {"last": rows[-1], "rounds": [{k: r.get(k) for k in _KEPT if k in r} for r in rows]}


_KEPT = ("test/accuracy", "bytes_up", "bytes_down", "share", "tau", "reward", "pool_used", "labelled_loss", "replied")
