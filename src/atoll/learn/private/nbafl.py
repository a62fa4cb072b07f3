"""NbAFL: clients add noise to clipped models before the server adds them up, and the server adds noise to what it broadcasts."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from atoll.core.algebra.tree import Tree
from atoll.core.capability import UNMEASURED, Need
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Event, Gaussian
from atoll.core.requests.results import Combined
from atoll.learn.aggregation.base import Aggregation, EqualWeights

from ..algorithm import Algorithm, RoundInfo
from ..algorithms.output_perturbation import OutputPerturbation
from ..capabilities import PLAIN_MEAN
from .base import Mechanism, TrainingParts
from .claim import Attendance
from .noisy_sum import noisy_sums

__all__ = ["NbAFL", "broadcast_deviation"]


def broadcast_deviation(uplink: float, rounds: int, exposures: int, clients: float) -> float:
    """Return the standard deviation of the server's noise: ``uplink sqrt(T^2 - L^2 N) / (L N)``, and 0 where ``T <= L sqrt(N)``.

    Wei et al. 2020, Theorem 1, with ``uplink = c L D / epsilon`` put in: ``2 c C sqrt(T^2 - L^2 N) / (m N epsilon)``.

    Args:
        uplink: standard deviation of the noise of one client.
        rounds: rounds of the training, ``T``.
        exposures: rounds in which a client takes part at most, ``L``.
        clients: clients of a round, ``N``.
    """
    return uplink * math.sqrt(max(0.0, rounds**2 - exposures**2 * clients)) / (exposures * clients)


@dataclass(frozen=True, kw_only=True)
class NbAFL(Mechanism):
    """Noising before aggregation: clients release ``w / max(1, ||w|| / clip) + N(0, sigma^2)``, and the server adds noise to the mean that it broadcasts.

    Wei, Li, Ding, Ma, Yang, Farokhi, Jin, Quek, Poor 2020, "Federated Learning with Differential Privacy: Algorithms and Performance Analysis". Two clipped
    models are at most ``2 clip`` apart, whatever the data, so ``sigma = z 2 clip`` protects a client's whole data against everybody, the server
    included. We deviate from the paper: its sensitivity is ``2 clip / m`` for one of ``m`` examples, which supposes that a local model is a
    mean over examples; ours always holds. We count with an accountant in place of ``c L D / epsilon``. Clients count the same, so that no number of
    examples leaves. The server's noise follows the paper's formula; it is beyond what the guarantee needs, since a broadcast follows from what was released.

    Attributes:
        clip: largest norm of a model, ``C``.
        contacts: rounds in which a client takes part at most, ``L``: the budget ends the training before a client takes part once more. ``None`` is all rounds.
        broadcast: whether the server adds its noise.
    """

    clip: float
    contacts: int | None = None
    broadcast: bool = True
    unit: Literal["user", "island"] = "user"
    neighbours: Literal["replace-one"] = "replace-one"
    adversary: Literal["server", "clients", "model"] = "server"
    protects: ClassVar[Mapping[str, tuple[str, ...]]] = {"unit": ("user", "island"), "neighbours": ("replace-one",)}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.clip) and self.clip > 0):
            raise ConfigError(f"clip={self.clip}", where="NbAFL", remedy="use a finite norm above 0")
        if self.contacts is not None and self.contacts < 1:
            raise ConfigError(f"contacts={self.contacts}", where="NbAFL", remedy="use at least 1 round, or None")
        if self.contacts is not None and self.epsilon is None:
            raise ConfigError(
                f"contacts={self.contacts} with noise",
                where="NbAFL",
                remedy="give epsilon and delta: a budget then ends the training before a client takes part more often",
            )

    @property
    def needs(self) -> tuple[Need, ...]:
        """Nothing beside what has noise, such as numbers of steps, which tell how many examples a client holds."""
        return (Need(UNMEASURED, "protects what it adds noise to, and nothing beside it"),)

    def check(self, training: TrainingParts) -> None:
        """Refuse another aggregation."""
        super().check(training)
        if PLAIN_MEAN not in training.aggregation.offers:
            raise CompositionError(
                f"NbAFL weights clients equally, and {type(training.aggregation).__name__} weights them in its own way",
                where="Training.aggregation",
                remedy="leave aggregation out",
            )

    def taken(self, taking: Attendance) -> Attendance:
        """Return the attendance with at most ``contacts`` rounds."""
        return taking if self.contacts is None else replace(taking, rounds=min(self.contacts, taking.rounds))

    def events(self, taking: Attendance, noise: float) -> tuple[Event, ...]:
        """Return one Gaussian release."""
        del taking
        return (Gaussian(unit=self.unit, noise_multiplier=noise),)

    def spent(self, taking: Attendance, noise: float) -> float:
        """Return epsilon of the rounds in which a client takes part at most."""
        return super().spent(self.taken(taking), noise)

    def parts(self, training: TrainingParts, taking: Attendance, noise: float) -> Mapping[str, Any]:
        """Install the release at the clients, and the server's noise."""
        given = ClientRelease(base=training.algorithm, tau=self.clip, sigma=2 * self.clip * noise, unit=self.unit)
        each = 2 * self.clip * noise * math.sqrt(len(given.outgoing))
        exposed = self.taken(taking).rounds
        beyond = broadcast_deviation(each, taking.rounds, exposed, max(1.0, taking.cohort)) if self.broadcast else 0.0
        return {"algorithm": replace(given, sigma=each), "aggregation": BroadcastNoise(deviation=beyond)}


@dataclass(frozen=True, kw_only=True)
class ClientRelease(OutputPerturbation):
    """`OutputPerturbation` for all data of a client.

    Attributes:
        base: the algorithm inside.
        tau: bound on the norm of a released model.
        sigma: standard deviation of the noise on each coordinate.
        unit: the unit of protection.
    """

    unit: str = "user"

    def events(self, examples: int) -> tuple[Event, ...]:
        """Return a Gaussian release for each outgoing entry."""
        return tuple(replace(event, unit=self.unit) for event in super().events(examples))


@dataclass(frozen=True, kw_only=True)
class BroadcastNoise(Aggregation):
    """The mean over clients with equal weights, plus ``N(0, deviation^2)`` from the server's secret.

    Attributes:
        deviation: standard deviation on each entry of a mean.
    """

    deviation: float = 0.0

    @property
    def noisy(self) -> bool:
        """Whether it draws on the server's secret."""
        return self.deviation > 0

    def algorithm(self, base: Algorithm) -> Algorithm:
        """Return the base with every mean weighted by 1."""
        return EqualWeights().algorithm(base)

    def combine(self, combined: Combined, params: Tree, memory: Tree, info: RoundInfo) -> tuple[dict[str, Any], Tree]:
        """Return the means with noise."""
        if not self.noisy or info.secret is None:
            return super().combine(combined, params, memory, info)
        whole = replace(combined, kinds=dict.fromkeys(combined.value, "sum"))  # means stay means
        draw = info.secret.generator()
        return noisy_sums(whole, lambda _, v: v + self.deviation * draw.standard_normal(v.size), 1.0), memory
