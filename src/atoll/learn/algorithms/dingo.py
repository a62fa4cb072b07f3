"""DINGO (Crane, Roosta 2019): Newton-type steps that reduce the norm of the gradient."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree

from ..algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo
from ..card import Card
from ..curvature import cg_begin, cg_step, damp_operator, least_squares_begin, least_squares_step, ratio
from .newton_type import GRADIENT, NewtonType

__all__ = ["DINGO"]


@dataclass(frozen=True, kw_only=True)
class LocalSolve(NewtonType):
    """``(H_k^2 + damping I)^-1 H_k g``; without damping, ``H_k^+ g`` and ``H_k g``.

    Attributes:
        damping: ``phi^2``, or 0.
        keeps: leave the result for the next pass of the contact.
    """

    damping: float = 0.0
    keeps: bool = False
    card: ClassVar[Card] = Card(family="second order", part=True, note="A part of other algorithms: it does not train.")

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with no iteration yet."""
        del client
        return {"params": broadcast["params"], "solver": least_squares_begin(broadcast["gradient"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Run one iteration."""
        params = local["params"]
        return {
            "params": params,
            "solver": least_squares_step(local["solver"], lambda v: grad.hvp(params, v), self.damping),
        }

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the result."""
        found = {"direction": local["solver"]["x"]}
        if not self.damping:
            found["image"] = local["solver"]["image"]
        reply: dict[str, Aggregate] = {name: Mean(value, examples=work.examples) for name, value in found.items()}
        return reply, found if self.keeps else None


@dataclass(frozen=True, kw_only=True)
class CorrectedSolve(NewtonType):
    """Case 3: ``p_k + lambda_k (H_k^2 + phi^2 I)^-1 H g``, with ``p_k`` from the pass before.

    Attributes:
        damping: ``phi^2``.
    """

    damping: float = 0.0
    card: ClassVar[Card] = Card(family="second order", part=True, note="A part of other algorithms: it does not train.")

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with no iteration yet."""
        solver = cg_begin(broadcast["image"])
        return {"params": broadcast["params"], "own": client["direction"], "solver": solver}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Run one iteration."""
        params = local["params"]
        squared = damp_operator(lambda v: grad.hvp(params, grad.hvp(params, v)), self.damping)
        return {**local, "solver": cg_step(local["solver"], squared)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the result."""
        own, towards, image = local["own"], local["solver"]["x"], broadcast["image"]
        lacks = broadcast["least"] - T.dot(own, image)
        missing = T.where(lacks > 0, lacks, lacks * 0)
        right = T.add(own, T.scale(towards, ratio(missing, T.dot(image, towards))))
        return {"direction": Mean(right, examples=work.examples)}, None


# ---------------------------------------------------------------- DINGO (Crane, Roosta 2019)


_SOLVES = ("curvature", "damped", "corrected")


@dataclass(frozen=True, kw_only=True)
class DINGO(NewtonType, Phased):
    """``w <- w - a p`` with a direction ``p`` that satisfies ``<p, H g> >= theta ||g||^2``, a sufficient decrease of ``||g||^2``.

    With the global ``g`` and ``H g = mean H_k g``, the direction is the first of these that satisfies it:

    1. ``p = mean H_k^+ g``;
    2. ``p = mean (H_k^2 + phi^2 I)^-1 H_k g``;
    3. the same, but a client ``k`` with ``<p_k, H g> < theta ||g||^2`` for its own ``p_k`` adds ``lambda_k (H_k^2 + phi^2 I)^-1 H g`` with the
       ``lambda_k > 0`` that gives equality.

    Then ``a = lr 2^-j`` is halved until ``||g(w - a p)||^2 <= ||g||^2 - 2 rho a <p, H g>``; if no trial does, the model stays. The loss need not be
    convex, and the Hessians need not be invertible. A local step is one iteration of conjugate gradients with two Hessian-vector products. No client state.

    In the paper, clients send the answers for cases 1 and 2 together. Here, the server asks for the second only if the first fails, and for trial points
    one at a time. So a round usually has three exchanges: ``d``, ``2d`` and ``d`` floats up. A sampled cohort steps towards the zero of its own
    gradient, and the next cohort towards another.

    Attributes:
        lr: the first trial step.
        steps: iterations of conjugate gradients.
        theta: the required decrease, above 0; with a smaller value, case 1 holds more often.
        phi: damping of cases 2 and 3, positive.
        rho: share of the predicted decrease that a step must reach, in (0, 1).
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
        # All phases that a round may have, the trial points too: what a mechanism of privacy promises counts them.
        phases = (*type(self).phases, *(f"search{j}" for j in range(1, 1 + self.halvings)))
        object.__setattr__(self, "phases", phases)

    def wanted(self, state: Tree, phase: str) -> bool:
        """Return whether the phase is needed: later cases only if earlier ones fail, trial points until one succeeds."""
        if phase.startswith("search"):
            return not state["found"]
        return phase not in ("damped", "corrected") or not state["case"]

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run a gradient (of the model or of a trial point), or the systems of a case."""
        plain, with_damping = LocalSolve(steps=self.steps), LocalSolve(steps=self.steps, damping=self.phi**2)
        if phase == "corrected":
            return (replace(with_damping, keeps=True), CorrectedSolve(steps=self.steps, damping=self.phi**2))
        return {"curvature": (plain,), "damped": (with_damping,)}.get(phase, (GRADIENT,))

    def init(self, params: Tree) -> Tree:
        """Start with the model, and empty results of a round."""
        zero = T.zeros_like(params)
        return {"params": params, "gradient": zero, "image": zero, "direction": zero, "case": 0, "found": False}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model or a trial point, and what a case needs."""
        if phase.startswith("search"):
            return {"params": self._trial(state, phase)}
        sent = {"params": state["params"]}
        if phase == "corrected":
            sent["image"], sent["least"] = state["image"], self.theta * float(_square(state["gradient"]))
        return sent if phase == "gradient" else {**sent, "gradient": state["gradient"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep ``g``; or keep ``H g`` and a direction, and note the case; or take the trial point if it decreases enough."""
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
    """Return ``<p, H g>``: half the decrease of ``||g||^2`` per unit of a small step."""
    return float(T.dot(state["direction"], state["image"]))
