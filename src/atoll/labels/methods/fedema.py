"""FedEMA: clients begin a round between the global and their own network, the nearer to their own the more they diverge."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.card import Card

from .fedu import Returning, divergence

__all__ = ["FedEMA"]


@dataclass(frozen=True, kw_only=True)
class FedEMA(Returning):
    """FedEMA: ``w_k = (1 - mu) w + mu w_k`` for the whole online network, with ``mu = min(lam d, 1)``; the survey's equations (94) and (95).

    ``mu`` multiplies the *local* network. ``d = |w_k - w| / |w|`` over encoder and projector is the divergence of the client's last network; in
    its first round it is 0, and the client copies the global network. With ``lam=0`` it always does: FedU's equation (93).

    Attributes:
        lam: weight of the divergence; ``None``: each client's own, ``tau`` over the first divergence that it measures.
        tau: ``mu`` where that first divergence is measured, in [0, 1]; the authors use 0.7.
    """

    lam: float | None = None
    tau: float = 0.7
    citation: ClassVar[str] = "Zhuang, Wen, Zhang. Divergence-Aware Federated Self-Supervised Learning. ICLR 2022."
    card: ClassVar[Card] = Card(
        family="wrapper", note="Clients keep a target and an online network, so they must return."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lam is not None and not self.lam >= 0.0:
            raise ConfigError(f"lam={self.lam}", where="FedEMA", remedy="use 0 or more, or None for each client's own")
        if not 0.0 <= self.tau <= 1.0:
            raise ConfigError(f"tau={self.tau}", where="FedEMA", remedy="use a share from 0 to 1, such as 0.7")

    def memories(self, params: Tree) -> Tree:
        """Remember the client's own weight of the divergence, 0 before it is known."""
        return {"lam": next(iter(params.values())).sum() * 0.0} if self.lam is None else {}

    def meet_global(self, globally: Tree, locally: Tree, client: Tree) -> tuple[Tree, Tree]:
        """Return the network between both, and the client's own weight."""
        apart = divergence(locally, globally, "encoder")
        xp = T.namespace(next(iter(globally.values())))
        if self.lam is None:
            known, some = client["lam"] > 0, xp.where(apart > 0, apart, 1.0)
            lam = xp.where(known, client["lam"], xp.where(apart > 0, self.tau / some, 0.0))
            memories = {"lam": lam}
        else:
            lam, memories = self.lam, {}
        mu = (lam * apart).clip(0.0, 1.0)
        mixed = T.map(lambda w, own: w * (1.0 - mu) + own * mu, globally, locally)
        return mixed, memories
