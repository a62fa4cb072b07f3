"""CEADMM (Zhou, Li 2021): several primal and dual updates per exchange."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Gradient
from atoll.learn.card import Card
from atoll.learn.checks import require_choice, require_count
from atoll.learn.curvature import CURVED, augmented_minimum

from .fedadmm import Consensus

__all__ = ["CEADMM"]


@dataclass(frozen=True, kw_only=True)
class CEADMM(Consensus):
    """Client, ``steps`` times: ``x_k``, then ``pi_k <- pi_k + rho (x_k - z)``. See ``Consensus`` for the server.

    ``solver="inexact"``: ``x_k = z - (grad f_k(z) + pi_k) / (bound + rho)``, one gradient at the received model. ``solver="exact"``:
    ``x_k = argmin f_k(x) + <pi_k, x> + (rho/2) ||x - z||^2`` by Newton's method. With one exact step, the method is consensus ADMM.

    Attributes:
        solver: ``"inexact"`` or ``"exact"``.
        bound: bound of the local curvature, for the inexact solver; not negative.
        newton: Newton steps per exact solution: 1 for a quadratic, a few for other losses.
        iterations: conjugate-gradient iterations per Newton step.
    """

    steps: int | None = 1
    solver: str = "inexact"
    bound: float = 1.0
    newton: int = 3
    iterations: int = 20
    citation: ClassVar[str] = "Zhou, Li. Communication-Efficient ADMM-based Federated Learning. arXiv:2110.15318, 2021."
    card: ClassVar[Card] = Card(
        family="admm", unbiased=True, note="It minimises the mean of the clients' objectives, each with weight 1/N."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("CEADMM", "solver", self.solver, ("inexact", "exact"))
        require_count("CEADMM", newton=self.newton, iterations=self.iterations)
        if not 0 <= self.bound < math.inf:
            raise ConfigError(f"bound={self.bound}", where="CEADMM", remedy="use a bound of 0 or more")

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs; for exact solutions also a loss with curvature."""
        return (*super().needs, *((CURVED,) if self.solver == "exact" else ()))

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one primal and one dual update."""
        z, dual = broadcast["params"], local["dual"]
        if self.solver == "exact":
            x = augmented_minimum(grad, local["params"], dual, z, self.rho, self.newton, self.iterations)
        else:
            x = T.sub(z, T.scale(T.add(grad(z), dual), 1.0 / (self.bound + self.rho)))
        return {**local, "params": x, "dual": T.add(dual, T.scale(T.sub(x, z), self.rho))}
