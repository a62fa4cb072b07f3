"""Trees of arrays: the values that algorithms compute with.

A tree is a dict, list or tuple whose leaves are arrays or scalars. Every function here is written once and runs on NumPy arrays and on
PyTorch tensors (eager, vectorised or compiled): it dispatches on the type of the leaf, so algorithms never name a library.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..errors import ConfigError, DataError

__all__ = [
    "Ragged",
    "Tree",
    "add",
    "dot",
    "items",
    "leaves",
    "map",
    "mul",
    "namespace",
    "norm",
    "rebuild",
    "scale",
    "sign",
    "size",
    "sqrt",
    "square",
    "stack",
    "sub",
    "topk",
    "unstack_trees",
    "where",
    "zeros_like",
]

Tree = Any
"""A nested dict, list or tuple with array or scalar leaves."""

_builtin_map = map
_ROWS = (list, tuple)  # an inline union would be rebuilt at every leaf
_BRANCHES = (dict, list, tuple)
_ARRAY = np.ndarray
_OF_NUMPY = (np.ndarray, np.generic)


class Ragged:
    """A leaf of a block whose clients have arrays of different lengths: index it by client, as an array with a leading client axis.

    Args:
        rows: one array a client.
    """

    def __init__(self, rows: Sequence[Any]) -> None:
        self.rows = list(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        return self.rows[i]


def namespace(leaf: Any) -> Any:
    """Return the array library of a leaf: ``torch`` for tensors, NumPy for everything else."""
    if isinstance(leaf, _OF_NUMPY):
        return np
    # A subclass of a tensor type is a tensor, wherever it is defined.
    of_torch = any(base.__module__.partition(".")[0] == "torch" for base in type(leaf).__mro__)
    return sys.modules["torch"] if of_torch else np


def map(fn: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:  # noqa: A001 - the field's word
    """Apply ``fn`` to corresponding leaves, and keep the structure of the first tree.

    Raises:
        DataError: a later tree has other keys or another length.
    """
    # Nearly every step of every algorithm maps one or two dicts of arrays: these branches save a call per leaf. Errors are found below.
    if type(tree) is dict:
        if not rest:
            return {key: fn(leaf) if type(leaf) is _ARRAY else map(fn, leaf) for key, leaf in tree.items()}
        other = rest[0]
        if len(rest) == 1 and type(other) is dict and other.keys() == tree.keys():
            return {
                key: fn(one, two) if type(one) is type(two := other[key]) is _ARRAY else map(fn, one, two)
                for key, one in tree.items()
            }
    return _map(fn, tree, rest)


def _map(fn: Callable[..., Any], tree: Tree, rest: Sequence[Tree]) -> Tree:
    if isinstance(tree, dict):
        for other in rest:
            if not isinstance(other, dict) or other.keys() != tree.keys():
                raise _mismatch(tree, other)
        return {key: map(fn, value, *[other[key] for other in rest]) for key, value in tree.items()}
    if isinstance(tree, _ROWS):
        for other in rest:
            if not isinstance(other, _ROWS) or len(other) != len(tree):
                raise _mismatch(tree, other)
        parts = [map(fn, value, *[other[i] for other in rest]) for i, value in enumerate(tree)]
        return parts if isinstance(tree, list) else tuple(parts)
    for other in rest:
        if isinstance(other, _BRANCHES):
            raise _mismatch(tree, other)
    return fn(tree, *rest)


def _mismatch(first: Tree, other: Tree) -> DataError:
    def shape(tree: Tree) -> str:
        if isinstance(tree, dict):
            return f"a dict with keys {sorted(tree)}"
        if isinstance(tree, _ROWS):
            return f"a {type(tree).__name__} of {len(tree)}"
        return f"a leaf of type {type(tree).__name__}"

    return DataError(
        f"two trees differ in structure: {shape(first)} against {shape(other)}",
        remedy="combine only trees of the same model",
    )


def items(tree: Tree, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield ``(path, leaf)`` pairs, for example ``("layer1/weight", array)``."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from items(value, f"{path}/{key}" if path else str(key))
    elif isinstance(tree, _ROWS):
        for i, value in enumerate(tree):
            yield from items(value, f"{path}[{i}]")
    else:
        yield path, tree


def leaves(tree: Tree) -> list[Any]:
    """Return the leaves in order."""
    if isinstance(tree, dict):
        branch: Any = tree.values()
    elif isinstance(tree, _ROWS):
        branch = tree
    else:
        return [tree]
    found: list[Any] = []
    for value in branch:
        if type(value) is _ARRAY:  # saves a call per leaf
            found.append(value)
        else:
            found.extend(leaves(value))
    return found


def rebuild(tree: Tree, new_leaves: Iterator[Any] | list[Any]) -> Tree:
    """Return a tree of the same structure with other leaves, taken in order."""
    fresh = iter(new_leaves)
    return map(lambda _: next(fresh), tree)


def add(a: Tree, b: Tree) -> Tree:
    """``a + b``, leaf by leaf."""
    return map(operator.add, a, b)


def sub(a: Tree, b: Tree) -> Tree:
    """``a - b``, leaf by leaf."""
    return map(operator.sub, a, b)


def mul(a: Tree, b: Tree) -> Tree:
    """``a * b``, leaf by leaf."""
    return map(operator.mul, a, b)


def scale(tree: Tree, factor: Any) -> Tree:
    """``factor * tree``. A Python scalar keeps the dtype of the leaves."""
    return map(lambda leaf: leaf * factor, tree)


def square(tree: Tree) -> Tree:
    """``tree * tree``, leaf by leaf."""
    return map(lambda leaf: leaf * leaf, tree)


def sqrt(tree: Tree) -> Tree:
    """The square root of every entry."""
    return map(lambda leaf: namespace(leaf).sqrt(leaf), tree)


def sign(tree: Tree) -> Tree:
    """The sign of every entry: -1, 0 or 1."""
    return map(lambda leaf: namespace(leaf).sign(leaf), tree)


def where(condition: Tree, a: Tree, b: Tree) -> Tree:
    """Entries of ``a`` where the condition holds, of ``b`` elsewhere."""
    return map(lambda c, x, y: namespace(c).where(c, x, y), condition, a, b)


def stack(leaf_list: Sequence[Any]) -> Any:
    """Stack equal-shaped leaves along a new leading axis."""
    xp = namespace(leaf_list[0])
    return xp.stack(list(leaf_list))


def unstack_trees(tree: Tree, count: int) -> list[Tree]:
    """The trees of a block's clients, in order: the inverse of stacking ``count`` of them. A leaf ``None`` applies to all clients."""
    if isinstance(tree, dict):
        columns = [unstack_trees(value, count) for value in tree.values()]
        return [dict(zip(tree, row, strict=True)) for row in zip(*columns, strict=True)] if tree else [{}] * count
    if isinstance(tree, _ROWS):
        columns = [unstack_trees(value, count) for value in tree]
        made: list[Tree] = list(zip(*columns, strict=True)) if tree else [()] * count
        return [list(row) for row in made] if isinstance(tree, list) else made
    return [None] * count if tree is None else list(tree)


def zeros_like(tree: Tree) -> Tree:
    """Zeros of the same shapes and dtypes."""
    return map(lambda leaf: namespace(leaf).zeros_like(leaf), tree)


def dot(a: Tree, b: Tree) -> Any:
    """The inner product over all leaves."""
    total: Any = 0.0
    for x, y in zip(leaves(a), leaves(b), strict=True):
        total = total + (x * y).sum()
    return total


def norm(tree: Tree) -> Any:
    """The Euclidean norm over all leaves, ``sqrt(sum_i x_i^2)``."""
    total = dot(tree, tree)
    return namespace(total).sqrt(total)


def size(tree: Tree) -> int:
    """The number of entries in all leaves."""
    return sum(math.prod(np.shape(leaf)) for leaf in leaves(tree))


def topk(tree: Tree, fraction: float) -> Tree:
    """Keep the largest entries by magnitude in each leaf and set the others to zero.

    In a leaf with ``d`` entries, ``max(1, floor(fraction * d))`` are kept; entries that tie with the smallest kept one are kept too.

    Raises:
        ConfigError: a fraction outside [0, 1].
    """
    if not 0.0 <= fraction <= 1.0:
        raise ConfigError(f"fraction={fraction}", where="topk", remedy="use a share from 0 to 1")

    def keep(leaf: Any) -> Any:
        if 0 in leaf.shape:
            return leaf
        xp = namespace(leaf)
        flat = abs(leaf).reshape(-1)
        count = max(1, int(fraction * flat.shape[0]))
        if xp is np:
            threshold = np.partition(flat, flat.shape[0] - count)[flat.shape[0] - count]
        else:
            threshold = xp.topk(flat, count).values[-1]
        return xp.where(abs(leaf) >= threshold, leaf, xp.zeros_like(leaf))

    return map(keep, tree)
