"""The base class of stages with memory: one client is a block of one, and a first reply starts from ``fresh``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.requests.context import StageContext
from atoll.core.requests.stage import Stage, WithMemory

if TYPE_CHECKING:
    pass

__all__ = ["Remembering", "one_of"]


@dataclass(frozen=True)
class Remembering(Stage, WithMemory):
    """A stage defined by ``fresh`` and ``remember_block``; the other methods follow from these two."""

    remembers: ClassVar[bool] = True

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Encode a first reply, without memory."""
        return self.remember(value, self.fresh(value), context)[0]

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Encode first replies, without memory."""
        fresh = self.fresh(T.map(lambda leaf: leaf[0], block))
        many = T.map(lambda leaf: np.repeat(np.asarray(leaf)[None], len(context.keys), axis=0), fresh)
        return self.remember_block(block, many, context)[0]

    def remember(self, value: Tree, memory: Tree, context: StageContext) -> tuple[Tree, Tree]:
        """Encode a block of one."""
        sent, kept = self.remember_block(one_of(value), one_of(memory), context)
        return T.map(lambda leaf: leaf[0], sent), T.map(lambda leaf: leaf[0], kept)


def one_of(tree: Tree) -> Tree:
    """Turn one client's tree into a block of one."""

    def lead(leaf: Any) -> Any:
        return leaf[None] if getattr(leaf, "ndim", 0) else np.asarray(leaf)[None]

    return T.map(lead, tree)
