"""Federated averaging (McMahan et al. 2017, "Communication-Efficient Learning of Deep Networks from Decentralized Data", Algorithm 1)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, RoundInfo

__all__ = ["FedAvg"]


@dataclass(frozen=True, kw_only=True)
class FedAvg(Algorithm):
    """Local SGD from the global model, then the mean of the updates, weighted by examples.

    Local step: ``w_k <- w_k - lr * grad F_k(w_k; batch)``, for ``epochs`` passes. Server:
    ``w <- w + server_lr * sum_k (n_k / sum_j n_j) (w_k - w)`` over the clients that replied.

    Attributes:
        lr: local learning rate.
        epochs: local passes.
        batch_size: mini-batch size; ``None`` is the full local data.
        steps: local steps instead of epochs.
        server_lr: factor on the mean update; 1 is McMahan's averaging.
        decay: factor on the learning rate after every round: ``lr_t = lr * decay^(t-1)``.
    """

    server_lr: float = 1.0
    decay: float = 1.0
    citation: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data. AISTATS 2017."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (0 < self.server_lr < math.inf and 0 < self.decay < math.inf):
            raise ConfigError(
                f"server_lr={self.server_lr}, decay={self.decay}",
                where=type(self).__name__,
                remedy="use positive, finite factors",
            )

    def init(self, params: Tree) -> Tree:
        """Start with the model, and the learning rate of the next round."""
        return {"params": params, "lr": float(self.lr)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model and this round's learning rate."""
        del phase
        return {"params": state["params"], "lr": state["lr"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Add the mean update."""
        del info, phase
        update = sums["update"] if self.server_lr == 1.0 else T.scale(sums["update"], self.server_lr)
        return {"params": T.add(state["params"], update), "lr": state["lr"] * self.decay}
