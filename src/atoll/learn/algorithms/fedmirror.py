"""Federated mirror descent and federated dual averaging (Yuan, Zaheer, Reddi 2021, "Federated Composite Optimization")."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Movable, RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_positive
from atoll.learn.proximal import MirrorMap, mirror_map

__all__ = ["FedDualAvg", "FedMirror"]

_CITATION = "Yuan, Zaheer, Reddi. Federated Composite Optimization. ICML 2021."


@dataclass(frozen=True, kw_only=True)
class FedMirror(Algorithm):
    """Mirror descent on ``mean_k F_k(w) + l1 ||w||_1``; the server averages the primal points.

    A local step: ``z <- grad h(y) - lr grad F_k(y)``; ``y <- grad (h + lr l1 ||.||_1)^*(z)``. With ``mirror="euclid"`` this is the proximal
    gradient step ``soft(y - lr g, lr l1)``; with ``l1=0`` as well, FedAvg. The survey prints the last map without ``l1`` and at ``y``; both are
    slips. It averages models, like the survey; the server in the paper's FedMiD takes a mirror step along the mean update.

    Attributes:
        l1: weight of the 1-norm, 0 or more.
        mirror: ``"euclid"``, ``"entropy"`` (each leaf a distribution) or ``"pnorm"``.
        p: exponent of ``"pnorm"``, in (1, 2].
    """

    l1: float = 0.0
    mirror: str = "euclid"
    p: float = 1.5
    citation: ClassVar[str] = _CITATION
    card: ClassVar[Card] = Card(note="The mean of sparse models is dense; FedDualAvg keeps the zeros.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (self.l1 >= 0 and math.isfinite(self.l1)):
            raise ConfigError(f"l1={self.l1}", where=type(self).__name__, remedy="use 0 or more")
        self.geometry()

    def geometry(self) -> MirrorMap:
        """Return the mirror map."""
        return mirror_map(self.mirror, self.p)

    def init(self, params: Tree) -> Tree:
        """Start with the model, inside the map's domain."""
        return {"params": self.geometry().start(params)}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one step of mirror descent."""
        v, local = self.direction(local, grad, broadcast)
        z = T.sub(self.geometry().dual(local["params"]), T.scale(v, broadcast["lr"]))
        return {**local, "params": self.geometry().primal(z, broadcast["lr"] * self.l1)}


@dataclass(frozen=True, kw_only=True)
class FedDualAvg(FedMirror, Movable):
    """Dual averaging on the same objective; the server averages the dual points, so that the model keeps its zeros.

    With ``t`` the sum of past step sizes, a client computes ``y = grad (h + t l1 ||.||_1)^*(z)``, ``z <- z - lr grad F_k(y)``, ``t <- t + lr``; the server takes
    ``z <- z + server_lr mean(z_k - z)``, ``t <- t + server_lr mean(steps) lr``; the model is ``grad (h + t l1 ||.||_1)^*(z)``.

    Messages contain ``z`` under the name of the parameters.

    Attributes:
        server_lr: factor on the mean move of ``z``.
    """

    server_lr: float = 1.0
    extrapolates: ClassVar[tuple[str, ...]] = ("params", "dual", "time")
    card: ClassVar[Card] = Card(note="It aggregates dual points: the threshold acts on the mean, and zeros stay zeros.")

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("FedDualAvg", server_lr=self.server_lr)

    def init(self, params: Tree) -> Tree:
        """Start with the model and its dual point."""
        start = self.geometry().start(params)
        return {"params": start, "dual": self.geometry().dual(start), "time": 0.0}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the dual point and its time."""
        del phase
        return {"params": state["dual"], "time": state["time"], "lr": self.lr}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the dual point and its time."""
        del client
        return {"params": broadcast["params"], "time": broadcast["time"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one step of dual averaging."""
        point = self.geometry().primal(local["params"], local["time"] * self.l1)
        z = T.sub(local["params"], T.scale(grad(point), broadcast["lr"]))
        return {**local, "params": z, "time": local["time"] + broadcast["lr"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the move of the dual point, and its time."""
        reply, client = super().finish(local, broadcast, client, work)
        taken = work.steps * broadcast["lr"]
        return {**reply, "time": Mean(taken, examples=work.examples, role="side")}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Add the mean move, and compute its model."""
        del info, phase
        dual = T.add(state["dual"], T.scale(sums["update"], self.server_lr))
        time = state["time"] + self.server_lr * float(sums["time"])
        return self.moved({"dual": dual, "time": time})

    def moved(self, state: Tree) -> Tree:
        """Recompute the model from the dual point and its time."""
        params = self.geometry().primal(state["dual"], state["time"] * self.l1)
        return {**state, "params": params}
