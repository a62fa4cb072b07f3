"""FedADMM (Wang et al. 2022): local gradient steps on the augmented Lagrangian, and partial participation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree

from ..algorithm import Algorithm, Gradient, LocalWork, Movable, RoundInfo, Stateful
from ..card import Card
from ..checks import require_positive
from ..proximal import or_rest, present

__all__ = ["Consensus", "FedADMM"]


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


# ---------------------------------------------------------------- FedADMM (Wang et al. 2022)


@dataclass(frozen=True, kw_only=True)
class FedADMM(Consensus):
    """Client: gradient steps on ``f_k(x) + <pi_k, x - z> + (rho/2) ||x - z||^2`` from its own ``x_k``, then ``pi_k <- pi_k + rho (x_k - z)``.

    See ``Consensus`` for the server. The number of steps may differ between rounds and between clients.
    """

    lr: float = 0.1
    citation: ClassVar[str] = (
        "Gong, Li, Freris. FedADMM: A Robust Federated Deep Learning Framework with Adaptivity to System Heterogeneity. ICDE 2022; "
        "Wang, Marella, Anderson. FedADMM: A Federated Primal-Dual Algorithm Allowing Partial Participation. CDC 2022."
    )
    card: ClassVar[Card] = Card(
        family="admm", unbiased=True, note="It minimises the mean of the clients' objectives, each with weight 1/N."
    )

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g + pi_k + rho (x - z)``."""
        pull = T.scale(T.sub(local["params"], broadcast["params"]), self.rho)
        return T.add(T.add(grad(local["params"]), local["dual"]), pull), local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Step the multiplier, and reply as ``Consensus`` does."""
        pull = T.scale(T.sub(local["params"], broadcast["params"]), self.rho)
        return super().finish({**local, "dual": T.add(local["dual"], pull)}, broadcast, client, work)
