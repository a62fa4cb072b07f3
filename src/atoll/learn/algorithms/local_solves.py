"""Linear systems that a client solves with its own Hessian, one iteration of conjugate gradients per step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Gradient, LocalWork
from atoll.learn.card import Card
from atoll.learn.numerics.curvature import cg_begin, cg_step, damped, least_squares_begin, least_squares_step, ratio

from .newton_type import NewtonType

__all__ = ["CorrectedSolve", "LocalSolve"]


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
        squared = damped(lambda v: grad.hvp(params, grad.hvp(params, v)), self.damping)
        return {**local, "solver": cg_step(local["solver"], squared)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the result."""
        own, towards, image = local["own"], local["solver"]["x"], broadcast["image"]
        lacks = broadcast["least"] - T.dot(own, image)
        missing = T.where(lacks > 0, lacks, lacks * 0)
        right = T.add(own, T.scale(towards, ratio(missing, T.dot(image, towards))))
        return {"direction": Mean(right, examples=work.examples)}, None
