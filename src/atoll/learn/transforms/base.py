"""The contract of a transform: the operators V (direction) and U (memory) of the acceleration frameworks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from atoll.core.algebra.tree import Tree

__all__ = ["Transform", "apply_all", "init_all"]


@dataclass(frozen=True)
class Transform:
    """Turns a direction into another one, with its own memory; the base returns it unchanged.

    A step is ``y <- y - lr * v``: a direction points uphill. Both functions are pure and run on NumPy and in traced PyTorch, so use only
    operators and ``atoll.core.algebra.tree`` in them.

    Attributes:
        remembers: whether the transform has a memory.
    """

    remembers: ClassVar[bool] = False

    def init(self, params: Tree) -> Tree:
        """Return the memory before the first step: a tree of arrays in the dtypes of the parameters; ``{}`` for none."""
        del params
        return {}

    def apply(self, v: Tree, memory: Tree, y: Tree, x: Tree) -> tuple[Tree, Tree]:
        """Return one step's direction and the memory after it.

        Args:
            v: the direction so far.
            memory: the memory from ``init`` or the step before.
            y: the point at which the direction was computed.
            x: the point at which the round began.
        """
        del y, x
        return v, memory


def init_all(transforms: Sequence[Transform], params: Tree) -> list[Tree]:
    """Return the memories of a chain of transforms."""
    return [transform.init(params) for transform in transforms]


def apply_all(
    transforms: Sequence[Transform], v: Tree, memory: Sequence[Tree], y: Tree, x: Tree
) -> tuple[Tree, list[Tree]]:
    """Apply a chain of transforms, in order."""
    after: list[Tree] = []
    for transform, own in zip(transforms, memory, strict=True):
        v, left = transform.apply(v, own, y, x)
        after.append(left)
    return v, after
