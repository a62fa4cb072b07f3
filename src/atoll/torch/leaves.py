"""Trees to flat lists of tensors and back: compiled programs take and return flat lists."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch

from atoll.core.algebra.aggregate import Aggregate, Role
from atoll.core.algebra.tree import Tree

__all__ = ["Layout", "ReplyKind", "flatten", "join_reply", "split_reply", "to_tensor"]


@dataclass(frozen=True)
class _Slot:
    """A placeholder for the ``index``-th tensor of the flat list."""

    index: int


@dataclass(frozen=True)
class Layout:
    """The structure of a tree: where each tensor goes, and the leaves that are not numbers."""

    skeleton: Tree
    count: int

    def build(self, tensors: Sequence[Any]) -> Tree:
        """Put tensors back into the tree."""

        def fill(node: Tree) -> Tree:
            if isinstance(node, dict):
                return {key: fill(value) for key, value in node.items()}
            if isinstance(node, list | tuple):
                return type(node)(fill(value) for value in node)
            return tensors[node.index] if isinstance(node, _Slot) else node

        return fill(self.skeleton)

    @property
    def key(self) -> str:
        """Return a key that is equal for equal structures and equal fixed leaves."""
        return repr(self.skeleton)


def flatten(tree: Tree) -> tuple[list[Any], Layout]:
    """Split a tree into its numeric leaves and its structure.

    Arrays, tensors, ints and floats are numeric; ``None``, booleans and strings belong to the structure.
    """
    found: list[Any] = []

    def walk(node: Tree) -> Tree:
        if isinstance(node, dict):
            return {key: walk(value) for key, value in node.items()}
        if isinstance(node, list | tuple):
            return type(node)(walk(value) for value in node)
        if isinstance(node, torch.Tensor | np.ndarray | np.number | int | float) and not isinstance(node, bool):
            found.append(node)
            return _Slot(len(found) - 1)
        return node

    skeleton = walk(tree)
    return found, Layout(skeleton, len(found))


def to_tensor(leaf: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    """Return a leaf as a tensor: floating point in ``dtype``, whole numbers in int64, on the device.

    The result may share memory with the leaf and must not be written to.
    """
    if isinstance(leaf, torch.Tensor):
        tensor = leaf
    elif isinstance(leaf, np.ndarray):
        tensor = torch.from_numpy(leaf if leaf.flags.writeable and leaf.flags.c_contiguous else leaf.copy())
    else:
        tensor = torch.tensor(leaf, dtype=torch.float64 if isinstance(leaf, float) else None)
    if tensor.is_floating_point():
        return tensor.to(device=device, dtype=dtype)
    return tensor.to(device=device, dtype=tensor.dtype if tensor.dtype == torch.bool else torch.int64)


@dataclass(frozen=True)
class ReplyKind:
    """The fixed properties of a named aggregate of a reply: its class and its role."""

    aggregate: type[Aggregate]
    role: Role


def split_reply(reply: dict[str, Aggregate]) -> tuple[Tree, dict[str, ReplyKind]]:
    """Take a reply apart into a plain tree of its fields and the kinds."""
    tree = {name: dict(_fields(aggregate)) for name, aggregate in reply.items()}
    return tree, {name: ReplyKind(type(aggregate), aggregate.role) for name, aggregate in reply.items()}


def join_reply(tree: Tree, kinds: dict[str, ReplyKind]) -> dict[str, Aggregate]:
    """Put a reply back together."""
    return {name: kind.aggregate(**tree[name], role=kind.role) for name, kind in kinds.items()}


def _fields(aggregate: Aggregate) -> Iterator[tuple[str, Any]]:
    for field in fields(aggregate):
        if field.name != "role":
            yield field.name, getattr(aggregate, field.name)
