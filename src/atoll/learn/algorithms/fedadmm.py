"""FedADMM (Wang et al. 2022): local gradient steps on the augmented Lagrangian, and partial participation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Gradient, LocalWork
from atoll.learn.card import Card

from .consensus import Consensus

__all__ = ["FedADMM"]


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
