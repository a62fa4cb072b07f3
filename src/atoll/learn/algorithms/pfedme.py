"""pFedMe (T. Dinh et al. 2020): personal models by Moreau envelopes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card

__all__ = ["PFedMe"]


@dataclass(frozen=True, kw_only=True)
class PFedMe(Algorithm, Stateful):
    """Each mini-batch: ``k`` steps ``theta <- theta - personal_lr (g(theta) + lam (theta - w) + mu theta)``, then ``w <- w - lr lam (w - theta)``.

    ``theta`` and ``w`` start at the broadcast ``W``; the last ``theta`` is the client's own model. Server:
    ``W <- (1 - beta) W + beta sum_S n_k w_k / sum_S n_k``. As ``lam`` grows (and ``theta`` is solved well), it becomes FedAvg; as it goes to 0,
    the global model stops moving and ``theta`` is plain local SGD. Client state: one model. Up and down: one model each.

    Attributes:
        lam: pull of the personal model towards ``w``, positive; ``lr * lam`` at most 1.
        k: inner steps per mini-batch.
        personal_lr: learning rate of the inner steps; ``None`` is ``lr``.
        mu: weight decay of the inner steps.
        beta: step size of the global model.
    """

    lr: float = 0.01
    lam: float = 15.0
    k: int = 5
    personal_lr: float | None = None
    mu: float = 0.0
    beta: float = 1.0
    citation: ClassVar[str] = (
        "T. Dinh, Tran, Nguyen. Personalized Federated Learning with Moreau Envelopes. NeurIPS 2020."
    )
    card: ClassVar[Card] = Card(family="personal", note="Measure it with Evaluation(clients=-1, personal=True).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.lam > 0 and self.lr * self.lam <= 1.0):
            raise ConfigError(
                f"lam={self.lam} with lr={self.lr}",
                where="PFedMe",
                remedy="use a positive lam, and lr at most 1 / lam: above, a step overshoots the personal model",
            )
        if self.k < 1:
            raise ConfigError(f"k={self.k}", where="PFedMe", remedy="use at least 1 inner step")
        if self.personal_lr is not None and not self.personal_lr > 0:
            raise ConfigError(f"personal_lr={self.personal_lr}", where="PFedMe", remedy="use a positive rate, or None")
        if not (0 <= self.mu < math.inf and 0 < self.beta < math.inf):
            raise ConfigError(f"mu={self.mu}, beta={self.beta}", where="PFedMe", remedy="use mu >= 0 and beta > 0")

    def client_init(self, params: Tree) -> Tree:
        """Start with the global model."""
        return {"model": params}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with ``w`` and ``theta`` at the global model."""
        del client
        return {"params": broadcast["params"], "theta": broadcast["params"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``lam (w - theta)`` after the inner steps."""
        del broadcast
        rate = self.lr if self.personal_lr is None else self.personal_lr
        theta = local["theta"]
        for _ in range(self.k):
            pull = T.scale(T.sub(theta, local["params"]), self.lam)
            slope = T.add(grad(theta), pull)
            slope = T.add(slope, T.scale(theta, self.mu)) if self.mu else slope
            theta = T.sub(theta, T.scale(slope, rate))
        return T.scale(T.sub(local["params"], theta), self.lam), {**local, "theta": theta}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update of ``w``; keep ``theta``."""
        return super().finish(local, broadcast, client, work)[0], {"model": local["theta"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``W <- W + beta * mean update``."""
        return super().fold(state, {**sums, "update": T.scale(sums["update"], self.beta)}, info, phase)

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the last ``theta``, or the global model if the client has not trained."""
        return params if client is None else client["model"]
