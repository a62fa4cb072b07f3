"""The distance of local solves from their first-order condition: a metric around any algorithm."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.capability import PROTECTION
from atoll.core.errors import CompositionError
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Phased
from atoll.learn.card import Card
from atoll.learn.wrapped import Wrapped, overrides

__all__ = ["FirstOrderResidual"]


@dataclass(frozen=True, kw_only=True)
class FirstOrderResidual(Wrapped):
    """Records ``residual = ||direction at w_k over all rows||``, the mean over clients by examples, in addition to the base's work.

    For FedProx, it is ``||grad F_k(w_k) + mu (w_k - W)||``, which is 0 after an exact solve and measures the error of an Upcycled round that reuses
    the gradient. It costs one more gradient over the client's rows. It is a separate pass, so mini-batch orders differ from those of the base
    alone. Around momentum, the direction is the momentum's.

    Raises:
        CompositionError: the base is private (the metric would leave without noise), draws random numbers, or runs several passes.
    """

    card: ClassVar[Card] = Card(family="wrapper", note="A measurement, not a method.")

    def __post_init__(self) -> None:
        super().__post_init__()
        several = any(len(facet(self.base, Phased).passes(phase)) != 1 for phase in self.base.phases)
        if PROTECTION in self.base.offers or overrides(self.base, "draw") or several:
            raise CompositionError(
                f"{type(self.base).__name__} is private, draws random numbers or runs several passes",
                where="FirstOrderResidual",
                remedy="measure the same algorithm without privacy; its local solves are equally exact",
            )

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the base's update, then the gradient at its end."""
        (part,) = facet(self.base, Phased).passes(phase)
        return (_Solve(base=part), _Measure(beside=part))


@dataclass(frozen=True, kw_only=True)
class _Solve(Wrapped):
    """The base's update; it leaves its result in the client's state for the next pass."""

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        reply, _ = self.base.finish(local, broadcast, client, work)
        return reply, {"local": local, "client": {} if client is None else {"state": client}, "steps": work.steps}


@dataclass(frozen=True, kw_only=True)
class _Measure(Algorithm):
    """One full-batch direction at the end of the update, and the base's reply."""

    beside: Algorithm
    batch_size: int | None = None
    steps: int | None = 1

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        del broadcast
        begun = client["local"]
        return {"params": begun["params"], "at": begun, "found": T.zeros_like(begun["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        found, _ = self.beside.direction(local["at"], grad, broadcast)
        return {**local, "found": found}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        own = client["client"].get("state")
        reply, kept = self.beside.finish(client["local"], broadcast, own, LocalWork(work.examples, client["steps"]))
        residual: Any = T.norm(local["found"])
        return {**reply, "residual": Mean(residual, examples=work.examples, role="metric")}, kept
