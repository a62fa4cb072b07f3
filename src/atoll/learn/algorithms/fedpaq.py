"""FedPAQ: federated averaging with quantised updates; and sparse ternary compression in both directions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from atoll.core.requests.stage import Stage
from atoll.learn.card import Card
from atoll.stages import QSGD, STC, ErrorFeedback, TopK

from ..algorithm import Compressing
from .fedavg import FedAvg
from .one_gradient import require_stage

__all__ = ["FedPAQ", "MemSGD", "SparseTernary"]


@dataclass(frozen=True, kw_only=True)
class FedPAQ(FedAvg, Compressing):
    """FedAvg in which clients send ``Q(w_k - w)``: ``w <- w + mean Q(w_k - w)``, with any share of the clients.

    Attributes:
        compressor: an unbiased stage; 127 levels are 8 bits per entry.
    """

    compressor: Stage = field(default_factory=QSGD)
    citation: ClassVar[str] = (
        "Reisizadeh, Mokhtari, Hassani, Jadbabaie, Pedarsani. FedPAQ: A Communication-Efficient Federated Learning Method with Periodic "
        "Averaging and Quantization. AISTATS 2020."
    )
    card: ClassVar[Card] = Card(family="compressed", note="FedAvg with QSGD on the way up.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, type(self).__name__)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply the compressor."""
        del phase
        return (self.compressor,)


@dataclass(frozen=True, kw_only=True)
class MemSGD(FedAvg, Compressing):
    """FedAvg in which clients send a biased compression of their updates and feed the error back: ``p = u + e``; send ``C(p)``; ``e = p - C(p)``.

    By default, it is top-k with memory. With ``OneBit()``, it is 1-bit SGD (Seide et al. 2014), with ``Threshold(tau)`` Strom's method (2015), with ``Sign()``
    EF-signSGD (Karimireddy et al. 2019).

    Attributes:
        compressor: a contraction.
    """

    compressor: Stage = field(default_factory=lambda: TopK(0.01))
    citation: ClassVar[str] = "Stich, Cordonnier, Jaggi. Sparsified SGD with Memory. NeurIPS 2018."
    card: ClassVar[Card] = Card(
        family="compressed",
        unbiased=False,
        note="Error feedback at clients: the remainder waits until a client is invited again.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, type(self).__name__)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply error feedback around the compressor."""
        del phase
        return (ErrorFeedback(self.compressor),)


@dataclass(frozen=True, kw_only=True)
class SparseTernary(MemSGD):
    """STC: the largest entries as their signs and one magnitude, with error feedback, up and down.

    Attributes:
        compressor: the uplink compressor, inside error feedback.
        down: the downlink compressor; the server keeps the error.
    """

    compressor: Stage = field(default_factory=lambda: STC(0.0025))
    down: Stage = field(default_factory=lambda: STC(0.0025))
    citation: ClassVar[str] = (
        "Sattler, Wiedemann, Müller, Samek. Robust and Communication-Efficient Federated Learning from Non-IID Data. IEEE TNNLS 2019."
    )
    card: ClassVar[Card] = Card(
        family="compressed", note="A position takes ceil(log2 d) bits; the paper uses Golomb's code."
    )

    def downlink(self) -> Stage:
        """Apply the downlink compressor."""
        return self.down
