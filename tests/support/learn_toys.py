"""Small populations and devices that the tests of learning share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import atoll
from atoll.algorithms import FedAvg
from atoll.core.requests.results import Outcomes
from atoll.data import Dataset, Islands
from atoll.learn.learner import LearnerSettings, adapt

CLASSES, FEATURES = 3, 4


def rows(n: int, seed: int, *, shift: float = 0.0) -> Dataset:
    """``n`` labelled points whose label distribution depends on the seed."""
    rng = np.random.default_rng(seed)
    y = rng.choice(CLASSES, size=n, p=rng.dirichlet(np.ones(CLASSES)))
    x = rng.normal(size=(n, FEATURES)) + y[:, None] * np.array([1.0, -1.0, 0.5, 0.0]) + shift
    return Dataset({"x": x, "y": y}, task="classification", classes=CLASSES)


def islands(sizes: Sequence[int], seed: int = 0, test: int = 60) -> Islands:
    """Clients of these sizes with different label distributions."""
    parts = [rows(n, 100 * seed + i, shift=0.1 * i) for i, n in enumerate(sizes)]
    return Islands.from_datasets(parts, test=rows(test, 9999))


def flat(params: Any) -> np.ndarray:
    """All parameters as one vector."""
    return np.concatenate([np.ravel(np.asarray(params[k])) for k in sorted(params)])


class Fixed:
    """Devices whose every answer takes a given time; ``inf`` crashes, noticed after ``notice`` seconds."""

    def __init__(self, seconds: Sequence[float], notice: float = 0.0) -> None:
        self.seconds = np.asarray(seconds, dtype=np.float64)
        self.notice = notice

    def plan(self, parties: Any, plan: Any) -> Outcomes:
        del plan
        times = self.seconds[parties.positions]
        done = np.isfinite(times)
        return Outcomes(np.where(done, times, self.notice), done, done.astype(np.float64))

    def transfer(self, source: str, target: str, nbytes: int) -> float:
        del source, target, nbytes
        return 0.0


class Told:
    """An island whose message is handed over by hand."""

    def __init__(self, data, key=5):
        from atoll.core.algebra.rng import Rng

        self.data, self.rng, self.state, self.name = data, Rng(key), None, "client"


def own_loop(epochs, **more):
    """A model that counts the calls of its training."""
    model = atoll.models.CustomLearner(
        init=lambda rng: {"calls": np.zeros(1), "drawn": np.zeros(1)},
        train=lambda p, data, rng: {"calls": p["calls"] + 1, "drawn": p["drawn"] + rng.random()},
    )
    learner = adapt(model, LearnerSettings(algorithm=FedAvg(epochs=epochs, **more)), islands([10]))
    message = {"broadcast": {"params": learner.init(atoll.core.algebra.rng.Rng(0)), "lr": 0.1}, "phase": "train"}
    return learner, message
