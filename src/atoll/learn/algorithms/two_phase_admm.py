"""Consensus ADMM with exact local solutions in two exchanges per round: the base of accelerated versions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.capability import Need
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.checks import require_count, require_positive
from atoll.learn.curvature import CURVED, augmented_minimum
from atoll.learn.proximal import or_rest, present

__all__ = ["DualPass", "TwoPhaseADMM"]


@dataclass(frozen=True, kw_only=True)
class TwoPhaseADMM(Algorithm, Phased, Stateful):
    """Consensus ADMM as in Boyd et al. 2011, section 7.1, with the multipliers at the clients.

    Phase ``"primal"``: ``x_k = argmin f_k(x) + <l_k, x> + (rho/2) ||x - z||^2``; the server computes ``z+ = (1/N) sum_k (x_k + l_k / rho)``.
    Phase ``"dual"``: ``l_k+ = l_k + rho (x_k - z+)``. A subclass chooses the point ``(z, l)`` of the next round from the second phase's replies.
    The server keeps the difference of that ``z`` from the model as ``"lead"``, so that it moves with the model. ``sum_k l_k = 0`` after every round,
    for any sent ``z``, so wrappers that move the model do not change the fixed point: ``x_k = z``, ``l_k = -grad f_k(z)``.

    Attributes:
        rho: penalty, positive.
        newton: Newton steps per local solution: 1 for a quadratic, a few for other losses.
        iterations: conjugate-gradient iterations per Newton step.
    """

    rho: float = 1.0
    newton: int = 3
    iterations: int = 20
    steps: int | None = 1
    batch_size: int | None = None
    phases: ClassVar[tuple[str, ...]] = ("primal", "dual")
    pooled: ClassVar[str] = "the mean of all solutions"
    card: ClassVar[Card] = Card(family="admm", unbiased=True, everyone=True, part=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive(type(self).__name__, rho=self.rho)
        require_count(type(self).__name__, newton=self.newton, iterations=self.iterations)

    @property
    def needs(self) -> tuple[Need, ...]:
        """The base's needs, and a loss with curvature for the local solutions."""
        return (*super().needs, CURVED)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the local solution, or the multiplier's step."""
        return (self,) if phase == "primal" else (DualPass(of=self),)

    def init(self, params: Tree) -> Tree:
        """Start with the model, its lead, and the point that clients received."""
        return {"params": params, "lead": T.zeros_like(params), "ahead": params}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the point ``z`` of this round and the subclass's entries; then ``z+``."""
        if phase == "dual":
            return {"params": state["params"]}
        return {"params": T.add(state["params"], state["lead"]), **self.make_message(state)}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``l_k = 0``."""
        zero = T.zeros_like(params)
        return {"x": params, "at": zero, **self.memory(zero)}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute the local solution."""
        z, settings = broadcast["params"], (self.rho, self.newton, self.iterations)
        return {**local, "params": augmented_minimum(grad, local["params"], local["at"], z, *settings)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the last solution, and the multiplier ``l_k`` of this round."""
        return {"params": client["x"], "at": self.point(broadcast, client)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with ``x_k + l_k / rho``, and keep both for the second phase."""
        pull = T.scale(local["at"], 1.0 / self.rho)
        x = or_rest(present(work.steps), local["params"], T.sub(broadcast["params"], pull))
        return {"message": Sum(T.add(x, pull))}, {**client, "x": x, "at": local["at"]}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update ``z+``, or the point of the next round."""
        if phase == "primal":
            ahead = T.add(state["params"], state["lead"])
            return {**state, "params": T.scale(sums["message"], 1.0 / info.population), "ahead": ahead}
        return self.chosen(state, sums, info)

    # ---------------------------------------------------------------- hooks for subclasses

    def make_message(self, state: Tree) -> Tree:
        """Return what the server sends with ``z``."""
        raise NotImplementedError

    def memory(self, zero: Tree) -> Tree:
        """Return what a client keeps in addition to ``x_k`` and the multiplier of this round."""
        raise NotImplementedError

    def point(self, broadcast: Tree, client: Tree) -> Tree:
        """Return the multiplier ``l_k`` at which this round starts."""
        raise NotImplementedError

    def reply_dual(self, dual: Tree, client: Tree) -> tuple[dict[str, Aggregate], Tree]:
        """Return the reply to the second phase and the client's memory, from ``l_k+``."""
        raise NotImplementedError

    def chosen(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo) -> Tree:
        """Return the server's state with the point of the next round."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class DualPass(Algorithm, Stateful):
    """``l_k+ = l_k + rho (x_k - z+)``; uses no data.

    Attributes:
        of: the ADMM method.
    """

    of: TwoPhaseADMM
    steps: int | None = 1
    batch_size: int | None = None
    card: ClassVar[Card] = Card(family="admm", part=True)

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Do nothing."""
        del grad, broadcast
        return local

    def client_init(self, params: Tree) -> Tree:
        """Start with the method's client state."""
        return self.of.client_init(params)

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply as the method does for the new multiplier."""
        del local, work
        gap = T.sub(client["x"], broadcast["params"])
        reply, memory = self.of.reply_dual(T.add(client["at"], T.scale(gap, self.of.rho)), client)
        return reply, {"x": client["x"], "at": client["at"], **memory}
