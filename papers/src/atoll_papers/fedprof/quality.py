"""Section 5.3: what bad data does to FedAvg (Figure 5.1).

Smaller than the thesis's: 60 digits per client in place of 600. Noise has half of the deviation of the pixels, a value
that the thesis does not give.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import ConfigError
from atoll.reproduce import Claim, Lab

from .found import FedProfFound
from .lab import kept

if TYPE_CHECKING:
    from atoll.data import Dataset, Islands

__all__ = ["BATCH", "CONDITIONS", "RATE", "conditions", "judge_conditions", "qualities", "quality_settings", "some"]

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
