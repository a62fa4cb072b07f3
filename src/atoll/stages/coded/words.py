"""What stages whose encodings are words or indices share: which layers they code, versions, and lifts from words to numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree
from atoll.core.errors import MessageError

from ..rows import numpy_leaf

__all__ = ["Layers", "coded", "counts_in", "lifted", "of_version", "under", "untouched", "with_counts", "with_sums"]

Array = np.ndarray[Any, np.dtype[Any]]
Layers = Literal["matrices", "all"]
"""Which leaves a stage codes: those with at least two axes, or all. Biases and normalisation layers have one axis."""


def coded(shape: Sequence[int], layers: Layers, least: int) -> bool:
    """Return whether a leaf of this shape is coded; the others stay numbers.

    Args:
        shape: the leaf's shape at one party.
        layers: the policy.
        least: entries that a leaf must have.
    """
    return (layers == "all" or len(shape) >= 2) and math.prod(shape) >= max(1, least)


def under(version: int, parts: Mapping[str, Tree]) -> Tree:
    """An encoding under a version of the round parameters. The version is a key, so that encodings of two versions do not add up."""
    return {f"v{version}": dict(parts)}


def of_version(sent: Tree, version: int, where: str) -> dict[str, Tree]:
    """The parts of an encoding under this version.

    Raises:
        MessageError: it was encoded under another version.
    """
    key = f"v{version}"
    if not isinstance(sent, dict) or set(sent) != {key}:
        found = ", ".join(map(str, sent)) if isinstance(sent, dict) else type(sent).__name__
        raise MessageError(
            f"an encoding under {found}, but the round parameters are {key}",
            where=where,
            remedy="decode each version by its own parameters, and reject replies to parameters that are no longer kept",
        )
    parts: dict[str, Tree] = sent[key]
    return parts


def untouched(value: Tree) -> Tree:
    """A value before the first fit, as the numbers that it is: version 0."""
    return under(0, {"numbers": T.map(numpy_leaf, value)})


def lifted(words: Array, bits: int, *, centred: bool = True) -> Array:
    """The integers of words modulo ``2^bits``, int64: in ``[-2^(bits-1), 2^(bits-1))`` if centred, else in ``[0, 2^bits)``."""
    residues = np.asarray(words).astype(np.int64) & np.int64((1 << bits) - 1)
    if not centred:
        return residues
    half = np.int64(1) << np.int64(bits - 1)
    return (residues ^ half) - half


def counts_in(value: Tree) -> list[Array] | None:
    """The counts of an encoding that indexes, ``(blocks, codewords)`` a layer; ``None`` for any other value."""
    if not isinstance(value, dict) or len(value) != 1:
        return None
    ((version, parts),) = value.items()
    if not (isinstance(version, str) and isinstance(parts, dict) and parts.keys() == {"like", "of", "rest", "counts"}):
        return None
    counts: list[Array] = parts["counts"]
    return counts


def with_counts(value: Tree, counts: Sequence[Any]) -> Tree:
    """The same encoding with other counts."""
    ((version, parts),) = value.items()
    return {version: {**parts, "counts": list(counts)}}


def with_sums(value: Tree, sums: Sequence[Any]) -> Tree:
    """The same encoding with sums of codewords, ``(blocks, d)`` a layer, in place of counts."""
    ((version, parts),) = value.items()
    return {version: {**{name: part for name, part in parts.items() if name != "counts"}, "sums": list(sums)}}
