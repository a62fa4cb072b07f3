"""FedNova (Wang et al. 2020): updates normalised by the local work, so that clients with more work do not change the objective."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card

from .fedavg import FedAvg

__all__ = ["FedNova"]


@dataclass(frozen=True, kw_only=True)
class FedNova(FedAvg):
    """``w <- w + server_lr (sum_k p_k a_k) sum_k p_k (w_k - w) / a_k`` with ``p_k = n_k / sum_S n_j``.

    ``a_k`` is the sum of the weights with which the client's gradients enter its update: its steps ``T_k``, or with local momentum ``rho``
    (reset every round) ``(T_k - rho (1 - rho^T_k) / (1 - rho)) / (1 - rho)``. If all clients take equally many steps, it is FedAvg. No client
    state. Up: a model and a number.

    Attributes:
        momentum: ``rho`` in [0, 1).
    """

    momentum: float = 0.0
    citation: ClassVar[str] = (
        "Wang, Liu, Liang, Joshi, Poor. Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization. "
        "NeurIPS 2020."
    )
    card: ClassVar[Card] = Card(note="It removes the effect of different numbers of steps. FedAvg's drift stays.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum={self.momentum}", where="FedNova", remedy="use a number in [0, 1)")

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model; with momentum also a buffer."""
        local = super().start(broadcast, client)
        return {**local, "momentum": T.zeros_like(broadcast["params"])} if self.momentum else local

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g``, or ``m <- rho m + g``."""
        toward, local = super().direction(local, grad, broadcast)
        if not self.momentum:
            return toward, local
        toward = T.add(T.scale(local["momentum"], self.momentum), toward)
        return toward, {**local, "momentum": toward}

    def normaliser(self, steps: Any) -> Any:
        """Return ``a_k``: the sum of the weights of a client's gradients."""
        # Wang et al. 2020: the 1-norm of the weights of a client's gradients under momentum; plain steps count 1 each.
        rho = self.momentum
        return (steps - rho * (1.0 - rho**steps) / (1.0 - rho)) / (1.0 - rho) if rho else steps

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the normalised update and ``a_k``, by examples."""
        weight = self.normaliser(work.steps)
        update = T.sub(local["params"], broadcast["params"])
        reply: dict[str, Aggregate] = {
            "normalised": Mean(T.scale(update, 1.0 / (weight + (work.steps < 1))), examples=work.examples),
            "work": Mean(weight, examples=work.examples, role="side"),  # stages act only on updates
        }
        return reply, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Move along the mean direction, by the mean work."""
        update = T.scale(sums["normalised"], float(sums["work"]))
        return super().fold(state, {"update": update}, info, phase)
