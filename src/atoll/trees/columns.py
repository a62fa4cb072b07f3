"""Finished trees as flat columns: what checkpoints keep and messages carry."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from .tree import Tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

__all__ = ["NAMES", "appended", "count", "digest", "empty", "trees_in"]

NAMES = {
    "feature": np.int32,
    "threshold": np.float32,
    "left": np.int32,
    "value": np.float32,
    "hessian": np.float32,
    "gain": np.float32,
    "default_left": np.bool_,
}


def empty(more: Sequence[str] = (), exact: bool = False) -> dict[str, NDArray[Any]]:
    """No trees; ``exact`` ones have numbers of double precision. ``starts`` says where each begins and the last ends; ``more`` names further columns of small whole numbers."""
    wide: dict[Any, Any] = {np.float32: np.float64} if exact else {}
    made: dict[str, NDArray[Any]] = {name: np.zeros(0, wide.get(kind, kind)) for name, kind in NAMES.items()}
    made |= {name: np.zeros(0, np.int16) for name in more}
    return {**made, "starts": np.zeros(1, np.int64), "groups": np.zeros(0, np.int32)}


def appended(
    columns: dict[str, Any], trees: Iterable[Tree], more: dict[str, NDArray[np.int16]] | None = None
) -> dict[str, Any]:
    """The columns with further trees behind."""
    new = list(trees)
    made = {
        name: np.concatenate(
            [np.asarray(columns[name]), *(getattr(tree, name).astype(np.asarray(columns[name]).dtype) for tree in new)]
        )
        for name in NAMES
    }
    made |= {name: np.concatenate([np.asarray(columns[name]), column]) for name, column in (more or {}).items()}
    starts = np.asarray(columns["starts"])
    made["starts"] = np.concatenate([starts, starts[-1] + np.cumsum([len(tree) for tree in new])]).astype(np.int64)
    groups = [np.asarray(columns["groups"]), np.array([tree.group for tree in new])]
    return {**made, "groups": np.concatenate(groups).astype(np.int32)}


def count(columns: dict[str, Any]) -> int:
    """The number of trees."""
    return len(columns["starts"]) - 1


def trees_in(columns: dict[str, Any], first: int = 0) -> list[Tree]:
    """The trees from the ``first`` on."""
    starts = np.asarray(columns["starts"])[first:]
    groups = np.asarray(columns["groups"])[first:].tolist()
    return [
        Tree(group=group, **{name: np.asarray(columns[name])[a:b] for name in NAMES})
        for a, b, group in zip(starts[:-1], starts[1:], groups, strict=True)
    ]


def digest(columns: dict[str, Any], trees: int) -> bytes:
    """A digest of the first ``trees`` trees."""
    end = int(np.asarray(columns["starts"])[trees])
    parts = (
        np.ascontiguousarray(np.asarray(columns[name])[:end]).tobytes()
        for name in ("feature", "left", "value", "default_left")
    )
    return hashlib.blake2b(b"|".join((trees.to_bytes(8, "little"), *parts)), digest_size=16).digest()
