"""DINGO (Crane, Roosta 2019): Newton-type steps that make the norm of the gradient smaller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, RoundInfo
from atoll.learn.card import Card

from .local_solves import CorrectedSolve, LocalSolve
from .newton_type import GRADIENT, NewtonType

__all__ = ["DINGO"]

_SOLVES = ("curvature", "damped", "corrected")


@dataclass(frozen=True, kw_only=True)
class DINGO(NewtonType):
    """``w <- w - a p`` with a direction ``p`` along which ``||g||^2`` falls at least as ``<p, H g> >= theta ||g||^2`` promises.

    With the global ``g`` and ``H g = mean H_k g`` the first of these that keeps the promise:

    1. ``p = mean H_k^+ g``;
    2. ``p = mean (H_k^2 + phi^2 I)^-1 H_k g``;
    3. the same, but a client ``k`` whose own ``p_k`` has ``<p_k, H g> < theta ||g||^2`` adds ``lambda_k (H_k^2 + phi^2 I)^-1 H g`` with the
       ``lambda_k > 0`` that makes it equal.

    Then ``a = lr 2^-j`` is halved until ``||g(w - a p)||^2 <= ||g||^2 - 2 rho a <p, H g>``; if none does, the model stays. The loss need not be
    convex, nor the Hessians invertible. A local step is one iteration of conjugate gradients with two Hessian-vector products. No client state.

    The paper's clients send the answers for cases 1 and 2 together; here the second is asked for only when the first fails, and trial points
    one after the other. So a round is usually three exchanges: ``d``, ``2d`` and ``d`` floats up. A sampled cohort steps to where its own gradient
    ends, and the next one to elsewhere.

    Attributes:
        lr: the first trial step.
        steps: iterations of conjugate gradients.
        theta: the decrease that is promised, above 0; smaller keeps to case 1 more often.
        phi: damping of cases 2 and 3, positive.
        rho: share of the promise that a step must bring, in (0, 1).
        halvings: trial steps after the first.
    """

    steps: int | None = 20
    theta: float = 1e-4
    phi: float = 1e-3
    rho: float = 1e-4
    halvings: int = 10
    phases: ClassVar[tuple[str, ...]] = ("gradient", *_SOLVES, "search")
    pooled: ClassVar[str] = "the mean of all gradients"
    citation: ClassVar[str] = (
        "Crane, Roosta. DINGO: Distributed Newton-Type Method for Gradient-Norm Optimization. NeurIPS 2019."
    )
    card: ClassVar[Card] = Card(
        family="second order",
        unbiased=True,
        note="It finds a stationary point. A sampled cohort approaches its own optimum. In a star only.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("theta", self.theta > 0, "use a positive number")
        self._check("phi", self.phi > 0, "use a positive damping")
        self._check("rho", 0.0 < self.rho < 1.0, "use a share above 0 and below 1")
        self._check("halvings", self.halvings >= 0, "use 0 or more")

    def plan(self, state: Tree) -> tuple[str, ...]:
        """The gradient, the three cases, and the trial points."""
        del state
        return (*self.phases, *(f"search{j}" for j in range(1, 1 + self.halvings)))

    def wanted(self, state: Tree, phase: str) -> bool:
        """Later cases only where the earlier ones fail; trial points until one does."""
        if phase.startswith("search"):
            return not state["found"]
        return phase not in ("damped", "corrected") or not state["case"]

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """A gradient (of the model or of a trial point), or the systems of a case."""
        plain, with_damping = LocalSolve(steps=self.steps), LocalSolve(steps=self.steps, damping=self.phi**2)
        if phase == "corrected":
            return (replace(with_damping, keeps=True), CorrectedSolve(steps=self.steps, damping=self.phi**2))
        return {"curvature": (plain,), "damped": (with_damping,)}.get(phase, (GRADIENT,))

    def init(self, params: Tree) -> Tree:
        """The model, and what a round finds out."""
        zero = T.zeros_like(params)
        return {"params": params, "gradient": zero, "image": zero, "direction": zero, "case": 0, "found": False}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """The model or a trial point, and what a case needs."""
        if phase.startswith("search"):
            return {"params": self._trial(state, phase)}
        sent = {"params": state["params"]}
        if phase == "corrected":
            sent["image"], sent["least"] = state["image"], self.theta * float(_square(state["gradient"]))
        return sent if phase == "gradient" else {**sent, "gradient": state["gradient"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep ``g``; keep ``H g`` and a direction, and say which case it is; or take the trial point if it keeps its promise."""
        del info
        if phase == "gradient":
            return {**state, "gradient": sums["gradient"], "case": 0, "found": False}
        if phase in _SOLVES:
            after = {**state, **{name: sums[name] for name in ("image", "direction") if name in sums}}
            number = 1 + _SOLVES.index(phase)
            keeps = _promise(after) >= self.theta * float(_square(state["gradient"]))
            return {**after, "case": number if keeps or number == 3 else 0}
        most = float(_square(state["gradient"])) - 2 * self.rho * self._size(phase) * _promise(state)
        if not float(_square(sums["gradient"])) <= most:
            return state
        return {**state, "params": self._trial(state, phase), "found": True}

    def _size(self, phase: str) -> float:
        return float(self.lr * 0.5 ** int(phase.removeprefix("search") or 0))

    def _trial(self, state: Tree, phase: str) -> Tree:
        return T.sub(state["params"], T.scale(state["direction"], self._size(phase)))


def _square(tree: Tree) -> Any:
    return T.dot(tree, tree)


def _promise(state: Tree) -> float:
    """``<p, H g>``: half of what ``||g||^2`` falls by for a small step, by its length."""
    return float(T.dot(state["direction"], state["image"]))
