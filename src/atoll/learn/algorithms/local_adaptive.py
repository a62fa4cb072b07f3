"""Adaptive local steps: every client has its own Adam, AdaGrad or RMSProp.

The local acceleration framework of the survey "Advancements in Federated Learning: Models, Methods, and Privacy", Algorithm 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.learn.card import Card
from atoll.learn.transforms import AdaGrad, Adam, RMSProp, Transform

from .accelerated import Transformed
from .fedavg import FedAvg

__all__ = ["LocalAdaGrad", "LocalAdam", "LocalRMSProp"]

_NOTE = (
    "Each client scales coordinates by its own gradients, so the mean of the steps points elsewhere. The bias is large."
)


@dataclass(frozen=True, kw_only=True)
class _LocalAdaptive(Transformed, FedAvg):
    """Shared options of the three methods."""

    memory: str = "client"
    eps: float = 1e-8
    card: ClassVar[Card] = Card(note=_NOTE)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chain()


@dataclass(frozen=True, kw_only=True)
class LocalAdam(_LocalAdaptive):
    """FedAvg with Adam as the local optimiser, bias-corrected.

    Attributes:
        beta1: share of the mean that remains per step.
        beta2: share of the mean square that remains per step.
        eps: added to the root.
        memory: ``"client"`` keeps the moments, ``"round"`` resets them, ``"server"`` averages them.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    citation: ClassVar[str] = "Kingma, Ba. Adam: A Method for Stochastic Optimization. ICLR 2015."

    def chain(self) -> tuple[Transform, ...]:
        """Adam."""
        return (Adam(self.beta1, self.beta2, self.eps),)


@dataclass(frozen=True, kw_only=True)
class LocalAdaGrad(_LocalAdaptive):
    """FedAvg with AdaGrad as the local optimiser.

    Attributes:
        eps: added to the root.
        memory: ``"client"`` keeps the sum of squares, ``"round"`` resets it, ``"server"`` averages it.
    """

    citation: ClassVar[str] = (
        "Duchi, Hazan, Singer. Adaptive Subgradient Methods for Online Learning and Stochastic Optimization. JMLR 2011."
    )

    def chain(self) -> tuple[Transform, ...]:
        """AdaGrad."""
        return (AdaGrad(self.eps),)


@dataclass(frozen=True, kw_only=True)
class LocalRMSProp(_LocalAdaptive):
    """FedAvg with RMSProp as the local optimiser, bias-corrected.

    Attributes:
        beta: share of the mean square that remains per step.
        eps: added to the root.
        memory: ``"client"`` keeps the mean square, ``"round"`` resets it, ``"server"`` averages it.
    """

    beta: float = 0.99
    citation: ClassVar[str] = "Tieleman, Hinton. RMSProp. Neural Networks for Machine Learning, lecture 6.5, 2012."

    def chain(self) -> tuple[Transform, ...]:
        """RMSProp."""
        return (RMSProp(self.beta, self.eps),)
