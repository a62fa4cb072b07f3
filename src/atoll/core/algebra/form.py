"""The form of a private state: its structure, and the kind, dtype and shape of each leaf. States of one form are rows of one table."""

from __future__ import annotations

import json
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from . import tree as T
from .tree import Tree

__all__ = ["Form", "Leaf", "form_of", "form_of_block", "kinds_of_block", "safetensors_of"]


_PLAIN = {float: "float", int: "int", bool: "bool", complex: "complex", type(None): "none"}
_BACK: dict[str, Any] = {"float": float, "int": int, "bool": bool, "complex": complex}
_DTYPES = {"float": "<f8", "int": "<i8", "bool": "|b1", "complex": "<c16", "none": "|V0"}
_WIDEST = {"b": 1, "i": 8, "u": 8, "f": 8, "c": 16}  # bytes of the widest dtypes that are equal on all machines
_MOST_BYTES = 1 << 30  # NumPy counts the bytes of a row in 31 bits


@dataclass(frozen=True)
class Leaf:
    """A leaf of a form.

    Attributes:
        kind: array, scalar (of NumPy), float, int, bool, complex or none.
        dtype: dtype of its column.
        shape: shape of one client's value.
    """

    kind: str
    dtype: str
    shape: tuple[int, ...] = ()

    def value(self, row: Any) -> Any:
        """A client's value from its row of the column; an array is copied."""
        if self.kind == "array":
            return np.array(row)
        return row if self.kind == "scalar" else _BACK[self.kind](row)


@dataclass(frozen=True)
class Form:
    """What states must have in common to be rows of one table.

    Attributes:
        structure: containers and keys.
        leaves: the leaves, in order.
        skeleton: any tree of this structure.
    """

    structure: Hashable
    leaves: tuple[Leaf, ...]
    skeleton: Tree = field(compare=False, repr=False)

    @property
    def kinds(self) -> list[str]:
        """The kind of each leaf."""
        return [leaf.kind for leaf in self.leaves]

    @property
    def record(self) -> np.dtype[Any]:
        """A row: one field for each leaf that is not ``None``, by its index."""
        fields = [(str(i), leaf.dtype, leaf.shape) for i, leaf in enumerate(self.leaves) if leaf.kind != "none"]
        return np.dtype(fields, align=True)

    def build(self, values: Sequence[Any]) -> Tree:
        """Build a tree of this structure."""
        return T.rebuild(self.skeleton, iter(values))


def form_of(state: Tree) -> tuple[Form, list[Any]] | None:
    """The form and the leaves of one client's state; ``None`` for a state that columns cannot store (text, tensors, no leaves)."""
    values = T.leaves(state)
    leaves = [_leaf(value) for value in values]
    return _form(state, leaves, values)


def form_of_block(stacked: Tree, kinds: Sequence[str], count: int) -> tuple[Form, list[Any]] | None:
    """The same for stacked states: leaves with a leading client axis of ``count``."""
    values = T.leaves(stacked)
    leaves: list[Leaf | None] = []
    for kind, value in zip(kinds, values, strict=True):
        if kind == "none":
            leaves.append(Leaf(kind, _DTYPES[kind]))
            continue
        plain = _plain_array(value) and len(value) == count
        leaves.append(Leaf(kind, value.dtype.str, value.shape[1:]) if plain else None)
    return _form(stacked, leaves, values)


def kinds_of_block(stacked: Tree) -> list[str]:
    """Kinds of the leaves of a block that a task made: a vector has one NumPy scalar a client."""
    return ["none" if leaf is None else "scalar" if np.ndim(leaf) == 1 else "array" for leaf in T.leaves(stacked)]


def _form(tree: Tree, leaves: Sequence[Leaf | None], values: list[Any]) -> tuple[Form, list[Any]] | None:
    known = tuple(leaf for leaf in leaves if leaf is not None)
    if len(known) < len(leaves):
        return None
    nbytes = sum(np.dtype(leaf.dtype).itemsize * math.prod(leaf.shape) for leaf in known)
    if not 0 < nbytes < _MOST_BYTES:
        return None
    return Form(_structure(tree), known, tree if not values else T.map(lambda _: None, tree)), values


def _leaf(value: Any) -> Leaf | None:
    kind = _PLAIN.get(type(value))
    if kind is not None:
        fits = kind != "int" or -(1 << 63) <= value < 1 << 63
        return Leaf(kind, _DTYPES[kind]) if fits else None
    if _plain_array(value):
        return Leaf("array", value.dtype.str, value.shape)
    if isinstance(value, np.generic) and _WIDEST.get(value.dtype.kind, 0) >= value.dtype.itemsize:
        return Leaf("scalar", value.dtype.str)
    return None


def _plain_array(value: Any) -> bool:
    return type(value) in (np.ndarray, np.memmap) and _WIDEST.get(value.dtype.kind, 0) >= value.dtype.itemsize


def _structure(tree: Tree) -> Hashable:
    if isinstance(tree, dict):
        return ("dict", tuple(tree), tuple(_structure(value) for value in tree.values()))
    if isinstance(tree, list | tuple):
        return ("list" if isinstance(tree, list) else "tuple", tuple(_structure(value) for value in tree))
    return None


# ---------------------------------------------------------------------- files


def safetensors_of(tree: Tree, metadata: Mapping[str, str] | None = None) -> bytes:
    """The content of a safetensors file with each array under its path; equal arrays give equal bytes.

    Args:
        tree: the arrays.
        metadata: texts by name, which readers of the arrays pass over.
    """
    from safetensors.numpy import save

    # The library writes texts in the order of a hash table: one text has one order.
    texts = {"atoll": json.dumps(dict(metadata), sort_keys=True)} if metadata else None
    return bytes(save({name: _array(leaf) for name, leaf in T.items(tree)}, texts))


def _array(leaf: Any) -> Any:
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = leaf.detach().cpu().numpy()
    return np.ascontiguousarray(leaf)
