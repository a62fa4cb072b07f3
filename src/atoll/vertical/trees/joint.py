"""A model of trees in parts: the guest's trees, which know whose a split is, and each owner's splits, which know columns and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .categories import CategoryGrowth
    from .columns import OwnedColumns, Splits

__all__ = ["GuestTrees"]


@dataclass
class GuestTrees:
    """The trees as the guest knows them, all nodes one behind the other.

    Attributes:
        owner: whose column splits a node: 0 for the guest, k for the k-th host; -1 for a leaf.
        split: the number of the split among the owner's.
        left: left child, counted from the tree's root; the right one is next to it.
        value: what a leaf adds to the margin.
        starts: the root of each tree, and the end of the last.
        groups: the output that each tree adds to.
        made: how many splits each owner has.
    """

    owner: list[int] = field(default_factory=list)
    split: list[int] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    groups: list[int] = field(default_factory=list)
    made: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.groups)

    def add(
        self, growth: CategoryGrowth, owner_of: Callable[[int], tuple[int, int]], own: OwnedColumns, splits: Splits,
        leaves: NDArray[np.float32] | None = None,
    ) -> NDArray[np.float32]:  # fmt: skip
        """Add a tree that is grown, and the guest's splits in it; return the value of each node.

        An owner's splits have the order in which it was asked for them: nodes ascend. ``leaves`` are values in place of the growth's own.
        """
        values = growth.value() if leaves is None else leaves
        for node, feature in enumerate(growth.feature):
            owner, number = -1, -1
            if feature >= 0:
                owner, column = owner_of(feature)
                number = self.made.get(owner, 0)
                self.made[owner] = number + 1
                if owner == 0:
                    right = growth.right.get(node, ())  # the guest's inputs are the first
                    splits.add(column, own.threshold(column, growth.cut[node]), growth.default_left[node], right)
            self.owner.append(owner)
            self.split.append(number)
        self.left += growth.left
        self.value += values.tolist()
        self.starts.append(len(self.owner))
        self.groups.append(growth.group)
        return values

    def margins(self, base: NDArray[np.float64], sides: Sequence[NDArray[np.bool_]]) -> NDArray[np.float32]:
        """The margins of rows, ``(rows, outputs)``.

        Args:
            base: before the first tree.
            sides: of each owner, the guest first: whether each row goes left at each of its splits, ``(rows, splits)``.
        """
        rows = len(sides[0])
        made = np.tile(np.asarray(base, np.float32), (rows, 1))
        first = np.cumsum([0, *(each.shape[1] for each in sides)])
        goes = np.concatenate(sides, axis=1)
        owner, left, split = (np.array(column, np.int64) for column in (self.owner, self.left, self.split))
        value, column = np.array(self.value, np.float32), np.where(owner >= 0, first[owner] + split, -1)
        for start, group in zip(self.starts, self.groups, strict=False):
            at = np.zeros(rows, np.int64)
            going = np.arange(rows)
            while True:
                going = going[owner[start + at[going]] >= 0]
                if not len(going):
                    break
                node = start + at[going]
                at[going] = left[node] + ~goes[going, column[node]]
            made[:, group] += value[start + at]
        return made

    def packed(self) -> dict[str, Any]:
        """The trees as a message."""
        whole = {
            name: np.array(getattr(self, name), np.int32) for name in ("owner", "split", "left", "starts", "groups")
        }
        made = np.array(sorted(self.made.items()), np.int64).reshape(-1, 2)
        return {**whole, "value": np.array(self.value, np.float32), "made": made}

    @classmethod
    def unpacked(cls, message: Any) -> GuestTrees:
        """The inverse of `packed`."""
        names = ("owner", "split", "left", "value", "starts", "groups")
        lists: dict[str, list[Any]] = {name: np.asarray(message[name]).tolist() for name in names}
        return cls(**lists, made=dict(np.asarray(message["made"]).tolist()))
