"""FedProx (Li et al. 2020, "Federated Optimization in Heterogeneous Networks", Algorithm 2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Gradient
from atoll.learn.card import Card
from atoll.learn.transforms import Proximal

from .fedavg import FedAvg

__all__ = ["FedProx"]


@dataclass(frozen=True, kw_only=True)
class FedProx(FedAvg):
    """FedAvg on ``F_k(y) + mu/2 ||y - w||^2``: a proximal term pulls local steps back to the global model.

    ``v = grad F_k(y) + mu (y - w)``; any number of inexact steps. With ``mu=0``, it equals FedAvg bit for bit. The paper draws clients in
    proportion to their examples and takes the plain mean; use ``SizeProportional`` with ``EqualWeights`` for this.

    Attributes:
        mu: weight of the pull, 0 or more.
    """

    mu: float = 0.1
    citation: ClassVar[str] = (
        "Li, Sahu, Zaheer, Sanjabi, Talwalkar, Smith. Federated Optimization in Heterogeneous Networks. MLSys 2020."
    )
    card: ClassVar[Card] = Card(
        note="It limits client drift. With several local steps, its fixed point is still biased."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        Proximal(self.mu)

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the gradient plus the pull."""
        v, local = super().direction(local, grad, broadcast)
        return Proximal(self.mu).apply(v, {}, local["params"], broadcast["params"])[0], local
