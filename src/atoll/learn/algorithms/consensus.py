"""The base of consensus ADMM methods with one exchange per round: the server's mean of ``x_k + pi_k / rho``, for any cohort."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.learn.admm.idle import or_rest, present
from atoll.learn.algorithm import Algorithm, LocalWork, Movable, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.checks import require_positive

__all__ = ["Consensus"]


@dataclass(frozen=True, kw_only=True)
class Consensus(Algorithm, Stateful, Movable):
    """``min (1/N) sum_k f_k(x_k)`` subject to ``x_k = z``, with multipliers ``pi_k`` and ``z = (1/N) sum_k u_k``, ``u_k = x_k + pi_k / rho``.

    A client starts at the first model it receives, with ``pi_k = 0``, and sends the change of its ``u_k``. A new client sends ``u_k`` itself and a
    flag, because the server counted it with the very first model so far. Only sums are needed. At a fixed point, ``x_k = z``,
    ``pi_k = -grad f_k(z)`` and ``sum_k pi_k = 0``: the optimum, for any participation and any inexact local work. A client without rows,
    with ``f_k`` zero, goes to ``x_k = z``, ``pi_k = 0``.

    Attributes:
        rho: the penalty, positive.
    """

    rho: float = 1.0
    batch_size: int | None = None
    cumulative: ClassVar[bool] = True
    card: ClassVar[Card] = Card(family="admm", unbiased=True, part=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(type(self).__name__, rho=self.rho)

    def init(self, params: Tree) -> Tree:
        """Start with ``z``, and the model that stands for clients not met yet."""
        return {"params": params, "first": params}

    def client_init(self, params: Tree) -> Tree:
        """Start at the received model, without a multiplier."""
        return {"params": params, "dual": T.zeros_like(params), "known": T.leaves(params)[0].sum() * 0}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the client's ``x_k`` and ``pi_k``."""
        del broadcast
        return {"params": client["params"], "dual": client["dual"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the change of ``u_k`` and whether it is the first; keep the client state."""
        here = present(work.steps)
        x, dual = or_rest(here, local["params"], broadcast["params"]), T.scale(local["dual"], here)
        known = client["known"] > 0
        moved = T.map(lambda new, old: new - T.where(known, old, old * 0), x, client["params"])
        turned = T.scale(T.sub(dual, client["dual"]), 1.0 / self.rho)
        kept = {"params": x, "dual": dual, "known": client["known"] * 0 + 1}
        return {"change": Sum(T.add(moved, turned)), "new": Sum(1 - client["known"], role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``z <- z + (sum of changes - new first) / N``."""
        del phase
        counted = T.scale(state["first"], float(sums["new"]))
        step = T.scale(T.sub(sums["change"], counted), 1.0 / info.population)
        return {**state, "params": T.add(state["params"], step)}
