"""Private states in transit: from a store to a task, back, and to disk. States of one form are stacked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra import tree as T
from ..algebra.form import form_of_block, kinds_of_block
from ..algebra.tree import Tree

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StateBlock", "States"]


@dataclass(frozen=True)
class StateBlock:
    """States of one form.

    Attributes:
        positions: positions of the clients, shape ``(clients,)``.
        stacked: their states, leaves with a leading client axis.
        kinds: kinds of the leaves, see ``form.Leaf``.
    """

    positions: NDArray[np.int64]
    stacked: Tree
    kinds: list[str]

    def rows(self) -> Iterator[tuple[int, Tree]]:
        """Each client's state, with copies of the arrays."""
        known = form_of_block(self.stacked, self.kinds, len(self.positions))
        if known is None:  # the leaves belong to another library
            yield from zip(self.positions.tolist(), T.unstacked(self.stacked, len(self.positions)), strict=True)
            return
        form, columns = known
        for i, position in enumerate(self.positions.tolist()):
            pairs = zip(form.leaves, columns, strict=True)
            yield position, form.build([None if leaf.kind == "none" else leaf.value(c[i]) for leaf, c in pairs])

    def of(self, position: int) -> list[Tree]:
        """The state of one client, with copies of the arrays; empty if it is not in the block."""
        at = np.flatnonzero(self.positions == position)
        if not len(at):
            return []
        alone = StateBlock(
            self.positions[at], T.map(lambda leaf: None if leaf is None else leaf[at], self.stacked), self.kinds
        )
        return [state for _, state in alone.rows()]


@dataclass
class States:
    """The private states of some clients, one each.

    Attributes:
        singles: maps a position to its state.
        blocks: stacked states.
    """

    singles: dict[int, Tree] = field(default_factory=dict)
    blocks: list[StateBlock] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.singles or self.blocks)

    def add_block(self, positions: NDArray[np.int64], stacked: Tree) -> None:
        """Add the states of a block as a task returns them."""
        if len(positions):
            self.blocks.append(StateBlock(positions, stacked, kinds_of_block(stacked)))

    def update(self, others: States) -> None:
        """Add the states of other clients."""
        self.singles.update(others.singles)
        self.blocks.extend(others.blocks)

    def of(self, positions: NDArray[np.int64]) -> States:
        """The states of some of these clients."""
        found = States({p: self.singles[p] for p in positions.tolist() if p in self.singles} if self.singles else {})
        for block in self.blocks:
            mine = np.isin(block.positions, positions)
            if mine.all():
                found.blocks.append(block)
            elif mine.any():
                stacked = T.map(lambda leaf, mine=mine: None if leaf is None else leaf[mine], block.stacked)
                found.blocks.append(StateBlock(block.positions[mine], stacked, block.kinds))
        return found

    def positions(self) -> NDArray[np.int64]:
        """The positions of the clients: the single ones, then block by block."""
        return np.concatenate(
            [np.array(list(self.singles), dtype=np.int64), *[block.positions for block in self.blocks]]
        )

    def by_position(self) -> dict[int, Tree]:
        """All states, by position."""
        return {**self.singles, **{position: state for block in self.blocks for position, state in block.rows()}}

    def packed(self) -> dict[str, Any]:
        """The states as a message."""
        return {
            "singles": [[position, state] for position, state in self.singles.items()],
            "blocks": [[block.positions, block.stacked, block.kinds] for block in self.blocks],
        }

    @staticmethod
    def unpack(packed: Any) -> States:
        """The inverse of ``packed``."""
        blocks = [StateBlock(positions, stacked, list(kinds)) for positions, stacked, kinds in packed["blocks"]]
        return States(dict(packed["singles"]), blocks)
