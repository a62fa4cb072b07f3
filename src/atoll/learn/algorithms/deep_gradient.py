"""Deep gradient compression as a method (Lin et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.requests.stage import Stage
from atoll.learn.card import Card
from atoll.stages import DGC

from ..algorithm import Compressing
from .one_gradient import OneGradient

__all__ = ["DeepGradientCompression"]


@dataclass(frozen=True, kw_only=True)
class DeepGradientCompression(OneGradient, Compressing):
    """SGD in which clients send the largest entries of an accumulated velocity: ``w <- w - lr * mean sparse(v_k)``; see ``atoll.stages.DGC``.

    Attributes:
        lr: the server's learning rate.
        fraction: share of the entries to send.
        momentum: momentum of the velocity, in [0, 1).
        clip: the largest norm of a client's gradient; the paper's ``threshold / sqrt(N)``.
        warmup: rounds over which the share falls from 1/4.
        masking: whether sent entries reset their momentum.
    """

    fraction: float = 0.001
    momentum: float = 0.9
    clip: float | None = None
    warmup: int = 0
    masking: bool = True
    citation: ClassVar[str] = (
        "Lin, Han, Mao, Wang, Dally. Deep Gradient Compression: Reducing the Communication Bandwidth for Distributed Training. ICLR 2018."
    )
    card: ClassVar[Card] = Card(family="compressed", note="Velocity and remainder stay with the client.")

    def __post_init__(self) -> None:
        super().__post_init__()
        self.uplink("train")

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply momentum correction and keep the largest entries."""
        del phase
        return (DGC(self.fraction, self.momentum, self.clip, self.warmup, self.masking),)
