"""Objective perturbation: a random linear term in the local objective, with pure differential privacy for each example of a client."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import CompositionError, ConfigError, DataError
from atoll.core.event import Event
from atoll.learn.algorithm import Algorithm, Gradient, Private
from atoll.learn.capabilities import MARGINS
from atoll.learn.card import Card
from atoll.learn.local.client_mechanism import ClientMechanism
from atoll.learn.local.examples import Clipping
from atoll.learn.wrapped import Wrapped
from atoll.privacy import Perturbed, objective_epsilon
from atoll.privacy.discrete import snap

from .feddyn import FedDyn
from .fedprox import FedProx

__all__ = ["ObjectivePerturbation"]

_GRAIN = 2.0**-11
_RADIUS = 2.0
"""Two outputs and a bias: the loss is a function of the margin ``(w_1 - w_0)^T (x, 1)``, a vector of norm ``sqrt(2 (||x||^2 + 1)) <= 2``."""


@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(ClientMechanism, Private):
    """Clients minimise ``F(w) + mu/2 ||w - W||^2 + <n, w>`` with noise of density ``exp(-alpha ||n||_2)``, and release the minimiser.

    ``||n||`` is Gamma with shape ``d`` (all parameters) and rate ``alpha``, its direction uniform. The cost is
    `atoll.privacy.objective_epsilon`. The guarantee needs a log-loss of one margin (a linear model of two classes), features of norm at most 1 and
    ``mu >= 2 u2 R^2 / n``, which are checked. It also needs *exact* minimisers, which cannot be checked from outside: use enough epochs or full-batch
    steps, and measure the error with `FirstOrderResidual`. Clients that stop before their own number of epochs release no minimiser. So Atoll refuses a base
    with stragglers, and later any request for another amount of work (``partial`` is False). ``mu`` is FedProx's, or
    FedDyn's ``alpha``.

    Attributes:
        base: the algorithm inside, with a quadratic term: FedProx or FedDyn.
        alpha: inverse scale of the noise; a larger value means less noise.
    """

    alpha: float
    citation: ClassVar[str] = (
        "Chaudhuri, Monteleoni, Sarwate. Differentially Private Empirical Risk Minimization. JMLR 2011."
    )
    card: ClassVar[Card] = Card(
        example={"base": FedProx(), "alpha": 1.0},
        family="wrapper",
        note="Pure local differential privacy, for exact minimisers of a two-class linear model.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "partial", False)  # the guarantee needs exact minimisers
        if self.stragglers is not None and self.stragglers.probability > 0:
            raise CompositionError(
                f"{self.stragglers} end a solve early, but the guarantee needs exact minimisers",
                where="ObjectivePerturbation",
                remedy="leave stragglers out of the base, or use OutputPerturbation, which holds for any model",
            )
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ConfigError(f"alpha={self.alpha}", where="ObjectivePerturbation", remedy="use a positive number")
        if self.outgoing != ("params",):
            raise CompositionError(
                f"{type(self.base).__name__} sends or keeps {', '.join(self.outgoing)}, but only a minimiser is protected",
                where="ObjectivePerturbation",
                remedy="use FedProx or FedDyn, or OutputPerturbation",
            )
        if not self.mu > 0:
            raise ConfigError(
                f"{type(self.base).__name__} has no quadratic term",
                where="ObjectivePerturbation",
                remedy="use FedProx(mu=...) with mu > 0, or FedDyn",
            )

    @property
    def mu(self) -> float:
        """Weight of the base's quadratic term."""
        return _weight(self.base)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a log-loss of one margin."""
        return (*super().needs, Need(MARGINS, "perturbs the objective of one margin", "OutputPerturbation"))

    def admit(self, data: Any) -> None:
        """Refuse features of norm above 1."""
        super().admit(data)
        x = np.asarray(data.x, dtype=np.float64).reshape(len(data), -1)
        longest = float(np.linalg.norm(x, axis=1).max()) if len(x) else 0.0
        if longest > 1.0 + 1e-6:
            raise DataError(
                f"features of norm {longest:.4g}",
                where="ObjectivePerturbation",
                remedy="scale every row to a norm of at most 1, with a bound that does not come from the data",
            )

    def events(self, examples: int) -> tuple[Event, ...]:
        """Return one release; a client without examples has nothing to protect."""
        if examples == 0:
            return ()
        epsilon = objective_epsilon(examples, self.alpha, self.mu, radius=_RADIUS)
        return (Perturbed(unit="example", epsilon=epsilon),)

    def noise(self, rng: Rng, entry: Tree) -> Tree:
        """Draw a vector over all parameters together."""
        draw = rng.generator()
        leaves = T.leaves(entry)
        parts = [draw.normal(size=np.shape(leaf)) for leaf in leaves]
        length = math.sqrt(sum(float((part**2).sum()) for part in parts))
        size = sum(part.size for part in parts)
        factor = draw.gamma(size, 1.0 / self.alpha) / length
        made = [
            np.asarray(part * factor, dtype=np.asarray(leaf).dtype) for part, leaf in zip(parts, leaves, strict=True)
        ]
        return T.rebuild(entry, made)

    def privatise(self, entry: Tree, noise: Tree) -> Tree:
        """Return the minimiser: the noise was in its objective. In float64 it is rounded to ``2^-31``, so that no last bits tell the data (Mironov 2012)."""
        del noise

        def round_leaf(leaf: Any) -> Any:
            exact = isinstance(leaf, np.ndarray | np.generic) and leaf.dtype == np.float64
            return snap(leaf, _GRAIN)[()] if exact else leaf

        return T.map(round_leaf, entry)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the base's step on the tilted objective, so that momentum and everything else treat the noise like the loss."""
        return super().step(local, _Tilted(grad, local["drawn"]["noise"]["params"]), broadcast)


class _Tilted:
    """A gradient oracle with a linear term."""

    def __init__(self, grad: Gradient, noise: Tree) -> None:
        self._grad, self._noise = grad, noise

    def __call__(self, params: Tree) -> Tree:
        return T.add(self._grad(params), self._noise)

    def loss(self, params: Tree) -> Any:
        return self._grad.loss(params) + T.dot(self._noise, params)

    def hvp(self, params: Tree, vector: Tree) -> Tree:
        return self._grad.hvp(params, vector)

    def hvps(self, params: Tree, vectors: Tree) -> Tree:
        return self._grad.hvps(params, vectors)

    def clipped(self, params: Tree, clipping: Clipping) -> Tree:
        raise _two_mechanisms()

    def normal(self, params: Tree) -> Tree:
        raise _two_mechanisms()


def _two_mechanisms() -> CompositionError:
    return CompositionError(
        "a perturbed objective has no gradients of single examples", where="ObjectivePerturbation", remedy="use DPSGD"
    )


def _weight(base: Algorithm) -> float:
    if isinstance(base, FedProx):
        return base.mu
    if isinstance(base, FedDyn):
        return base.alpha
    return _weight(base.base) if isinstance(base, Wrapped) else 0.0
