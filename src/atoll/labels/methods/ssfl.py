"""SSFL: SimSiam with a personal network at each client, close to the global one."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Phased
from atoll.learn.algorithms.ditto import Ditto
from atoll.learn.card import Card

from .fedsimsiam import FedSimSiam

__all__ = ["SSFL"]


@dataclass(frozen=True, kw_only=True)
class SSFL(FedSimSiam):
    """SimSiam inside `Ditto`: each client trains a personal network, ``v <- v - lr (g(v) + lam (v - W))``, beside its share of the global ``W``.

    Any other personal algorithm goes inside as ``base=``. Measure it with ``Evaluation(clients=-1, personal=True)`` or with probes on the personal
    networks.
    """

    base: Algorithm = field(default_factory=lambda: Ditto(lr=0.1, steps=10, batch_size=128, lam=0.1))
    citation: ClassVar[str] = (
        "He, Yang, Mushtaq, Lee, Soltanolkotabi, Avestimehr. SSFL: Tackling Label Deficiency in Federated Learning via Personalized "
        "Self-Supervision. 2021."
    )
    card: ClassVar[Card] = Card(family="personal", note="Clients keep a personal network, so they must return.")

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run all passes of the personal algorithm on the method's loss."""
        plain: Any = dict.fromkeys(("lr", "epochs", "batch_size", "steps"))
        return tuple(
            self if made is self.base else replace(self, base=made, **plain)
            for made in facet(self.base, Phased).passes(phase)
        )
