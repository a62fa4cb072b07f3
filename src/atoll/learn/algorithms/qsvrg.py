"""QSVRG: quantised stochastic variance reduction (Alistarh et al. 2017)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, Phased, RoundInfo
from atoll.learn.card import Card
from atoll.stages import QSGD

from .full_gradient import FullGradient
from .one_gradient import OneGradient, require_unbiased

__all__ = ["QSVRG"]


@dataclass(frozen=True, kw_only=True)
class QSVRG(OneGradient, Phased, Compressing):
    """Clients send ``Q(g_j(w) - g_j(w0) + mu)``, where ``w0`` is an anchor and ``mu`` the full gradient there; the server takes the step.

    Every ``period`` rounds, the anchor moves to the model, and the clients send their full gradients there, uncompressed. The direction vanishes at the
    optimum if clients are similar. If they disagree, ``g_k(w) - g_k(w0) + mu`` still does, because ``mu`` is the mean over clients.

    Attributes:
        period: number of rounds that an anchor lasts.
        compressor: an unbiased stage.
    """

    period: int = 10
    compressor: Stage = field(default_factory=QSGD)
    phases: ClassVar[tuple[str, ...]] = ("anchor", "train")
    citation: ClassVar[str] = (
        "Alistarh, Grubic, Li, Tomioka, Vojnovic. QSGD: Communication-Efficient SGD via Gradient Quantization and Encoding. NeurIPS 2017."
    )
    card: ClassVar[Card] = Card(
        family="compressed", unbiased=True, note="The server also sends the anchor and the mean gradient down."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_unbiased(self.compressor, "QSVRG")
        if self.period < 1:
            raise ConfigError(f"period={self.period}", where="QSVRG", remedy="use at least 1 round")

    def plan(self, state: Tree) -> tuple[str, ...]:
        """Return the phases, with an anchor first when due."""
        return self.phases if state["age"] == 0 else ("train",)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run full gradients for the anchor phase."""
        return (FullGradient(reply=True),) if phase == "anchor" else (self,)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply the compressor, except to full gradients."""
        return () if phase == "anchor" else (self.compressor,)

    def init(self, params: Tree) -> Tree:
        """Start with the model as the anchor, and no gradient there."""
        return {"params": params, "anchor": params, "mu": T.zeros_like(params), "age": 0}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model; in training also the anchor and the mean gradient there."""
        base = {"params": state["params"], "lr": self.lr}
        return base if phase == "anchor" else {**base, "anchor": state["anchor"], "mu": state["mu"]}

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``g_j(w) - g_j(w0) + mu``, on one mini-batch."""
        moved = T.sub(grad(local["params"]), grad(broadcast["anchor"]))
        return T.add(moved, broadcast["mu"]), local

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep the mean gradient at the anchor, or take the step."""
        if phase == "anchor":
            return {**state, "anchor": state["params"], "mu": sums["gradient"]}
        return super().fold(state, sums, info, phase)

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Count the round of the anchor."""
        del info
        return {**state, "age": (state["age"] + 1) % self.period}
