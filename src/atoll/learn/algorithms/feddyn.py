"""FedDyn (Acar et al. 2021): a dynamic regulariser makes the clients' optima agree."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Movable, RoundInfo, Stateful
from atoll.learn.card import Card

__all__ = ["FedDyn"]


@dataclass(frozen=True, kw_only=True)
class FedDyn(Algorithm, Stateful, Movable):
    """Client: SGD on ``F_k(w) - <g_k, w> + (alpha/2) ||w - W||^2``, then ``g_k <- g_k - alpha (w_k - W)``.

    Server: ``h <- h - (alpha/N) sum_S (w_k - W)``, ``W <- mean_S w_k - h / alpha``. So ``h = (1/N) sum_k g_k`` always, and at a fixed point
    ``g_k = grad F_k(W)`` and ``h = 0``: the optimum of ``(1/N) sum_k F_k``, for any inexact local solves. The state ``g_k`` belongs to
    the client, not to its place in the cohort. Client state: one model. Up and down: one model each.

    Attributes:
        alpha: weight of the regulariser, positive.
        clip: bound on the norm of a local direction; ``None`` for none.
    """

    alpha: float = 0.01
    clip: float | None = None
    extrapolates: ClassVar[tuple[str, ...]] = ("params", "h")
    tied: ClassVar[tuple[str, ...]] = ("h",)
    citation: ClassVar[str] = (
        "Acar, Zhao, Matas Navarro, Mattina, Whatmough, Saligrama. Federated Learning Based on Dynamic Regularization. ICLR 2021."
    )
    card: ClassVar[Card] = Card(
        unbiased=True, note="It minimises the mean of the clients' objectives, each with weight 1/N."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.alpha < math.inf:
            raise ConfigError(f"alpha={self.alpha}", where="FedDyn", remedy="use a positive weight such as 0.01")
        if self.clip is not None and not self.clip > 0:
            raise ConfigError(f"clip={self.clip}", where="FedDyn", remedy="use a positive bound, or None")

    def init(self, params: Tree) -> Tree:
        """Start with the model, and ``h = 0``."""
        return {"params": params, "h": T.zeros_like(params)}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``g_k = 0``."""
        return {"slope": T.zeros_like(params)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model and ``g_k``."""
        return {"params": broadcast["params"], "slope": client["slope"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g - g_k + alpha (w - W)``, clipped to norm ``clip``."""
        pull = T.scale(T.sub(local["params"], broadcast["params"]), self.alpha)
        toward = T.add(T.sub(grad(local["params"]), local["slope"]), pull)
        if self.clip is not None:
            length = T.norm(toward)
            # clip / max(length, clip) by arithmetic: a traced step cannot branch on a value.
            toward = T.scale(toward, self.clip / (self.clip + (length - self.clip) * (length > self.clip)))
        return toward, local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update, equal weights, and the new ``g_k``."""
        del work
        update = T.sub(local["params"], broadcast["params"])
        return {"update": Mean(update)}, {"slope": T.sub(client["slope"], T.scale(update, self.alpha))}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``h`` and the model."""
        del phase
        # Acar et al. 2021, Algorithm 1: h moves by the sum of the updates over all clients, the model by their mean and h / alpha.
        h = T.sub(state["h"], T.scale(sums["update"], self.alpha * info.replied / info.population))
        params = T.sub(T.add(state["params"], sums["update"]), T.scale(h, 1.0 / self.alpha))
        return {**state, "params": params, "h": h}
