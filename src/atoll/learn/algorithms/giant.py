"""GIANT (Wang, Roosta, Xu, Mahoney 2018): the mean of the clients' Newton directions, found by conjugate gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree

from ..algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo
from ..card import Card
from ..curvature import cg_begin, cg_step
from .newton_type import GRADIENT, NewtonType

__all__ = ["GIANT", "armijo"]


_MOST = 1e30  # replaces an infinite loss, which would make the server reject the reply


@dataclass(frozen=True, kw_only=True)
class LossesAlong(Algorithm):
    """A pass that reports ``F_k(w - a p)`` for ``a = 0`` and for each trial step; the broadcast contains ``p`` as ``"direction"``.

    Attributes:
        sizes: the trial steps.
    """

    sizes: tuple[float, ...] = (1.0,)
    batch_size: int | None = None
    steps: int | None = 1
    card: ClassVar[Card] = Card(family="second order", part=True, note="A part of other algorithms: it does not train.")

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model, and no losses yet."""
        del client
        return {"params": broadcast["params"], "losses": (0.0,) * (1 + len(self.sizes))}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute the losses; the first is the loss of the model itself."""
        params, along = local["params"], broadcast["direction"]
        found = [grad.loss(params)]
        found += [grad.loss(T.sub(params, T.scale(along, size))) for size in self.sizes]
        return {"params": params, "losses": tuple(T.where(loss < _MOST, loss, _MOST) for loss in found)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Report the losses."""
        del broadcast, client
        return {
            "losses": Mean(local["losses"], examples=work.examples, role="side")
        }, None  # stages act only on updates


def armijo(losses: Sequence[Any], sizes: Sequence[float], slope: float, share: float) -> float:
    """Return the first ``a`` of ``sizes`` with ``F(w - a p) <= F(w) - share a max(0, <p, g>)``; 0 if there is none, so the loss never grows.

    Args:
        losses: ``F(w)``, and ``F(w - a p)`` for each ``a``.
        sizes: the trial steps, largest first.
        slope: ``<p, g>``.
        share: required share of the decrease that a linear model predicts.
    """
    before = float(losses[0])
    for size, loss in zip(sizes, losses[1:], strict=True):
        if float(loss) <= before - share * size * max(0.0, slope):
            return size
    return 0.0


# ---------------------------------------------------------------- GIANT (Wang, Roosta, Xu, Mahoney 2018)


@dataclass(frozen=True, kw_only=True)
class GIANT(NewtonType, Phased):
    """Each client solves ``H_k p_k = g`` with the global gradient ``g``; ``w <- w - a mean p_k`` with backtracking on the loss.

    Three exchanges per round: gradients (``d`` floats up), directions (``d``), and the loss at the model and at ``1 + halvings`` trial steps. A local
    step is one iteration of conjugate gradients, which needs only products with the Hessian. No client state. The server averages the directions,
    not the Hessians, so it converges linearly, the faster the more the clients' Hessians agree. A sampled cohort steps to its own optimum, and the next
    cohort to another: with ``lr=1``, the model stays about as far from the global optimum as these are.

    Attributes:
        lr: the first trial step.
        steps: iterations of conjugate gradients.
        halvings: trial steps ``lr 2^-j`` after the first.
        armijo: share of the linear decrease that a step must reach, in (0, 1/2].
    """

    steps: int | None = 20
    halvings: int = 10
    armijo: float = 1e-4
    phases: ClassVar[tuple[str, ...]] = ("gradient", "direction", "search")
    pooled: ClassVar[str] = "the mean of all gradients"
    citation: ClassVar[str] = (
        "Wang, Roosta, Xu, Mahoney. GIANT: Globally Improved Approximate Newton Method for Distributed Optimization. NeurIPS 2018."
    )
    card: ClassVar[Card] = Card(
        family="second order",
        unbiased=True,
        note="For convex losses. A sampled cohort approaches its own optimum. In a star only.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("halvings", self.halvings >= 0, "use 0 or more trial steps after the first")
        self._check("armijo", 0.0 < self.armijo <= 0.5, "use a share above 0 and at most 1/2")

    @property
    def sizes(self) -> tuple[float, ...]:
        """The trial steps, largest first."""
        return tuple(self.lr * 2.0**-j for j in range(1 + self.halvings))

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the gradient, the direction, or the losses along it."""
        if phase == "gradient":
            return (GRADIENT,)
        return (self,) if phase == "direction" else (LossesAlong(sizes=self.sizes),)

    def init(self, params: Tree) -> Tree:
        """Start with the model; no gradient and no direction yet."""
        return {"params": params, "gradient": T.zeros_like(params), "direction": T.zeros_like(params)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model, and what the phase needs."""
        sent = {"params": state["params"]}
        if phase == "gradient":
            return sent
        name = "gradient" if phase == "direction" else "direction"
        return {**sent, name: state[name]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with conjugate gradients before the first iteration."""
        del client
        return {"params": broadcast["params"], "solver": cg_begin(broadcast["gradient"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Run one iteration."""
        params = local["params"]
        return {"params": params, "solver": cg_step(local["solver"], lambda v: grad.hvp(params, v))}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with ``p_k``."""
        del broadcast, client
        return {"direction": Mean(local["solver"]["x"], examples=work.examples)}, None

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Keep ``g``, then ``p``, then step."""
        del info
        if phase != "search":
            return {**state, phase: sums[phase]}
        slope = float(T.dot(state["direction"], state["gradient"]))
        size = armijo(sums["losses"], self.sizes, slope, self.armijo)
        return {**state, "params": T.sub(state["params"], T.scale(state["direction"], size))}
