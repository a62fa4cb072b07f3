"""Convex problems whose solution is released under privacy, with noise that the parties add inside a secure sum."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.aggregate import Sum
from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Gaussian
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.island import Secret
from atoll.core.requests.task import task
from atoll.core.validation import Checked
from atoll.data.missing import known_rows
from atoll.privacy import RandomisedResponse
from atoll.privacy.discrete import add_gaussian, snap
from atoll.secure.masking import SecureAggregation

if TYPE_CHECKING:
    from atoll.core.federation.federation import Federation
    from atoll.core.requests.island import Island

__all__ = [
    "AggregatedGradients",
    "AggregatedOutput",
    "add_gaussian_share",
    "add_radial_share",
    "gradient",
    "gradient_deviation",
    "minimiser",
    "output_scale",
    "rows_of",
]


Array = NDArray[np.float64]


def rows_of(data: Any, least: int, name: str) -> Array:
    """A party's rows times their labels of +1 and -1, scaled down to norm 1, ``(rows, features)``.

    Raises:
        DataError: there are fewer rows than the noise was made for, or the labels are not two.
    """
    data = known_rows(data, "a private regression")
    x, y = np.asarray(data["x"], np.float64).reshape(len(data["y"]), -1), np.asarray(data["y"])
    if len(y) < least:
        raise DataError(
            f"{name} has {len(y)} examples, and the noise is for at least {least}", where="smallest", remedy="lower it"
        )
    if not set(np.unique(y).tolist()) <= {-1, 0, 1}:
        raise DataError(
            f"{name} has labels {np.unique(y)[:5]}", where="y", remedy="use two labels: 0 and 1, or -1 and 1"
        )
    signs = np.where(y > 0, 1.0, -1.0)
    found: Array = x / np.maximum(1.0, np.linalg.norm(x, axis=1, keepdims=True)) * signs[:, None]
    return found


def gradient(w: Array, rows: Array, ridge: float) -> Array:
    """Of ``mean ln(1 + exp(-z^T w)) + ridge / 2 ||w||^2`` over rows ``z = y x``."""
    found: Array = -rows.T @ (1 / (1 + np.exp(np.clip(rows @ w, -700, 700)))) / len(rows) + ridge * w
    return found


def minimiser(rows: Array, ridge: float, tolerance: float = 1e-12) -> Array:
    """By Newton's method with halved steps. A gradient of norm ``tolerance`` leaves an error of ``tolerance / ridge`` at most."""
    w = np.zeros(rows.shape[1])

    def value(at: Array) -> float:
        return float(np.logaddexp(0.0, -rows @ at).mean() + ridge / 2 * at @ at)

    for _ in range(200):
        slope = gradient(w, rows, ridge)
        if np.linalg.norm(slope) <= tolerance:
            break
        p = 1 / (1 + np.exp(np.clip(rows @ w, -700, 700)))
        step = np.linalg.solve((rows.T * (p * (1 - p))) @ rows / len(rows) + ridge * np.eye(len(w)), slope)
        size = 1.0
        while value(w - size * step) > value(w) - 0.25 * size * slope @ step and size > 1e-6:
            size /= 2
        w = w - size * step
    return w


# ---------------------------------------------------------------- noise of which every party adds a share


@checked_call
def output_scale(parties: int, smallest: int, ridge: float, epsilon: float, lipschitz: float = 1.0) -> float:
    """Scale of the noise on a mean of minimisers: ``2 G / (m n_1 lambda epsilon)``, for a density ``~ exp(-||b|| / scale)``.

    Replacing one of ``n`` examples moves the minimiser of a ``lambda``-strongly convex objective with ``G``-Lipschitz losses by at most ``2 G / (n lambda)``, and
    the mean of ``m`` minimisers by ``m`` times less: Jayaraman, Wang, Evans, Gu 2018, "Distributed Learning without Distress", theorem 3.1.

    Args:
        parties: ``m``.
        smallest: examples of the smallest party, ``n_1``.
        ridge: ``lambda``.
        epsilon: positive.
        lipschitz: ``G``.

    Raises:
        ConfigError: a value is not positive.
    """
    _require_positive(parties=parties, smallest=smallest, ridge=ridge, epsilon=epsilon, lipschitz=lipschitz)
    return 2 * lipschitz / (parties * smallest * ridge * epsilon)


@checked_call
def gradient_deviation(
    parties: int, smallest: int, rounds: int, epsilon: float, delta: float, lipschitz: float = 1.0
) -> float:
    """Standard deviation of the noise on each mean gradient: ``sqrt(8 G^2 T ln(1 / delta)) / (m n_1 epsilon)``. The same, theorem 3.2.

    Args:
        parties: ``m``.
        smallest: examples of the smallest party, ``n_1``.
        rounds: gradients that are released, ``T``.
        epsilon: of all of them.
        delta: in (0, 1).
        lipschitz: ``G``.

    Raises:
        ConfigError: a value is not positive, or delta is not in (0, 1).
    """
    _require_positive(parties=parties, smallest=smallest, rounds=rounds, epsilon=epsilon, lipschitz=lipschitz)
    if not 0 < delta < 1:
        raise ConfigError(f"delta={delta}", where="gradient_deviation", remedy="use delta in (0, 1)")
    return math.sqrt(8 * rounds * math.log(1 / delta)) * lipschitz / (parties * smallest * epsilon)


def add_gaussian_share(
    values: Array, secret: Secret, deviation: float, parties: int, sensitivity: float | None = None
) -> Array:
    """Return the values with one of ``parties`` shares of ``N(0, deviation^2 I)``, on a lattice that all parties have.

    Args:
        values: a vector.
        secret: of the party.
        deviation: of the noise of all parties.
        parties: how many share it.
        sensitivity: how far one unit moves the sum of all, which rounding adds to; see `add_gaussian`.
    """
    each = math.sqrt(parties)
    return add_gaussian(
        values, deviation / each, secret.generator(), None if sensitivity is None else sensitivity / each
    )


def add_radial_share(values: Array, secret: Secret, scale: float, parties: int) -> Array:
    """Return the values with one of ``parties`` shares of noise with density ``~ exp(-||b|| / scale)``, rounded to a lattice.

    Its characteristic function ``(1 + scale^2 ||t||^2)^(-(dim + 1) / 2)`` is the product of ``parties`` equal ones. Each is that of ``sqrt(V) N(0, I)`` with
    ``V ~ Gamma((dim + 1) / (2 parties), 2 scale^2)``. No exact sampler of it is known: the numbers are floating-point, and only rounding hides their last bits.
    """
    draw, dim = secret.generator(), len(values)
    spread = draw.gamma((dim + 1) / (2 * parties), 2 * scale**2)
    return snap(values + math.sqrt(spread) * draw.normal(size=dim), scale)


def _require_positive(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ConfigError(f"{name}={value}", where="noise of a secure sum", remedy="use a finite number above 0")


# ---------------------------------------------------------------- logistic regression whose noise is added inside a secure sum


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
