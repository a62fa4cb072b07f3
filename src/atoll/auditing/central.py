"""The training that ``atoll privacy audit`` audits: client-level Gaussian noise on a mean of clipped updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from atoll.core.errors import ConfigError
from atoll.core.requests.context import StageContext
from atoll.privacy import NoisePlan, noise_for
from atoll.stages import Clip, GaussianNoise

if TYPE_CHECKING:
    from atoll.learn.training import Training

    from .canaries import Planted

__all__ = ["WeakNoise", "central"]


@dataclass(frozen=True)
class WeakNoise(GaussianNoise):
    """Gaussian noise that is ``factor`` times what it says in the ledger: a lie that an audit must catch.

    Attributes:
        factor: the noise's true standard deviation over the declared one.
    """

    factor: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.factor > 0:
            raise ConfigError(f"factor={self.factor}", where="WeakNoise", remedy="use a number above 0")

    def scale(self, context: StageContext) -> float:
        """The standard deviation of one client's noise: not the declared one."""
        return self.factor * super().scale(context)


def central(planted: Planted, epsilon: float, delta: float, rounds: int = 4, sabotage: float = 1.0) -> Training:
    """Return a training of everybody, with ``rounds`` releases that cost ``epsilon`` together.

    Args:
        planted: the clients, with canaries.
        epsilon: what the run claims.
        delta: its delta.
        rounds: number of rounds.
        sabotage: factor on the noise; 1 is what the ledger says.
    """
    import atoll
    from atoll.learn.aggregation import EqualWeights

    plan = noise_for(NoisePlan(mechanism="gaussian", noise=1.0, delta=delta, steps=rounds), epsilon, "pld")
    return atoll.Training(
        model=atoll.models.linear(planted.features, planted.classes),
        algorithm=atoll.FedAvg(lr=0.5),
        selection=atoll.Everyone(),
        aggregation=EqualWeights(),
        pacing=atoll.Synchronous(quorum=1.0),
        uplink=[Clip(1.0), WeakNoise(plan.noise, trusted=True, factor=sabotage)],
        rounds=rounds,
        evaluation=atoll.Evaluation(every=rounds),
    )
