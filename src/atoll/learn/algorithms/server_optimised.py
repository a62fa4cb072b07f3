"""Server optimisers: transforms of the mean update, around any algorithm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_positive
from atoll.learn.transforms import Momentum, Transform, apply_all, init_all
from atoll.learn.wrapped import Moving

__all__ = ["ServerOptimised"]


@dataclass(frozen=True, kw_only=True)
class ServerOptimised(Moving):
    """Any algorithm, with its move of the model used as a gradient: ``w <- w - server_lr * V(w - w_base, memory)``.

    ``w_base`` is where the base's folds of the round led, and ``w`` where the round began. Reddi et al. 2021, "Adaptive Federated Optimization", Algorithm 1.
    A round of the server alone does not change the memory.

    Attributes:
        base: the algorithm inside.
        transforms: the transforms, in the order in which they act.
        server_lr: step size of the server.
    """

    transforms: tuple[Transform, ...] = field(default=())
    server_lr: float = 1.0
    citation: ClassVar[str] = (
        "Reddi, Charles, Zaheer, Garrett, Rush, Konečný, Kumar, McMahan. Adaptive Federated Optimization. ICLR 2021."
    )
    card: ClassVar[Card] = Card(family="wrapper", note="It adds no bytes.", example={"transforms": (Momentum(),)})

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("ServerOptimised", server_lr=self.server_lr)

    def init(self, params: Tree) -> Tree:
        """Start with the base's state, and the optimiser's memory."""
        return {**super().init(params), "optimiser": init_all(self.transforms, params)}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Fold as the base does; if a round has one phase, also take the server's step."""
        begun = state.get("begun", state["params"])
        after = {**super().fold(state, sums, info, phase), "begun": begun}
        return self._take_step(after) if self.phases == (phase,) else after

    def advance(self, state: Tree, info: RoundInfo) -> Tree:
        """Take the server's step after several phases, then advance as the base does; without a phase, the memory stays unchanged."""
        return super().advance(self._take_step(state) if "begun" in state else state, info)

    def _take_step(self, state: Tree) -> Tree:
        """Return the state after a step from where the round began."""
        rest, begun = {name: value for name, value in state.items() if name != "begun"}, state["begun"]
        v, memory = apply_all(self.transforms, T.sub(begun, state["params"]), state["optimiser"], begun, begun)
        return {**rest, "params": T.sub(begun, T.scale(v, self.server_lr)), "optimiser": memory}
