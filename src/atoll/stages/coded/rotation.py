"""Random rotation, which spreads a vector's length evenly over its entries."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.requests.stage import Guarding, Stage, StageContext

from ..remembering import one_of
from ..rows import lay_out, put_back

__all__ = ["Rotation", "bound_entry"]

Array = np.ndarray[Any, np.dtype[Any]]
_RADIX = 6


@dataclass(frozen=True)
class Rotation(Stage, Guarding):
    """Rotate an update, all its entries as one vector, at random: ``U x`` with ``U = H_2 D_2 H_1 D_1``, in the update's own shapes.

    ``D`` flips signs by the round's public seed. ``H`` is the Walsh-Hadamard transform over ``sqrt(2^k)``; ``H_1`` acts on the first ``2^k`` entries,
    ``H_2`` on the last, with the largest ``2^k`` of at most ``d``, so no entries are added (if ``d`` is a power of two, ``H_1`` is all). ``U`` is orthogonal: it
    keeps lengths, sums undo it exactly up to rounding, and no entry of a rotated vector of length ``c`` is likely to be much above ``c / sqrt(d)``, see
    `bound_entry`. Stages that code every entry on one scale, or add noise in words of few bits, then lose little. Ailon, Chazelle 2009; Suresh, Yu, Kumar,
    McMahan 2017; Kairouz, Liu, Steinke 2021, section 4 (which pads to a power of two instead).
    """

    def public(self, rng: Rng) -> Tree:
        """Return the seed of the signs."""
        return rng.key

    def encode(self, value: Tree, context: StageContext) -> Tree:
        """Rotate one client's update."""
        return T.map(lambda leaf: leaf[0], self.encode_block(one_of(value), context))

    def encode_block(self, block: Tree, context: StageContext) -> Tree:
        """Rotate each client's update in a block."""
        rows, like = lay_out(block)
        return put_back(_rotate_rows(rows, context.public), like)

    def decode(self, total: Tree, public: Tree, n: int) -> Tree:
        """Rotate the sum back."""
        del n
        return T.map(lambda leaf: leaf[0], self.decode_block(T.map(lambda leaf: np.asarray(leaf)[None], total), public))

    def decode_block(self, block: Tree, public: Tree, memory: Tree = None) -> Tree:
        """Rotate each client's vector back."""
        del memory
        rows, like = lay_out(block)
        return put_back(_rotate_rows(rows, public, back=True), like)

    def sensitivity(self, before: float | None) -> float | None:
        """Return that before it: lengths stay the same."""
        return before

    def covers(self, other: Stage) -> bool:
        """Whether the other stage is a rotation."""
        return type(other) is type(self)


def bound_entry(entries: int, odds: float) -> float:
    """How large an entry of a rotated vector of length 1 is at most, except with probability ``odds``: ``sqrt(2 ln(2 d / odds) / d)``, at most 1.

    Each entry is a sum of ``d`` terms of random signs, so it is sub-Gaussian (Hoeffding). ``d`` is the length of the transform.
    """
    length = 1 << (max(1, entries).bit_length() - 1)
    return min(1.0, math.sqrt(2 * math.log(4 * length / odds) / length))


def _rotate_rows(rows: Array, key: int, *, back: bool = False) -> Array:
    """``U x`` of each row, or ``U^T x``, in a floating dtype of the rows."""
    size = rows.shape[1]
    if size < 2:
        return rows
    length = 1 << (size.bit_length() - 1)
    # Two transforms that overlap mix a length that is no power of two; padding it would send up to twice the entries.
    places = [slice(0, length)] if length == size else [slice(0, length), slice(size - length, size)]
    made = np.array(rows)
    for i, place in reversed(list(enumerate(places))) if back else enumerate(places):
        signs = _signs(Rng(key).child("signs", i).key, length, made.dtype)
        part = made[:, place]
        made[:, place] = _hadamard(part) * signs if back else _hadamard(part * signs)
    return made


def _signs(key: int, length: int, dtype: Any) -> Array:
    words = np.random.Generator(np.random.PCG64(key)).bytes(-(-length // 8))
    bits = np.unpackbits(np.frombuffer(words, dtype=np.uint8), count=length)
    return (1 - 2 * bits.astype(np.int8)).astype(dtype)


def _hadamard(rows: Array) -> Array:
    """The orthonormal Walsh-Hadamard transform of each row, in factors of ``2^6`` by matrix products."""
    count, size = rows.shape
    left, made, inner = size.bit_length() - 1, np.ascontiguousarray(rows), 1
    while left:
        bits = min(_RADIX, left)
        factor, left = _factor(bits).astype(rows.dtype), left - bits
        if inner == 1:
            made = made.reshape(-1, 1 << bits) @ factor
        else:
            made = np.matmul(factor, made.reshape(-1, 1 << bits, inner))
        inner <<= bits
    return made.reshape(count, size)


def _factor(bits: int) -> Array:
    made = np.ones((1, 1))
    for _ in range(bits):
        made = np.block([[made, made], [made, -made]]) / math.sqrt(2)
    return made
