"""The base of combinators: stages with memory around another stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from atoll.core import tree as T
from atoll.core.errors import CompositionError
from atoll.core.rng import Rng
from atoll.core.stage import Stage
from atoll.core.tree import Tree

from .topk import TopK

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Around", "one_of"]


@dataclass(frozen=True)
class Around(Stage):
    """Base of combinators: a stage that feeds another one and remembers. One client is a block of one.

    Attributes:
        stage: the stage inside, a value stage without memory.
    """

    stage: Stage = field(default_factory=TopK)
    remembers: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.stage, Stage) or self.stage.on != "value" or self.stage.remembers:
            raise CompositionError(
                f"{type(self).__name__} around {type(self.stage).__name__}",
                where="uplink",
                remedy="put a stage inside that acts on values and has no memory of its own, such as TopK or Sign",
            )
        for name in ("summable", "packs"):
            object.__setattr__(self, name, getattr(self.stage, name))

    def public(self, rng: Rng) -> Tree:
        """The inner stage's."""
        return self.stage.public(rng)

    def encode(self, value: Tree, public: Tree, rng: Rng) -> Tree:
        """A first reply: nothing is remembered."""
        return self.remember(value, self.fresh(value), public, rng)[0]

    def encode_block(self, block: Tree, public: Tree, keys: NDArray[np.uint64]) -> Tree:
        """First replies."""
        fresh = self.fresh(T.map(lambda leaf: leaf[0], block))
        many = T.map(lambda leaf: np.repeat(np.asarray(leaf)[None], len(keys), axis=0), fresh)
        return self.remember_block(block, many, public, keys)[0]

    def remember(self, value: Tree, memory: Tree, public: Tree, rng: Rng) -> tuple[Tree, Tree]:
        """A block of one."""
        sent, kept = self.remember_block(one_of(value), one_of(memory), public, np.array([rng.key], dtype=np.uint64))
        return T.map(lambda leaf: leaf[0], sent), T.map(lambda leaf: leaf[0], kept)

    def bits(self, value: Tree) -> int | None:
        """The inner stage's."""
        return self.stage.bits(value)


def one_of(tree: Tree) -> Tree:
    """A block of one client."""

    def lead(leaf: Any) -> Any:
        return leaf[None] if getattr(leaf, "ndim", 0) else np.asarray(leaf)[None]

    return T.map(lead, tree)
