"""A client's full gradient at the broadcast model: the anchor of variance-reduced and gradient-correcting methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, Stateful
from atoll.learn.card import Card

__all__ = ["FullGradient"]


@dataclass(frozen=True, kw_only=True)
class FullGradient(Algorithm, Stateful):
    """A pass that computes ``grad F_k(w)`` over all local rows at the broadcast model and does not change the model.

    It puts the gradient into the client's state as ``"anchor"`` for the next pass of the same contact, next to the existing entries. It costs one
    gradient over all local data, in one batch.

    Attributes:
        beside: the algorithm with the private state that receives the gradient; ``None`` for one without.
        reply: send the gradient (``"gradient"``, mean by examples) instead of keeping it.
    """

    batch_size: int | None = None
    steps: int | None = 1
    beside: Algorithm | None = None
    reply: bool = False
    card: ClassVar[Card] = Card(part=True, note="A part of other algorithms: it does not train.")

    def client_init(self, params: Tree) -> Tree:
        """Start with the client state of the algorithm ``beside``."""
        return None if self.beside is None else facet(self.beside, Stateful).client_init(params)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model, and no gradient yet."""
        del client
        return {"params": broadcast["params"], "anchor": T.zeros_like(broadcast["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute the gradient."""
        del broadcast
        return {"params": local["params"], "anchor": grad(local["params"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send the gradient, or leave it for the next pass."""
        del broadcast
        if self.reply:
            return {"gradient": Mean(local["anchor"], examples=work.examples)}, None
        return {}, {**(client or {}), "anchor": local["anchor"]}
