"""VRL-SGD (Liang et al. 2019): variance-reduced local SGD for cross-silo federations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, QuorumError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card

__all__ = ["VRLSGD"]


@dataclass(frozen=True, kw_only=True)
class VRLSGD(Algorithm, Stateful):
    """Local steps along ``v = g_k(y) - Delta_k``; after a round ``Delta_k <- Delta_k + (x' - y_k) / (T lr)`` with the new average ``x'``.

    The client learns ``x'`` from the next broadcast and then corrects ``Delta_k``. ``sum_k Delta_k = 0`` always, because ``x'`` is the plain
    mean of all ``y_k``. So all clients take part in every round, with the same number of steps ``T``. The fixed point is the optimum of
    ``(1/N) sum_k F_k``. Client state: two models. Up and down: one model each. If a wrapper moves the model beyond the average
    (``ServerOptimised``, ``Upcycled``), the server also sends the average, so that the corrections still cancel.

    Attributes:
        steps: local steps ``T``; required.
    """

    partial: ClassVar[bool] = False
    citation: ClassVar[str] = (
        "Liang, Shen, Liu, Pan, Chen, Cheng. Variance Reduced Local SGD with Lower Communication Complexity. arXiv:1912.12844, 2019."
    )
    card: ClassVar[Card] = Card(
        example={"steps": 5},
        unbiased=True,
        everyone=True,
        note="It needs every client in every round, with the same number of steps.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps is None or self.stragglers is not None:
            raise ConfigError(
                f"steps={self.steps}, stragglers={self.stragglers}",
                where="VRLSGD",
                remedy="set steps=, the same for all clients, and no stragglers; Scaffold takes any number of steps",
            )

    def init(self, params: Tree) -> Tree:
        """Start with the model as the average."""
        return {"params": params, "average": params}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, and the average if it differs."""
        same = all(map(np.array_equal, T.leaves(state["params"]), T.leaves(state["average"])))
        return {**super().broadcast(state, phase), **({} if same else {"average": state["average"]})}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``Delta_k = 0``, and no steps yet."""
        return {"delta": T.zeros_like(params), "last": params, "present": 0.0}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Correct ``Delta_k`` by the received average, and start at the model."""
        behind = T.sub(broadcast.get("average", broadcast["params"]), client["last"])
        factor = client["present"] / ((self.steps or 1) * broadcast["lr"])
        return {"params": broadcast["params"], "delta": T.add(client["delta"], T.scale(behind, factor))}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g - Delta_k``."""
        del broadcast
        return T.sub(grad(local["params"]), local["delta"]), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update, equal weights; a client without rows sends none."""
        del client
        present = 1.0 * (work.steps > 0)
        update = T.sub(local["params"], broadcast["params"])
        kept = {"delta": local["delta"], "last": local["params"], "present": present}
        return {"update": Mean(update, examples=present)}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Move to the mean of all clients.

        Raises:
            QuorumError: a client is missing.
        """
        if info.replied < info.population:
            raise QuorumError(
                f"{info.replied} of {info.population} clients replied",
                where=f"VRLSGD, round {info.round}",
                remedy="wait for all clients, or use Scaffold, which works without some",
            )
        average = T.add(state["params"], sums["update"])
        return {**state, "params": average, "average": average}
