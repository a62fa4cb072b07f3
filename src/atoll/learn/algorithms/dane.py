"""DANE (Shamir, Srebro, Zhang 2014): clients minimise their own loss, tilted so that its gradient equals the global one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo
from atoll.learn.card import Card
from atoll.learn.curvature import cg, damp_operator, pick

from .full_gradient import FullGradient
from .newton_type import GRADIENT, NewtonType

__all__ = ["DANE"]


@dataclass(frozen=True, kw_only=True)
class DANE(NewtonType, Phased):
    """``w_k = argmin_v F_k(v) - <grad F_k(w) - eta g, v> + mu/2 ||v - w||^2``, then ``w <- w + lr mean (w_k - w)``.

    Two exchanges per round, each ``d`` floats up: the gradients, with mean ``g``, and the updates. No client state. On quadratics, it is
    ``w - lr eta mean (H_k + mu I)^-1 g``, but no Hessian is formed. Clients solve their problem by Newton steps with conjugate gradients for the
    systems; each step is halved until the tilted loss does not grow.

    ``mu`` is in units of curvature, so it has no default. The paper uses 0 for clients with similar data, and more the more their Hessians differ
    (its theorem: ``8 beta^2 / lambda - lambda`` for quadratics of convexity ``lambda`` with ``||H_k - H|| <= beta``). Below that, the mean of the
    inverse Hessians can be far larger than the inverse of their mean, and the method diverges however small the clients' own losses become. For
    convex quadratics, any ``mu > lr eta L / 2`` converges, with ``L`` the smoothness of the mean loss: ``mean (H_k + mu I)^-1 <= I / mu``.

    Attributes:
        lr: share of the mean update that the server takes.
        eta: weight of the global gradient.
        mu: weight of the proximal term, 0 or more; required.
        steps: Newton steps per client.
        iterations: conjugate-gradient iterations per Newton step.
        halvings: largest number of halvings of a Newton step.
    """

    steps: int | None = 5
    eta: float = 1.0
    mu: float | None = None
    iterations: int = 20
    halvings: int = 5
    phases: ClassVar[tuple[str, ...]] = ("gradient", "solve")
    pooled: ClassVar[str] = "the mean of all gradients"
    citation: ClassVar[str] = (
        "Shamir, Srebro, Zhang. Communication-Efficient Distributed Optimization using an Approximate Newton-type Method. ICML 2014."
    )
    card: ClassVar[Card] = Card(
        family="second order",
        unbiased=True,
        example={"mu": 0.1},
        note="For convex losses. You must give mu. A sampled cohort approaches its own optimum. In a star only.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.mu is None:
            raise ConfigError(
                "mu=None: mu is in units of curvature, and too small a mu diverges",
                where="DANE",
                remedy="set mu=: 0 if all clients' data are similar, otherwise more than lr * eta * L / 2 with L the largest curvature of the mean loss",
            )
        self._check("eta", self.eta > 0, "use a positive weight; 1 is usual")
        self._check("mu", self._pull >= 0, "use 0 or more")
        self._check("iterations", self.iterations >= 1, "use at least 1")
        self._check("halvings", self.halvings >= 0, "use 0 or more")

    @property
    def _pull(self) -> float:
        """``mu``."""
        return float(self.mu or 0.0)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the gradient, or the gradient again, kept for the next pass, and then the Newton steps."""
        return (GRADIENT,) if phase == "gradient" else (FullGradient(), self)

    def init(self, params: Tree) -> Tree:
        """Start with the model, and no gradient yet."""
        return {"params": params, "gradient": T.zeros_like(params)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model; for the solution also ``g``."""
        sent = {"params": state["params"]}
        return sent if phase == "gradient" else {**sent, "gradient": state["gradient"]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model, and the tilt ``grad F_k(w) - eta g``."""
        tilt = T.sub(client["anchor"], T.scale(broadcast["gradient"], self.eta))
        return {"params": broadcast["params"], "tilt": tilt}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one Newton step on the tilted loss."""
        params, tilt, centre = local["params"], local["tilt"], broadcast["params"]

        def value(v: Tree) -> Any:
            away = T.sub(v, centre)
            return grad.loss(v) - T.dot(tilt, away) + 0.5 * self._pull * T.dot(away, away)

        slope = T.add(T.sub(grad(params), tilt), T.scale(T.sub(params, centre), self._pull))
        toward = cg(damp_operator(lambda v: grad.hvp(params, v), self._pull), slope, self.iterations)
        # Growth within rounding does not count: otherwise the last digits are never found.
        leaf = T.leaves(params)[0]
        before = value(params)
        most = before + 4 * float(T.namespace(leaf).finfo(leaf.dtype).eps) * abs(before)
        chosen = params
        for j in reversed(range(1 + self.halvings)):
            trial = T.sub(params, T.scale(toward, 0.5**j))
            does = value(trial) <= most
            chosen = pick(does, trial, chosen)
        return {"params": chosen, "tilt": tilt}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update; keep no state."""
        return super().finish(local, broadcast, None, work)

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep ``g``; after the second phase, move the model."""
        if phase == "gradient":
            return {**state, "gradient": sums["gradient"]}
        return {**state, "params": T.add(state["params"], T.scale(sums["update"], self.lr))}
