"""FedAC: Nesterov-type acceleration at every client (Yuan, Ma 2020)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Movable, RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_positive

__all__ = ["FedAC"]


@dataclass(frozen=True, kw_only=True)
class FedAC(Algorithm, Movable):
    """Accelerated local SGD on a pair of streams ``(w, w_ag)``, both averaged.

    A local step, with ``eta = lr``: ``md = w/beta + (1 - 1/beta) w_ag``; ``g = grad F_k(md)``; ``w_ag <- md - eta g``;
    ``w <- (1 - 1/alpha) w + md/alpha - gamma g``.

    ``gamma = max(sqrt(eta / (mu steps)), eta)``. Variant ``"I"``: ``alpha = 1/(gamma mu)``, ``beta = alpha + 1``. Variant ``"II"``:
    ``alpha = 3/(2 gamma mu) - 1/2``, ``beta = (2 alpha^2 - 1)/(alpha - 1)``, for ``gamma mu <= 3/4``. With ``alpha = beta = 1`` and
    ``gamma = eta``, it is FedAvg. ``mu`` is a tuning parameter: too large is slow, too small is unstable.

    Attributes:
        lr: ``eta``, the step of the ``w_ag`` stream.
        steps: local steps per round.
        mu: strong convexity that the coefficients assume.
        variant: ``"I"`` (more stable) or ``"II"`` (better rate).
        smoothness: ``L``, if known: then ``eta`` and ``gamma`` must be at most ``1/L``.
        eval_point: the stream to use as the model: ``"ag"`` (as in the theory) or ``"w"``.
        alpha: replaces the variant's.
        beta: replaces the variant's.
        gamma: replaces the rule's.
    """

    steps: int | None = 10
    mu: float = 0.1
    variant: str = "I"
    smoothness: float | None = None
    eval_point: str = "ag"
    alpha: float | None = None
    beta: float | None = None
    gamma: float | None = None
    citation: ClassVar[str] = "Yuan, Ma. Federated Accelerated Stochastic Gradient Descent. NeurIPS 2020."
    extrapolates: ClassVar[tuple[str, ...]] = ("params", "other")
    card: ClassVar[Card] = Card(
        note="Proved for clients with identically distributed data. It sends two models each way."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("FedAC", mu=self.mu)
        for name, value, allowed in (
            ("variant", self.variant, ("I", "II")),
            ("eval_point", self.eval_point, ("ag", "w")),
        ):
            if value not in allowed:
                raise ConfigError(f"{name}={value!r}", where="FedAC", remedy=f"use one of {', '.join(allowed)}")
        if self.steps is None and self.gamma is None:
            raise ConfigError(
                "steps=None", where="FedAC", remedy="set the number of local steps per round: gamma needs it"
            )
        _check(self)

    def coefficients(self) -> tuple[float, float, float]:
        """Return ``(alpha, beta, gamma)``."""
        gamma = max((self.lr / (self.mu * (self.steps or 1))) ** 0.5, self.lr) if self.gamma is None else self.gamma
        require_positive("FedAC", gamma=gamma)
        alpha = self.alpha
        if alpha is None:
            alpha = 1 / (gamma * self.mu) if self.variant == "I" else 1.5 / (gamma * self.mu) - 0.5
        if self.beta is not None:
            return alpha, self.beta, gamma
        if self.variant == "II" and alpha <= 1:
            raise ConfigError(f"alpha={alpha:g}", where="FedAC-II", remedy="lower mu or lr: alpha must exceed 1")
        return alpha, alpha + 1 if self.variant == "I" else (2 * alpha**2 - 1) / (alpha - 1), gamma

    def init(self, params: Tree) -> Tree:
        """Start with both streams at the model."""
        return {"params": params, "other": params}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send both streams; ``"params"`` is the main one."""
        del phase
        w, ag = (state["other"], state["params"])[:: 1 if self.eval_point == "ag" else -1]
        return {"params": w, "ag": ag, "lr": self.lr}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with both streams."""
        del client
        return {"params": broadcast["params"], "ag": broadcast["ag"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one accelerated step."""
        alpha, beta, gamma = self.coefficients()
        middle = T.add(T.scale(local["params"], 1 / beta), T.scale(local["ag"], 1 - 1 / beta))
        v = grad(middle)
        kept = T.add(T.scale(local["params"], 1 - 1 / alpha), T.scale(middle, 1 / alpha))
        return {
            **local,
            "params": T.sub(kept, T.scale(v, gamma)),
            "ag": T.sub(middle, T.scale(v, broadcast["lr"])),
        }

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the updates of both streams."""
        reply, client = super().finish(local, broadcast, client, work)
        return {**reply, "update_ag": Mean(T.sub(local["ag"], broadcast["ag"]), examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Move both streams by their mean updates."""
        del info, phase
        model, other = (sums["update_ag"], sums["update"])[:: 1 if self.eval_point == "ag" else -1]
        return {**state, "params": T.add(state["params"], model), "other": T.add(state["other"], other)}


def _check(algorithm: FedAC) -> None:
    """Refuse settings outside the theorems."""
    alpha, beta, gamma = algorithm.coefficients()
    if alpha < 1 or beta < 1:
        raise ConfigError(
            f"alpha={alpha:g}, beta={beta:g}", where="FedAC", remedy="lower mu or lr: both must be at least 1"
        )
    if algorithm.variant == "II" and algorithm.alpha is None and gamma * algorithm.mu > 0.75:
        raise ConfigError(
            f"gamma * mu = {gamma * algorithm.mu:g}", where="FedAC-II", remedy="lower mu or lr: at most 3/4"
        )
    if algorithm.smoothness is None:
        return
    require_positive(type(algorithm).__name__, smoothness=algorithm.smoothness)
    most = 1 / algorithm.smoothness
    if max(algorithm.lr, gamma) > most:
        raise ConfigError(
            f"lr={algorithm.lr:g}, gamma={gamma:g} with smoothness={algorithm.smoothness:g}",
            where="FedAC",
            remedy=f"lower lr or raise mu until both are at most 1/L = {most:g}",
        )
