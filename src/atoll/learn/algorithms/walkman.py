"""Walkman (Mao et al. 2020): consensus ADMM in which the global model meets one client at a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError

from ..algorithm import Algorithm, Gradient, LocalWork, Movable, RoundInfo, Stateful
from ..card import Card
from ..checks import require_positive
from ..proximal import or_rest, present

__all__ = ["Walkman"]


@dataclass(frozen=True, kw_only=True)
class Walkman(Algorithm, Stateful, Movable):
    """ADMM on ``min (1/N) sum_k f_k(x_k)`` subject to ``x_k = z``, client by client, in any order.

    A client takes its local steps on ``f_k(x) - <y_k, x - z> + (rho/2) ||x - z||^2`` from its last point, then ``y_k <- y_k + rho (z - x_k)``. With
    ``u_k = x_k - y_k / rho`` the global model is the mean of ``u_k`` over the clients met so far; a client sends the change of its ``u_k``. The fixed
    point is the optimum for equally weighted clients: ``y_k = grad f_k(z)``.

    Under ``RandomWalk``, the server is a token. With several, each client remembers what it gave to each, so that every token is the mean of what the
    clients last gave it.

    Attributes:
        rho: the penalty.
        tokens: number of tokens.
    """

    rho: float = 1.0
    tokens: int = 1
    cumulative: ClassVar[bool] = True
    citation: ClassVar[str] = (
        "Mao, Yuan, Hu, Gu, Sayed, Yin. Walkman: A Communication-Efficient Random-Walk Algorithm for Decentralized Optimization. "
        "IEEE Transactions on Signal Processing 68, 2020."
    )
    card: ClassVar[Card] = Card(
        family="admm", unbiased=True, note="It minimises the mean of the clients' objectives, each with weight 1/N."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("Walkman", rho=self.rho)
        if self.tokens < 1:
            raise ConfigError(f"tokens={self.tokens}", where="Walkman", remedy="use at least 1")

    def init(self, params: Tree) -> Tree:
        """Start with ``z``, the number of clients met, and the token's mark: a 1 at its position."""
        mark = np.zeros(self.tokens, dtype=T.leaves(params)[0].dtype)
        mark[0] = 1
        return {"params": params, "token": mark, "met": 0.0}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``x_k = z``, ``y_k = 0``, without a token met."""
        given = T.map(lambda leaf: T.stack([T.zeros_like(leaf)] * self.tokens), params)
        met = np.zeros(self.tokens, dtype=T.leaves(params)[0].dtype)
        return {"x": params, "dual": T.zeros_like(params), "given": given, "met": met}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send ``z`` and the token's mark."""
        return {**super().broadcast(state, phase), "token": state["token"]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start at the client's last point."""
        return {"params": client["x"], "dual": client["dual"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g - y + rho (x - z)``."""
        pull = T.scale(T.sub(local["params"], broadcast["params"]), self.rho)
        return T.add(T.sub(grad(local["params"]), local["dual"]), pull), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Step the dual variable, and reply with the change of what this token has."""
        here, mark = present(work.steps), broadcast["token"]
        x = or_rest(here, local["params"], broadcast["params"])
        dual = T.scale(T.add(client["dual"], T.scale(T.sub(broadcast["params"], x), self.rho)), here)
        given = T.sub(x, T.scale(dual, 1.0 / self.rho))
        change = T.map(lambda new, old: new - (old * _along(mark, old)).sum(0), given, client["given"])
        kept = T.map(lambda old, by: old + _along(mark, old) * by, client["given"], change)
        met = client["met"] + mark * (1.0 - client["met"])
        first = (met - client["met"]).sum()
        return {"change": Sum(change), "first": Sum(first, role="side")}, {
            "x": x,
            "dual": dual,
            "given": kept,
            "met": met,
        }

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update the mean over the clients met by the changes; this is exact, because each change is relative to the last contribution."""
        del info, phase
        met = state["met"] + float(sums["first"])
        moved = T.add(T.scale(state["params"], state["met"]), sums["change"])
        return {**state, "params": T.scale(moved, 1.0 / max(met, 1.0)), "met": met}


def _along(mark: Any, leaf: Any) -> Any:
    """Return the mark as a factor on the leading axis."""
    return mark.reshape((-1,) + (1,) * (leaf.ndim - 1))
