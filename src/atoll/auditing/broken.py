"""Mechanisms that lie on purpose: each claims what `CentralDP` claims, and breaks one thing. An audit that misses one is no audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.results import Combined
from atoll.learn.aggregation.base import Renormalised
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.private.central import CentralDP
from atoll.learn.private.noisy_sum import NoisySum
from atoll.stages import LocalGaussian, LocalLaplace
from atoll.stages.local import Rows

__all__ = [
    "HalfGaussian",
    "HalfLaplace",
    "PrivateNormaliser",
    "SeededNoise",
    "UnclippedReplies",
    "WeakNoise",
    "noise_of_seed",
]


@dataclass(frozen=True, kw_only=True)
class WeakNoise(CentralDP):
    """Noise is ``factor`` times what the ledger says. 0.5 is half the sensitivity; ``1 / sqrt(n)`` counts the shares of ``n`` clients twice.

    Attributes:
        factor: the noise's true standard deviation over the declared one.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.factor > 0 and math.isfinite(self.factor)):
            raise ConfigError(f"factor={self.factor}", where="WeakNoise", remedy="use a finite number above 0")

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Install less noise than is claimed."""
        made = dict(super().parts(training, taking, noise))
        return {**made, "aggregation": replace(made["aggregation"], noise=noise * self.factor)}


@dataclass(frozen=True, kw_only=True)
class UnclippedReplies(CentralDP):
    """Clients send their updates as they are, and the noise is for clipped ones."""

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Leave the clip out."""
        made = dict(super().parts(training, taking, noise))
        return {**made, "algorithm": training.algorithm, "uplink": training.uplink}


@dataclass(frozen=True, kw_only=True)
class SeededNoise(CentralDP):
    """Noise follows from the job's seed, which the server and every client know: whoever has it subtracts the noise.

    Attributes:
        seed: the seed.
    """

    seed: int = 0

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Draw noise from the seed."""
        made = dict(super().parts(training, taking, noise))
        own = _settings(made["aggregation"])
        return {**made, "aggregation": _OfSeed(**own, seed=self.seed)}


@dataclass(frozen=True, kw_only=True)
class PrivateNormaliser(CentralDP):
    """Replies are weighted by their numbers of examples, which are private, and the noise is for equal weights."""

    def parts(self, training: Any, taking: Any, noise: float) -> Mapping[str, Any]:
        """Weight by examples."""
        made = dict(super().parts(training, taking, noise))
        own = _settings(made["aggregation"])
        return {**made, "aggregation": _ByExamples(**own)}


def noise_of_seed(seed: int, leaf: str, number: int, shape: tuple[int, ...], deviation: float) -> Any:
    """The noise on one leaf in one round."""
    return deviation * Rng(seed).child("noise", leaf, number).generator().standard_normal(shape)


@dataclass(frozen=True, kw_only=True)
class _OfSeed(NoisySum):
    seed: int

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Add noise that follows from the seed and the round."""
        del params
        deviation = self.noise * self.sensitivity
        made: dict[str, Any] = {}
        for name, tree in combined.value.items():
            made[name] = {
                leaf: (
                    np.asarray(value) * combined.weight[name]
                    + noise_of_seed(self.seed, leaf, info.round, np.shape(value), deviation)
                )
                / self.expected
                for leaf, value in tree.items()
            }
        return made, memory


@dataclass(frozen=True, kw_only=True)
class _ByExamples(NoisySum):
    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with its own weights."""
        return Renormalised().algorithm(base)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Divide by what the sum happens to weigh."""
        weighed = replace(combined, weight=dict.fromkeys(combined.weight, self.expected))
        return super().combine(weighed, params, memory, info)


def _settings(part: Any) -> dict[str, Any]:
    return {field.name: getattr(part, field.name) for field in fields(part)}


@dataclass(frozen=True)
class HalfLaplace(LocalLaplace):
    """Laplace noise for half the sensitivity: two values of L1 norm ``bound`` are ``2 bound`` apart, not ``bound``."""

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip as declared and add half the noise."""
        return LocalLaplace(bound=self.bound, epsilon=2 * self.epsilon).randomise(rows, draws)


@dataclass(frozen=True)
class HalfGaussian(LocalGaussian):
    """Gaussian noise for half the sensitivity: two values of norm ``bound`` are ``2 bound`` apart, not ``bound``."""

    def randomise(self, rows: Rows, draws: list[np.random.Generator]) -> Rows:
        """Clip as declared and add half the noise."""
        return LocalGaussian(bound=self.bound, multiplier=self.multiplier / 2).randomise(rows, draws)
