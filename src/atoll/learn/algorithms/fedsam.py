"""FedSAM (Qu et al. 2022): local steps along the gradient at a point uphill, which seek flat minima."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Gradient
from atoll.learn.card import Card

from .fedavg import FedAvg

__all__ = ["FedSAM"]

_TINY = 1e-12


@dataclass(frozen=True, kw_only=True)
class FedSAM(FedAvg):
    """FedAvg whose local steps are those of sharpness-aware minimisation: ``w <- w - lr g(w + rho g(w) / ||g(w)||)``.

    The loss of all clients is then low in a neighbourhood of the model, so that the mean of drifted clients is still good. Both gradients are of one mini-batch,
    so a step costs two. With ``rho=0``, it equals FedAvg bit for bit.

    Attributes:
        rho: how far uphill the second gradient is taken, 0 or more; the paper uses .05 to .7.
    """

    rho: float = 0.05
    citation: ClassVar[str] = (
        "Qu, Li, Duan, Liu, Tang, Lu. Generalized Federated Learning via Sharpness Aware Minimization. ICML 2022."
    )
    card: ClassVar[Card] = Card(note="A step takes two gradients.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.rho >= 0 and math.isfinite(self.rho)):
            raise ConfigError(
                f"rho={self.rho}", where="FedSAM", remedy="use a finite number of at least 0, such as 0.05"
            )

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return the gradient uphill."""
        here, local = super().direction(local, grad, broadcast)
        if self.rho == 0:
            return here, local
        uphill = T.scale(here, self.rho / (T.norm(here) + _TINY))
        return grad(T.add(local["params"], uphill)), local
