"""Federated SGD (McMahan et al. 2017, section 2): one full-batch gradient a client and round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Mean
from atoll.core.errors import ConfigError
from atoll.core.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo

__all__ = ["FedSGD"]


@dataclass(frozen=True, kw_only=True)
class FedSGD(Algorithm):
    """Clients send the gradient of their whole data at the global model; the server takes the step.

    ``w <- w - lr * sum_k (n_k / sum_j n_j) grad F_k(w)``. Equals FedAvg with one full-batch step.

    Attributes:
        lr: the server's learning rate.
    """

    lr: float = 0.1
    batch_size: int | None = None
    steps: int | None = 1
    citation: ClassVar[str] = (
        "McMahan, Moore, Ramage, Hampson, Agüera y Arcas. Communication-Efficient Learning of Deep Networks from "
        "Decentralized Data. AISTATS 2017."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.epochs != 1 or self.steps != 1 or self.batch_size is not None:
            raise ConfigError(
                f"epochs={self.epochs}, steps={self.steps}, batch_size={self.batch_size}",
                where="FedSGD",
                remedy="leave them out: FedSGD takes one full-batch gradient; for local steps use FedAvg",
            )

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The model and no gradient yet."""
        del client
        return {"params": broadcast["params"], "gradient": T.zeros_like(broadcast["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the gradient; the model stays."""
        del broadcast
        return {"params": local["params"], "gradient": grad(local["params"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the gradient."""
        del broadcast
        return {"gradient": Mean(local["gradient"], examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """``w <- w - lr * mean gradient``."""
        del info, phase
        return {"params": T.sub(state["params"], T.scale(sums["gradient"], self.lr))}
