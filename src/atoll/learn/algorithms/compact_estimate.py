"""A compact estimate of the global gradient, which the server keeps and clients refresh in every local step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean, Sum
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo, Stateful
from atoll.learn.card import Card

__all__ = ["CompactEstimate"]


@dataclass(frozen=True, kw_only=True)
class CompactEstimate(Algorithm, Stateful):
    """Local steps ``v = g - g_prev + M``, then ``M <- M + (g - g_prev) / N`` and ``g_prev <- g``: SAGA with one entry per client.

    ``g_prev`` is the client's last gradient and stays at the client; ``M`` estimates ``grad f``. Server: ``M <- M + (1/N) sum_S (g_prev' - g_prev)``,
    so that ``M = (1/N) sum_k g_prev_k`` always. Clients learn ``N`` from the second broadcast; in the first round, they do not change ``M``.
    The fixed point is the optimum of ``(1/N) sum_k F_k``, also with sampled cohorts. Client state: one model. Up and down: two models each.

    The survey proposes the idea without a formula; this formula is our reading of it.
    """

    citation: ClassVar[str] = (
        "Proposed in: Advancements in Federated Learning: Models, Methods, and Privacy (outlook); the authors' later LoSAC is of this kind."
    )
    card: ClassVar[Card] = Card(
        unbiased=True, note="It minimises the mean of the clients' objectives, each with weight 1/N."
    )

    def init(self, params: Tree) -> Tree:
        """Start with the model, ``M = 0``, and an unknown population."""
        return {"params": params, "estimate": T.zeros_like(params), "share": 0.0}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``g_prev = 0``."""
        return {"gradient": T.zeros_like(params)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, ``M`` and ``1/N``."""
        more = {"estimate": state["estimate"], "share": state["share"]}
        return {**super().broadcast(state, phase), **more}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model, ``M`` and ``g_prev``."""
        return {"params": broadcast["params"], "estimate": broadcast["estimate"], "gradient": client["gradient"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g - g_prev + M``, and refresh both."""
        gradient = grad(local["params"])
        change = T.sub(gradient, local["gradient"])
        estimate = T.add(local["estimate"], T.scale(change, broadcast["share"]))
        return T.add(change, local["estimate"]), {**local, "estimate": estimate, "gradient": gradient}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the update, equal weights, and the change of ``g_prev``; a client without rows has no weight."""
        update = T.sub(local["params"], broadcast["params"])
        change = T.sub(local["gradient"], client["gradient"])
        reply = {"update": Mean(update, examples=1.0 * (work.steps > 0)), "change": Sum(change)}
        return reply, {"gradient": local["gradient"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update the model, and ``M``."""
        share = 1.0 / info.population
        estimate = T.add(state["estimate"], T.scale(sums["change"], share))
        return {**super().fold(state, sums, info, phase), "estimate": estimate, "share": share}
