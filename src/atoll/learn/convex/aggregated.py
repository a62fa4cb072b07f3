"""Logistic regression whose noise is added inside a secure sum: once to the models, or to every gradient."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import CompositionError, ConfigError
from atoll.core.event import Gaussian
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.privacy import RandomisedResponse
from atoll.secure import SecureAggregation

from .logistic import gradient, minimiser, rows_of
from .shared_noise import add_gaussian_share, add_radial_share, gradient_deviation, output_scale

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = ["AggregatedGradients", "AggregatedOutput", "noisy_gradient", "noisy_minimiser"]

Array = NDArray[np.float64]


@task
def noisy_minimiser(island: Island, message: Tree) -> dict[str, Sum]:
    """A party's minimiser over the number of parties, with its share of the noise."""
    rows = rows_of(island.data, message["smallest"], island.name)
    # Randomised response is the worst of all releases that are equally private: an upper bound for every composition.
    island.spend(RandomisedResponse(unit="example", epsilon=message["epsilon"]))
    w = minimiser(rows, message["ridge"]) / message["parties"]
    return {"model": Sum(add_radial_share(w, island.secret, message["scale"], message["parties"]))}


@task
def noisy_gradient(island: Island, message: Tree) -> dict[str, Sum]:
    """A party's mean gradient over the number of parties, with its share of the noise."""
    rows = rows_of(island.data, message["smallest"], island.name)
    island.spend(Gaussian(unit="example", noise_multiplier=message["multiplier"]))
    slope = gradient(np.asarray(message["w"]), rows, message["ridge"]) / message["parties"]
    moved = message["deviation"] / message["multiplier"]
    noisy = add_gaussian_share(slope, island.secret, message["deviation"], message["parties"], moved)
    return {"gradient": Sum(noisy)}


@dataclass(frozen=True, kw_only=True)
class _Aggregated(Checked):
    """What both have: unit one example, neighbours by replacing one, and an adversary who sees everything that the secure sum reveals.

    Numbers of examples are public as far as ``smallest`` says. If ``k`` of ``m`` parties tell others their shares, the noise that is left is that of the others.

    Attributes:
        epsilon: of one example.
        smallest: examples that each party has, at least.
        features: columns of a row.
        ridge: weight of ``||w||^2 / 2``, positive.
        reducer: a secure sum.
    """

    epsilon: float
    smallest: int
    features: int
    ridge: float = 0.1
    reducer: Reducer = field(default_factory=SecureAggregation)
    citation: ClassVar[str] = (
        "Jayaraman, Wang, Evans, Gu. Distributed Learning without Distress: Privacy-Preserving Empirical Risk Minimization. NeurIPS 2018."
    )

    def __post_init__(self) -> None:
        output_scale(1, self.smallest, self.ridge, self.epsilon)
        if self.features < 1:
            raise ConfigError(f"features={self.features}", where=type(self).__name__, remedy="use at least one")
        if not self.reducer.secure:
            raise CompositionError(
                f"{type(self.reducer).__name__} shows single replies, and each has only a share of the noise",
                where=f"{type(self).__name__}.reducer",
                remedy="use a secure reducer, such as SecureAggregation()",
            )


@dataclass(frozen=True, kw_only=True)
class AggregatedOutput(_Aggregated):
    """Output perturbation: parties solve their own problems, and the mean of their models is revealed once, with noise.

    ``w = mean_j argmin F_j + b`` with density ``~ exp(-epsilon m n_1 lambda ||b|| / 2)``: pure ``epsilon``, and ``m`` times less noise than if each party protected its own
    model. The mean of minimisers is not the minimiser of all data.
    """

    async def program(self, fed: Federation) -> Array:
        """Run it and return the model, ``(features,)``."""
        m = len(fed.parties)
        message = {
            "smallest": self.smallest, "epsilon": self.epsilon, "ridge": self.ridge, "parties": m,
            "scale": output_scale(m, self.smallest, self.ridge, self.epsilon),
        }  # fmt: skip
        done = await fed.sum(fed.parties, noisy_minimiser, message, reducer=self.reducer, quorum=m)
        return np.asarray(done["model"])


@dataclass(frozen=True, kw_only=True)
class AggregatedGradients(_Aggregated):
    """Gradient perturbation: gradient descent on means of gradients, each revealed with Gaussian noise of `gradient_deviation`.

    The deviation is the paper's; the ledger has one Gaussian release for each round, whose accounted epsilon is smaller.

    Attributes:
        delta: of epsilon.
        rounds: gradients that are released.
        lr: step.
    """

    delta: float = 1e-5
    rounds: int = 50
    lr: float = 1.0

    async def program(self, fed: Federation) -> Array:
        """Run it and return the model, ``(features,)``."""
        m = len(fed.parties)
        deviation = gradient_deviation(m, self.smallest, self.rounds, self.epsilon, self.delta)
        fixed = {
            "smallest": self.smallest, "ridge": self.ridge, "parties": m, "deviation": deviation,
            "multiplier": deviation / (2 / (m * self.smallest)),
        }  # fmt: skip
        state = await fed.restore({"w": np.zeros(self.features), "round": 0})
        while state["round"] < self.rounds:
            message = {**fixed, "w": state["w"]}
            done = await fed.sum(
                fed.parties, noisy_gradient, message, reducer=self.reducer, quorum=m, at=state["round"]
            )
            w = np.asarray(state["w"]) - self.lr * np.asarray(done["gradient"])
            state = {"w": w, "round": state["round"] + 1}
            fed.record({"round": state["round"], "length": float(np.linalg.norm(w))})
            if fed.durable:
                await fed.checkpoint(state)
        return np.asarray(state["w"])
