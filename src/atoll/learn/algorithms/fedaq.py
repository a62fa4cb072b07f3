"""FedAQ: accelerated local steps with both streams quantised (Youn, Kumar, Abernethy 2022); and FedCOMGATE."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate
from atoll.core.stage import Stage
from atoll.core.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_positive
from atoll.stages import QSGD

from .fedac import FedAC
from .one_gradient import require_stage

__all__ = ["FedAQ", "FedCOMGATE"]


@dataclass(frozen=True, kw_only=True)
class FedAQ(FedAC):
    """FedAC whose clients send ``Q(w_k - w)`` and ``Q(w_ag,k - w_ag)``, quantised each by itself.

    Variant ``"I"`` is FedAQ-I, ``"II"`` FedAQ-II. Without quantisation it is FedAC; with ``alpha = beta = 1``, ``gamma = lr`` both streams are
    FedPAQ's. With 8 bits it sends 16 bits an entry up and converges in the rounds of FedAC, which sends 64. The authors' code quantises by
    ``MinMaxAffine(8)``, which is biased, and the mean again on the way down (``Training(downlink=MinMaxAffine(8))``).

    Attributes:
        compressor: unbiased, in the theory.
    """

    compressor: Stage = field(default_factory=QSGD)
    citation: ClassVar[str] = (
        "Youn, Kumar, Abernethy. Accelerated Federated Optimization with Quantization. IEEE Data Engineering Bulletin 45(4), 2022."
    )
    card: ClassVar[Card] = Card(
        family="compressed", note="Proved for clients whose data are alike; two models each way."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, "FedAQ")

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """The compressor."""
        del phase
        return (self.compressor,)


@dataclass(frozen=True, kw_only=True)
class FedCOMGATE(Algorithm):
    """Quantised local SGD with gradient tracking.

    Local steps ``w_k <- w_k - lr (g - delta_k)``; clients send ``Q(w - w_k)``; with the mean ``d`` the server goes to ``w - server_lr d`` and each client
    corrects ``delta_k <- delta_k + ((w - w_k) - d) / (lr T)``.

    The correction is made when a client is asked again: it remembers what it sent and knows ``d`` from how far the model moved. Everyone takes part in every
    round. With exact replies, ``server_lr=1`` and as many steps at every client (give ``steps=``) it reaches the optimum, as VRL-SGD does. A client corrects
    by what it meant to send, not by ``Q`` of it (so does the code that FedAQ was compared with), so that the errors of quantisation add up in
    ``sum_k delta_k`` and it ends beside the optimum.

    Attributes:
        compressor: unbiased.
        server_lr: the server's step.
    """

    compressor: Stage = field(default_factory=QSGD)
    server_lr: float = 1.0
    citation: ClassVar[str] = (
        "Haddadpour, Kamani, Mokhtari, Mahdavi. Federated Learning with Compression: Unified Analysis and Sharp Guarantees. AISTATS 2021."
    )
    card: ClassVar[Card] = Card(
        family="compressed", everyone=True, note="Unbiased only with exact replies and equal steps."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_stage(self.compressor, "FedCOMGATE")
        require_positive("FedCOMGATE", server_lr=self.server_lr)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """The compressor."""
        del phase
        return (self.compressor,)

    def client_init(self, params: Tree) -> Tree:
        """No correction, and no round to correct for."""
        zero = T.zeros_like(params)
        return {"delta": zero, "sent": zero, "from": params, "per": 0.0}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The correction for the last round, now that its mean is known."""
        mean = T.scale(T.sub(client["from"], broadcast["params"]), 1.0 / self.server_lr)
        off = T.scale(T.sub(client["sent"], mean), client["per"])
        return {"params": broadcast["params"], "delta": T.add(client["delta"], off)}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """``g - delta``."""
        del broadcast
        return T.sub(grad(local["params"]), local["delta"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """The update; what is needed for the correction stays."""
        reply, _ = super().finish(local, broadcast, client, work)
        sent = T.sub(broadcast["params"], local["params"])
        per = 1.0 / (broadcast["lr"] * (work.steps + (work.steps == 0)))
        return reply, {"delta": local["delta"], "sent": sent, "from": broadcast["params"], "per": per}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """``w <- w - server_lr d``."""
        del info, phase
        return {**state, "params": T.add(state["params"], T.scale(sums["update"], self.server_lr))}
