"""Ditto (Li et al. 2021): a global model by FedAvg, and personal models close to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased, Stateful
from atoll.learn.card import Card

from .fedavg import FedAvg

__all__ = ["Ditto"]


@dataclass(frozen=True, kw_only=True)
class Ditto(FedAvg, Phased, Stateful):
    """FedAvg on ``W``; in addition, each client trains its own model, ``v <- v - personal_lr (g(v) + lam (v - W))``.

    The personal model is trained in a separate pass of the same contact, on its own mini-batches. It starts at the global model and stays at
    the client. With ``lam = 0``, it is purely local training; as ``lam`` grows, it approaches ``W``. The global model equals FedAvg's bit for bit.
    Client state: one model. Up and down: one model each.

    Attributes:
        lam: pull towards the global model, 0 or more; ``personal_lr * lam`` at most 1.
        personal_lr: learning rate of the personal model in the first round; ``None`` is ``lr``. It falls with ``decay`` like the global one: the
            paper's algorithm names one step size, and its convergence proof lets that of the personal models decay with the rounds.
        personal_epochs: passes over the data for the personal model; ``None``: as many as for the global one.
    """

    lam: float = 0.1
    personal_lr: float | None = None
    personal_epochs: int | None = None
    citation: ClassVar[str] = (
        "Li, Hu, Beirami, Smith. Ditto: Fair and Robust Federated Learning Through Personalization. ICML 2021."
    )
    card: ClassVar[Card] = Card(family="personal", note="Measure it with Evaluation(clients=-1, personal=True).")

    def __post_init__(self) -> None:
        super().__post_init__()
        rate = self.lr if self.personal_lr is None else self.personal_lr
        if not (self.lam >= 0 and rate > 0 and rate * self.lam <= 1.0):
            raise ConfigError(
                f"lam={self.lam} with personal_lr={rate}",
                where="Ditto",
                remedy="use lam >= 0 and a positive rate of at most 1 / lam: above, a step overshoots the global model",
            )
        if self.personal_epochs is not None and (self.personal_epochs < 1 or self.steps is not None):
            raise ConfigError(
                f"personal_epochs={self.personal_epochs} with steps={self.steps}",
                where="Ditto",
                remedy="use at least 1, and epochs= for the global model; with steps=, both take the same number",
            )

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the personal model, then FedAvg."""
        del phase
        personal = _Personal(
            lr=self.lr,
            share=1.0 if self.personal_lr is None else self.personal_lr / self.lr,
            epochs=self.epochs if self.personal_epochs is None else self.personal_epochs,
            batch_size=self.batch_size,
            steps=self.steps,
            lam=self.lam,
        )
        return (personal, self)

    def client_init(self, params: Tree) -> Tree:
        """Start with the global model."""
        return {"model": params}

    def personal(self, params: Tree, client: Tree) -> Tree:
        """Return the client's own model, or the global model if it has not trained."""
        return params if client is None else client["model"]


@dataclass(frozen=True, kw_only=True)
class _Personal(Algorithm, Stateful):
    """The pass that trains the personal model."""

    lam: float
    share: float

    def client_init(self, params: Tree) -> Tree:
        """Start with the global model."""
        return {"model": params}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the client's own model."""
        del broadcast
        return {"params": client["model"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g(v) + lam (v - W)``."""
        pull = T.scale(T.sub(local["params"], broadcast["params"]), self.lam)
        return T.add(grad(local["params"]), pull), local

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take a step at the pass's own rate, a multiple of this round's."""
        return super().step(local, grad, {**broadcast, "lr": broadcast["lr"] * self.share})

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send no reply."""
        del broadcast, client, work
        return {}, {"model": local["params"]}
