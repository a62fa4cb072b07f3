"""DIANA and ADIANA: compressed gradient differences."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Compressing, Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.proximal import soft
from atoll.stages import RandomK, Shift

from .one_gradient import OneGradient, require_unbiased, require_weight

__all__ = ["ADIANA", "DIANA"]


@dataclass(frozen=True, kw_only=True)
class DIANA(OneGradient, Compressing):
    """Compressed differences of gradients to a learned shift.

    Clients send ``D_k = C(g_k - h_k)`` and both sides learn ``h_k <- h_k + a D_k``; ``g = mean (h_k + D_k)``, ``v <- b v + g``,
    ``w <- prox(w - lr v)`` with the prox of ``lr l1 ||.||_1``.

    The shift ``h_k`` converges to the client's gradient at the optimum, so compression does not prevent convergence, even with a nonsmooth
    regulariser. The step size in theory is ``lr = 1/(L (1 + 6 omega/N))``.

    Attributes:
        lr: the server's learning rate.
        compressor: ``C``, unbiased.
        a: step size of the shifts; ``None`` is ``1/(1 + omega)``.
        momentum: ``b``, in [0, 1).
        l1: weight of an L1 norm.
    """

    compressor: Stage = field(default_factory=lambda: RandomK(0.25))
    a: float | None = None
    momentum: float = 0.0
    l1: float = 0.0
    citation: ClassVar[str] = (
        "Mishchenko, Gorbunov, Takáč, Richtárik. Distributed Learning with Compressed Gradient Differences. 2019."
    )
    card: ClassVar[Card] = Card(
        family="compressed",
        unbiased=True,
        note="The server mirrors every client's shift, so it must see single replies.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_unbiased(self.compressor, type(self).__name__)
        require_weight(self.l1, type(self).__name__)
        if not 0.0 <= self.momentum < 1.0:
            raise ConfigError(f"momentum={self.momentum}", where=type(self).__name__, remedy="use a number in [0, 1)")
        Shift(self.compressor, self.a)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply differences to a learned shift."""
        del phase
        return (Shift(self.compressor, self.a),)

    def init(self, params: Tree) -> Tree:
        """Start with the model, and no momentum."""
        return {"params": params, "v": T.zeros_like(params)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update the momentum, take a step and apply the prox."""
        del info, phase
        v = T.add(T.scale(state["v"], self.momentum), sums["gradient"])
        stepped = T.sub(state["params"], T.scale(v, self.lr))
        return {**state, "params": soft(stepped, self.lr * self.l1), "v": v}


@dataclass(frozen=True, kw_only=True)
class ADIANA(OneGradient, Compressing):
    """Accelerated DIANA for ``mu``-strongly convex objectives.

    Two gradients per round, at ``x`` and at the anchor ``w``, are sent as differences to one shift, which learns from the anchor's:
    ``x = t1 z + t2 w + (1 - t1 - t2) y``; ``g = mean (h_k + C(grad f_k(x) - h_k))``; ``h_k <- h_k + a C(grad f_k(w) - h_k)``;
    ``y+ = prox(x - eta g)``; ``z <- b z + (1 - b) x + (gam/eta)(y+ - x)``; ``w <- y`` with probability ``p``; ``y <- y+``.

    ``p = min{1, max{1, sqrt(N/(32 omega)) - 1} / (2 (1 + omega))}``, ``eta = min{1/(2L), N/(64 omega (2 p (omega + 1) + 1)^2 L)}``, ``t2 = 1/2``,
    ``t1 = min{1/4, sqrt(eta mu/p)}``, ``gam = eta/(2 (t1 + eta mu))``, ``b = 1 - gam mu``, ``a = 1/(1 + omega)``. Its advantage over DIANA is for large ``L/mu``.

    Attributes:
        mu: strong convexity.
        smoothness: ``L``.
        omega: variance of the compressor, for models of this size.
        clients: number of clients ``N``.
        compressor: ``C``, unbiased.
        l1: weight of an L1 norm.
    """

    mu: float = 0.1
    smoothness: float = 10.0
    omega: float = 3.0
    clients: int = 10
    compressor: Stage = field(default_factory=lambda: RandomK(0.25))
    l1: float = 0.0
    citation: ClassVar[str] = (
        "Li, Kovalev, Qian, Richtárik. Acceleration for Compressed Gradient Descent in Distributed and Federated Optimization. ICML 2020."
    )
    card: ClassVar[Card] = Card(
        family="compressed", unbiased=True, everyone=True, note="Clients send two gradients. It does not use lr."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_unbiased(self.compressor, "ADIANA")
        require_weight(self.l1, "ADIANA")
        for name in ("mu", "smoothness", "omega", "clients"):
            value = getattr(self, name)
            if not (value > 0 and math.isfinite(value)):
                raise ConfigError(f"{name}={value}", where="ADIANA", remedy="use a positive, finite number")
        if self.mu > self.smoothness:
            raise ConfigError(
                f"mu={self.mu} above smoothness={self.smoothness}",
                where="ADIANA",
                remedy="strong convexity is at most the smoothness: use mu <= smoothness",
            )

    def settings(self) -> dict[str, float]:
        """Return ``p``, ``eta``, ``t1``, ``t2``, ``gam``, ``b``."""
        n, omega, mu, large = self.clients, self.omega, self.mu, self.smoothness
        p = min(1.0, max(1.0, math.sqrt(n / (32 * omega)) - 1) / (2 * (1 + omega)))
        eta = min(1 / (2 * large), n / (64 * omega * (2 * p * (omega + 1) + 1) ** 2 * large))
        t1 = min(0.25, math.sqrt(eta * mu / p))
        gam = eta / (2 * (t1 + eta * mu))
        return {"p": p, "eta": eta, "t1": t1, "t2": 0.5, "gam": gam, "b": 1 - gam * mu}

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply both gradients as differences to one shift."""
        del phase
        return (Shift(self.compressor, 1 / (1 + self.omega), "anchor"),)

    def init(self, params: Tree) -> Tree:
        """Start with the model as all points; ``"params"`` is ``y``."""
        return {"params": params, "z": params, "w": params}

    def _middle(self, state: Tree) -> Tree:
        s = self.settings()
        mixed = T.add(T.scale(state["z"], s["t1"]), T.scale(state["w"], s["t2"]))
        return T.add(mixed, T.scale(state["params"], 1 - s["t1"] - s["t2"]))

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send ``x`` and the anchor."""
        del phase
        return {"params": self._middle(state), "anchor": state["w"], "lr": self.lr}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with two unknown gradients."""
        local = super().start(broadcast, client)
        return {**local, "v": {"middle": local["v"], "anchor": local["v"]}}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return both gradients, on one mini-batch."""
        return {"middle": grad(local["params"]), "anchor": grad(broadcast["anchor"])}, local

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with both, in one aggregate: they share a shift."""
        del broadcast
        return {"gradients": Mean(local["v"], examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Move the three points."""
        del phase
        s, x = self.settings(), self._middle(state)
        moved = T.sub(x, T.scale(sums["gradients"]["middle"], s["eta"]))
        y = soft(moved, s["eta"] * self.l1)
        ahead = T.scale(T.sub(y, x), s["gam"] / s["eta"])
        z = T.add(T.add(T.scale(state["z"], s["b"]), T.scale(x, 1 - s["b"])), ahead)
        renew = float(info.rng.child("anchor").generator().random()) < s["p"]
        return {"params": y, "z": z, "w": state["params"] if renew else state["w"]}
