"""Trees that grow on numbers which nobody need see: one program over `PlainNumbers` or `SharedNumbers`, so that the hidden trees are the plain ones to the bit.

Everything is a whole number. Gradients have the unit ``2^-20``. At a node with c rows and sum of gradients G, a split with ``c_L`` and ``G_L`` on its left gains

    ``sum_k (G_Lk c - G_k c_L)^2 / (c_L c_R)``,

which is ``c`` times the fall of the sum of squares (CART's variance or Gini index; several outputs add up). Counts and sums are first doubled until c fills its bits. Then
numerator and denominator are cut to so many bits that products of both fit 62, and two splits are compared crosswise, without a division. Of equal gains the first counts. A
leaf is ``-rate G / (f c + lambda)``, by three steps of Newton on the normalised denominator; f is 1, and 1/4 for logistic loss, the most that ``p (1 - p)`` can be (Böhning 1992).

A tree is a full one of its depth: the children of node i are ``2 i + 1`` and ``2 i + 2``. At a node without a split all rows go right.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from atoll.core.errors import DataError

from .columns import OwnedColumns
from .numbers import Flags, Numbers

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = [
    "ONE",
    "ROOM",
    "SplitChoices",
    "GrownTree",
    "ColumnAnswers",
    "PlainOwners",
    "TreePlan",
    "add_by_bin",
    "follow_rows",
    "grow_tree",
    "limit_leaves",
    "move_odds",
    "raise_e",
    "sum_leaves",
]

FRACTION = 20
"""Bits of the fraction of gradients, leaves and probabilities."""
ONE = 1 << FRACTION
ROOM = 3
"""Residuals of a regression may grow to ``2^3`` times the largest one at the beginning."""
_MOST = 61
_STEEPEST = round(0.69 * ONE)
"""A leaf of a logistic tree is at most so large, so that odds change by no more than a factor of 2."""


@dataclass(frozen=True)
class SplitChoices:
    """All splits that there may be, the guest's first: of each column after each of its cuts; where rows lack it, to either side.

    Attributes:
        owner: whose column it is, 0 for the guest.
        feature: the column's number at its owner.
        cut: rows up to this bin go left.
        with_missing: whether rows without the value do.
        columns: the column's number among all.
    """

    owner: NDArray[np.int64]
    feature: NDArray[np.int64]
    cut: NDArray[np.int64]
    with_missing: NDArray[np.bool_]
    columns: NDArray[np.int64]

    @classmethod
    def of(cls, known: Sequence[tuple[Sequence[int], Sequence[bool]]]) -> SplitChoices:
        """From the number of cuts of each owner's columns, and whether rows lack them."""
        rows, column = [], 0
        for owner, (counts, holes) in enumerate(known):
            for feature, (count, hole) in enumerate(zip(counts, holes, strict=True)):
                for cut in range(count):
                    rows += [(owner, feature, cut, side, column) for side in ((False, True) if hole else (False,))]
                if hole:
                    rows.append((owner, feature, count, False, column))
                column += 1
        made = np.array(rows, np.int64).reshape(-1, 5).T
        return cls(made[0], made[1], made[2], made[3].astype(np.bool_), made[4])

    def __len__(self) -> int:
        return len(self.owner)

    @property
    def owners(self) -> list[int]:
        """The parties that have some."""
        found: list[int] = np.unique(self.owner).tolist()
        return found

    def of_owner(self, owner: int) -> NDArray[np.int64]:
        """The numbers of an owner's candidates."""
        return np.flatnonzero(self.owner == owner)

    def left_sums(self, owner: int, bins: Numbers) -> Numbers:
        """Sums of the rows that each of an owner's candidates sends left, ``(candidates, words)``, from those of bins, ``(features, width, words)``."""
        mine = self.of_owner(owner)
        if not len(mine):
            return np.zeros((0, bins.shape[2]), bins.dtype)
        known = np.cumsum(bins[:, :-1], axis=1, dtype=bins.dtype)
        made = known[self.feature[mine], self.cut[mine]]
        absent = bins[self.feature[mine], -1]
        return made + np.where(self.with_missing[mine][:, None], absent, np.zeros_like(absent))

    def sides(self, owner: int, bins: NDArray[Any], missing: int) -> NDArray[np.bool_]:
        """Whether each of an owner's candidates sends each row left, ``(candidates, rows)``."""
        mine = self.of_owner(owner)
        values = bins[:, self.feature[mine]].T.astype(np.int64)
        return np.where(values == missing, self.with_missing[mine][:, None], values <= self.cut[mine][:, None])


class ColumnAnswers(Protocol):
    """All owners of columns, as a computing party sees them."""

    candidates: SplitChoices

    async def left_sums(self, words: Numbers) -> Numbers:
        """Sums of what each candidate sends left, ``(nodes, candidates, words)``, of ``(nodes, rows, words)``."""
        ...

    async def send_left(self, chosen: Flags) -> Flags:
        """Whether rows go left at each node, ``(nodes, rows)``, by the chosen candidate, ``(nodes, candidates)``."""
        ...


class PlainOwners:
    """All columns in one place."""

    def __init__(self, own: OwnedColumns) -> None:
        self.own = own
        self.holes = [bool((own.bins[:, f] == own.width - 1).any()) for f in range(own.features)]
        self.candidates = SplitChoices.of([(own.counts, self.holes)])
        self._sides = self.candidates.sides(0, own.bins, own.width - 1)
        self.chosen: list[int] = []

    async def left_sums(self, words: Numbers) -> Numbers:
        """Sums of what each candidate sends left."""
        return np.stack([self.candidates.left_sums(0, add_by_bin(self.own.bins, one, self.own.width)) for one in words])

    async def send_left(self, chosen: Flags) -> Flags:
        """Whether rows go left."""
        at = [int(np.argmax(row)) if row.any() else -1 for row in chosen]
        self.chosen += at
        nowhere = np.zeros(self._sides.shape[1], np.bool_)
        return np.stack([self._sides[one] if one >= 0 else nowhere for one in at])


def add_by_bin(bins: NDArray[Any], words: Numbers, width: int) -> Numbers:
    """Sums by column and bin, ``(features, width, words)``."""
    made = np.zeros((bins.shape[1], width, words.shape[1]), words.dtype)
    for f in range(bins.shape[1]):
        np.add.at(made[f], bins[:, f], words)
    return made


@dataclass(frozen=True)
class TreePlan:
    """What all parties know of a tree before it grows.

    Attributes:
        depth: levels of splits.
        weight: rows, with their repeats.
        outputs: numbers of a leaf.
        room: gradients are at most ``2^room`` in size.
        rate: learning rate.
        steepness: f of a leaf.
        reg_lambda: L2 penalty of leaves.
        min_rows: fewest rows in a child.

    Raises:
        DataError: sums may overflow.
    """

    depth: int
    weight: int
    outputs: int
    room: int
    rate: float = 1.0
    steepness: float = 1.0
    reg_lambda: float = 0.0
    min_rows: int = 1

    def __post_init__(self) -> None:
        if self._numerator > _MOST or self._denominator[1] + self.room + 16 > _MOST:
            raise DataError(
                f"sums over {self.weight} rows may overflow words of 64 bits",
                where="Pivot",
                remedy=f"use fewer rows, at most {1 << ((_MOST - 19 - self.room) // 2)}",
            )

    @property
    def bits(self) -> int:
        """Bits of a count."""
        return self.weight.bit_length()

    @property
    def _numerator(self) -> int:
        return self.room + FRACTION - 1 + 2 * self.bits

    @property
    def _denominator(self) -> tuple[int, int]:
        """``lambda / f`` in sixteenths, and bits of a leaf's denominator."""
        more = round(16 * self.reg_lambda / self.steepness)
        return more, (16 * ((1 << self.bits) - 1) + more).bit_length()

    async def choose_split(self, by: Any, sums: Numbers, totals: Numbers) -> Flags:
        """Which candidate has the largest gain, ``(nodes, candidates)``; none where nothing gains.

        Args:
            by: the numbers.
            sums: rows and gradients on the left, ``(nodes, candidates, 1 + outputs)``.
            totals: of the nodes, ``(nodes, 1 + outputs)``.
        """
        nodes, many, words = sums.shape
        lead = await by.lift(np.stack(await by.find_leading(totals[:, 0], self.bits)))
        shift = sum(by.scaled(one, 1 << (self.bits - 1 - i)) for i, one in enumerate(lead))
        grown = await by.multiply_rows(np.concatenate([sums.reshape(nodes, -1), totals], axis=1), shift)
        left, all_of = grown[:, : many * words].reshape(sums.shape), grown[:, many * words :]
        count, rest = left[:, :, 0], all_of[:, :1] - left[:, :, 0]
        apart = [
            await by.multiply_rows(left[:, :, k], all_of[:, 0]) - await by.multiply_rows(count, all_of[:, k])
            for k in range(1, words)
        ]
        kept = min(self.bits + 4, 2 * self.bits - 2)
        room = (_MOST - 1 - kept - math.ceil(math.log2(self.outputs))) // 2
        away = max(0, self._numerator - room)
        half = by.constant(np.full((nodes, many), (1 << away) >> 1))
        top = sum([await by.multiply(one, one) for one in [await by.cut(each + half, away) for each in apart]])
        bottom = await by.cut(await by.multiply(count, rest), 2 * self.bits - 2 - kept)
        bottom = bottom + by.constant(np.ones((nodes, many)))
        if self.min_rows > 1:
            least = by.constant(np.full((nodes, many), self.min_rows))
            for side in (sums[:, :, 0], totals[:, :1] - sums[:, :, 0]):
                enough = by.flip(await by.find_negative(side - least))
                top = (await by.choose(enough.ravel(), top.reshape(-1, 1))).reshape(top.shape)
        return await _find_largest(by, top, bottom)

    async def value_leaves(self, by: Any, totals: Numbers) -> Numbers:
        """``-rate G / (f c + lambda)``, in units of ``2^-20``, ``(leaves, outputs)``; 0 for a leaf without rows."""
        more, bits = self._denominator
        wide = by.scaled(totals[:, :1], 16) + by.constant(np.full((len(totals), 1), more))
        lead = await by.lift(np.stack(await by.find_leading(wide[:, 0], bits)))
        shift = sum(by.scaled(one, 1 << (bits - 1 - i)) for i, one in enumerate(lead))
        grown = await by.multiply_rows(np.concatenate([wide, totals[:, 1:]], axis=1), shift)
        m = await by.cut(grown[:, 0], bits - 24) if bits > 24 else by.scaled(grown[:, 0], 1 << (24 - bits))
        start = by.constant(np.full(len(totals), round(48 / 17 * 2**24)))
        x = start - await by.cut(by.scaled(m, round(32 / 17 * 2**20)), 20)
        for _ in range(3):
            left = by.constant(np.full(len(totals), 1 << 25)) - await by.cut(await by.multiply(m, x), 24)
            x = await by.cut(await by.multiply(x, left), 24)
        early = max(0, self.room + FRACTION - 4 + bits - 35)
        top = await by.cut(grown[:, 1:], early)
        mean = await by.cut(await by.multiply_rows(top, x), 20 + bits - early)
        return by.scaled(await by.cut(by.scaled(mean, round(self.rate / self.steepness * 2**16)), 16), -1)


async def _find_largest(by: Any, top: Numbers, bottom: Numbers) -> Flags:
    """Of each row of fractions, which is the first largest one; none where all are 0. A tournament down, and its winner's way back."""
    played = []
    while top.shape[1] > 1:
        half, odd = divmod(top.shape[1], 2)
        even, other = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        crossed = await by.multiply(
            np.stack([top[:, even], top[:, other]]), np.stack([bottom[:, other], bottom[:, even]])
        )
        won = await by.find_negative(crossed[0] - crossed[1])
        apart = np.stack([top[:, other] - top[:, even], bottom[:, other] - bottom[:, even]], axis=-1)
        step = (await by.choose(won.ravel(), apart.reshape(-1, 2))).reshape(apart.shape)
        played.append((won, odd))
        last = slice(2 * half, None)
        top = np.concatenate([top[:, even] + step[..., 0], top[:, last]], axis=1)
        bottom = np.concatenate([bottom[:, even] + step[..., 1], bottom[:, last]], axis=1)
    found = await by.find_negative(by.scaled(top, -1))
    for won, odd in reversed(played):
        half = won.shape[1]
        second = await by.meet(found[:, :half], won)
        both = np.stack([found[:, :half] ^ second, second], axis=-1).reshape(len(found), 2 * half)
        found = np.concatenate([both, found[:, half:]], axis=1) if odd else both
    return found


@dataclass
class GrownTree:
    """A tree in the form of its numbers.

    Attributes:
        chosen: the candidate of each node, ``(nodes, candidates)``.
        inside: whether each row is in each leaf, ``(leaves, rows)``.
        values: of the leaves, ``(leaves, outputs)``.
    """

    chosen: Flags
    inside: Flags
    values: Numbers = field(default_factory=lambda: np.zeros((0, 1)))


async def grow_tree(
    by: Any, owners: ColumnAnswers, plan: TreePlan, words: Numbers, allowed: NDArray[np.bool_] | None = None
) -> GrownTree:
    """Grow a tree.

    Args:
        by: the numbers.
        owners: the columns.
        plan: its limits.
        words: of each row its weight and weighted gradients, ``(rows, 1 + outputs)``.
        allowed: which candidates may be taken, known to all.
    """
    nodes, sums = words[None], await owners.left_sums(words[None])
    many = len(owners.candidates)
    some = np.arange(many) if allowed is None else np.flatnonzero(allowed)
    made, inside = [], by.lowest(by.constant(np.ones((1, len(words)))))
    for level in range(plan.depth):
        found = await plan.choose_split(by, sums[:, some], nodes.sum(axis=1, dtype=nodes.dtype))
        chosen = np.zeros((len(nodes), many), np.bool_)
        chosen[:, some] = found
        made.append(chosen)
        left = await owners.send_left(chosen)
        flat = nodes.reshape(-1, nodes.shape[2])
        below = (await by.choose(left.ravel(), flat)).reshape(nodes.shape)
        here = await by.meet(left, inside)
        inside = _interleave(here, inside ^ here)
        nodes, parents = _interleave(below, nodes - below), sums
        if level + 1 < plan.depth:
            of_left = await owners.left_sums(below)
            sums = _interleave(of_left, parents - of_left)
    values = await plan.value_leaves(by, nodes.sum(axis=1, dtype=nodes.dtype))
    return GrownTree(np.concatenate(made), inside, values)


def _interleave(left: Any, right: Any) -> Any:
    """The left and right children of nodes, in the order of the nodes below."""
    return np.stack([left, right], axis=1).reshape(-1, *left.shape[1:])


async def follow_rows(by: Any, left: Flags) -> Flags:
    """Whether rows end in each leaf, ``(rows, trees, leaves)``, from whether they go left at each node, ``(rows, trees, nodes)``."""
    inside, first = left[:, :, :0], 0
    while first < left.shape[2]:
        here = left[:, :, first : 2 * first + 1]
        if first == 0:
            both = [here, by.flip(here)]
        else:
            went = await by.meet(here, inside)
            both = [went, inside ^ went]
        inside = np.stack(both, axis=-1).reshape(*left.shape[:2], 2 * here.shape[2])
        first = 2 * first + 1
    return inside


async def sum_leaves(by: Any, inside: Flags, values: Numbers) -> Numbers:
    """What the leaves of rows add up to, ``(rows, outputs)``; ``values`` are ``(trees, leaves, outputs)``."""
    rows, outputs = len(inside), values.shape[2]
    words = np.broadcast_to(values, (rows, *values.shape)).reshape(-1, outputs)
    found = await by.choose(inside.ravel(), np.ascontiguousarray(words))
    return found.reshape(rows, len(values) * values.shape[1], outputs).sum(axis=1, dtype=found.dtype)


async def limit_leaves(by: Any, values: Numbers) -> Numbers:
    """Leaves of a logistic tree, none larger than .69: further ones would overshoot."""
    flat = values.reshape(-1, 1)
    most = by.constant(np.full(flat.shape, _STEEPEST))
    above, below = (await by.find_negative(most - flat))[:, 0], (await by.find_negative(flat + most))[:, 0]
    up = await by.choose(above, most - flat)
    down = await by.choose(below, by.scaled(most, -1) - flat)
    return (flat + up + down).reshape(values.shape)


async def raise_e(by: Any, x: Numbers) -> Numbers:
    """``e^x`` for ``|x| <= .69``, by a polynomial of degree 8 (error below 2e-7), in units of ``2^-20``."""
    made = by.constant(np.full(x.shape, round(ONE / math.factorial(8))))
    for i in range(7, -1, -1):
        made = await by.cut(await by.multiply(made, x), FRACTION) + by.constant(
            np.full(x.shape, round(ONE / math.factorial(i)))
        )
    return made


async def move_odds(by: Any, p: Numbers, factor: Numbers) -> Numbers:
    """Probabilities whose odds are multiplied: ``p w / (1 - p + p w)``; the denominator is between 1/2 and 2, so that Newton's method needs no normalisation."""
    one = by.constant(np.full(p.shape, ONE))
    top = await by.cut(await by.multiply(p, factor), FRACTION)
    bottom = one - p + top
    start = by.constant(np.full(p.shape, round(2.5 / 1.28125 * ONE)))
    x = start - await by.cut(by.scaled(bottom, round(ONE / 1.28125)), FRACTION)
    for _ in range(4):
        left = by.scaled(one, 2) - await by.cut(await by.multiply(bottom, x), FRACTION)
        x = await by.cut(await by.multiply(x, left), FRACTION)
    return await by.cut(await by.multiply(top, x), FRACTION)
