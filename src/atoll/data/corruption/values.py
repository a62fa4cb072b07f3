"""Corruptions of the feature values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from atoll.core.errors import DataError

from .._checks import Array
from ..dataset import Dataset
from .base import Columns, Corruption, CorruptionScope, like

__all__ = ["Fake", "GradedNoise", "Irrelevant", "Noise"]


@dataclass(frozen=True)
class Noise(Corruption):
    """Additive Gaussian noise: ``x + N(0, (sigma * s)^2)``.

    FedProf (section 5.5) adds Gaussian noise to 40 % of the clients without naming its deviation; ``sigma = 1`` is
    our choice.

    Attributes:
        sigma: standard deviation of the noise.
        relative: whether ``sigma`` is in standard deviations ``s`` of the population's ``x``; else ``s = 1``.
        clip: whether to keep the values in the population's range.
    """

    sigma: float = 1.0
    relative: bool = True
    clip: bool = False
    name: ClassVar[str] = "noise"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Add noise to ``x``."""
        return {"x": self._noisy(columns["x"], self.sigma, rng, scope)}

    def _noisy(self, x: Array, sigma: float, rng: np.random.Generator, scope: CorruptionScope) -> Array:
        scale = sigma * scope.spread if self.relative else sigma
        noisy = x + scale * rng.standard_normal(x.shape, dtype=np.float32)
        return like(np.clip(noisy, scope.low, scope.high) if self.clip else noisy, x)

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if not 0.0 <= self.sigma < np.inf:
            raise DataError(f"sigma={self.sigma}", where=f"corruption {self.name!r}", remedy="choose 0 or more")


@dataclass(frozen=True)
class GradedNoise(Noise):
    """Gaussian noise that grows with the client: client ``k`` of ``N`` has deviation ``sigma * (k + 1) / N``.

    The noise-based feature skew of Li et al. (2022, NIID-Bench).
    """

    name: ClassVar[str] = "graded_noise"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Add the client's noise to ``x``."""
        return {"x": self._noisy(columns["x"], self.sigma * (client + 1) / scope.clients, rng, scope)}


@dataclass(frozen=True, eq=False)
class Irrelevant(Corruption):
    """Replace the features with unrelated ones, and keep the client's own labels.

    Attributes:
        source: other data to draw rows from, with features of the same shape; without it, uniform noise over the
            population's range. (FedProf calls its irrelevant images "fake" and does not say what they show.)
    """

    source: Dataset | None = None
    name: ClassVar[str] = "irrelevant"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Replace ``x``."""
        x = columns["x"]
        if self.source is None:
            return {"x": like(_uniform(x.shape, rng, scope), x)}
        rows = rng.integers(0, len(self.source), len(x))
        return {"x": like(self.source.x[rows], x)}

    def check(self, scope: CorruptionScope) -> None:
        """Refuse settings or data that the corruption does not support."""
        super().check(scope)
        if self.source is not None and self.source.x.shape[1:] != scope.sample.x.shape[1:]:
            raise DataError(
                f"rows of shape {self.source.x.shape[1:]} cannot replace rows of shape {scope.sample.x.shape[1:]}",
                where=f"corruption {self.name!r} from {self.source.name!r}",
                remedy="bring the other data to the same shape",
            )


@dataclass(frozen=True)
class Fake(Corruption):
    """Replace all data: features and targets are drawn uniformly over the population's ranges.

    So ``x``, ``y`` and their relation carry no information. (FedProf's table says "no valid data".)
    """

    name: ClassVar[str] = "fake"

    def apply(self, columns: Columns, client: int, rng: np.random.Generator, scope: CorruptionScope) -> Columns:
        """Replace ``x`` and ``y``."""
        x = columns["x"]
        made: Columns = {"x": like(_uniform(x.shape, rng, scope), x)}
        if "y" in columns:
            made["y"] = _targets(columns["y"], rng, scope)
        return made


def _uniform(shape: tuple[int, ...], rng: np.random.Generator, scope: CorruptionScope) -> Array:
    return np.asarray(scope.low + (scope.high - scope.low) * rng.random(shape, dtype=np.float32))


def _targets(y: Array, rng: np.random.Generator, scope: CorruptionScope) -> Array:
    known = scope.sample.y
    if scope.sample.task == "classification":
        return rng.integers(0, scope.classes or 1, y.shape)
    if y.dtype.kind in "iu":  # binary and multilabel: one of the two ends; counts: whole numbers between
        low, high = int(known.min()), int(known.max())
        drawn = rng.integers(0, 2, y.shape) * (high - low) + low
        return drawn if scope.sample.task in ("binary", "multilabel") else rng.integers(low, high + 1, y.shape)
    low, high = known.min(axis=0), known.max(axis=0)
    return np.asarray(low + (high - low) * rng.random(y.shape), y.dtype)
