"""A client's full gradient at the broadcast model: the anchor of variance-reduced and gradient-correcting methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork
from atoll.learn.card import Card

__all__ = ["FullGradient"]


@dataclass(frozen=True, kw_only=True)
class FullGradient(Algorithm):
    """A pass that takes ``grad F_k(w)`` over all local rows at the broadcast model and leaves the model alone.

    What it finds lies in the client's state under ``"anchor"`` for the next pass of the same contact, beside what was there. It costs one
    gradient of the whole local data, taken in one batch.

    Attributes:
        beside: the algorithm whose private state the gradient is put into; ``None`` for one without.
        reply: send the gradient (``"gradient"``, mean by examples) instead of keeping it.
    """

    batch_size: int | None = None
    steps: int | None = 1
    beside: Algorithm | None = None
    reply: bool = False
    card: ClassVar[Card] = Card(part=True, note="A part of other algorithms: it does not train.")

    def client_init(self, params: Tree) -> Tree:
        """That of the algorithm beside it."""
        return None if self.beside is None else self.beside.client_init(params)

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The model, and no gradient yet."""
        del client
        return {"params": broadcast["params"], "anchor": T.zeros_like(broadcast["params"])}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take the gradient."""
        del broadcast
        return {"params": local["params"], "anchor": grad(local["params"])}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send it, or leave it for the next pass."""
        del broadcast
        if self.reply:
            return {"gradient": Mean(local["anchor"], examples=work.examples)}, None
        return {}, {**(client or {}), "anchor": local["anchor"]}
