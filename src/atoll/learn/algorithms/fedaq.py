"""FedAQ: accelerated local steps with both streams quantised (Youn, Kumar, Abernethy 2022)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from atoll.core.requests.stage import Stage
from atoll.learn.card import Card
from atoll.stages import QSGD

from ..algorithm import Compressing
from .fedac import FedAC
from .one_gradient import require_stage

__all__ = ["FedAQ"]


@dataclass(frozen=True, kw_only=True)
class FedAQ(FedAC, Compressing):
    """FedAC in which clients send ``Q(w_k - w)`` and ``Q(w_ag,k - w_ag)``, each quantised separately.

    Variant ``"I"`` is FedAQ-I, ``"II"`` FedAQ-II. Without quantisation, it is FedAC; with ``alpha = beta = 1``, ``gamma = lr``, both streams are
    FedPAQ's. With 8 bits, it sends 16 bits per entry up and converges in as many rounds as FedAC, which sends 64. The authors' code quantises by
    ``MinMaxAffine(8)``, which is biased, and the mean again on the way down (``Training(downlink=MinMaxAffine(8))``).

    Attributes:
        compressor: the compressor, unbiased in theory.
    """

    compressor: Stage = field(default_factory=QSGD)
    citation: ClassVar[str] = (
        "Youn, Kumar, Abernethy. Accelerated Federated Optimization with Quantization. IEEE Data Engineering Bulletin 45(4), 2022."
    )
    card: ClassVar[Card] = Card(
        family="compressed", note="Proved for clients with identically distributed data. It sends two models each way."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, "FedAQ")

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply the compressor."""
        del phase
        return (self.compressor,)
