"""Drafts: what the steps of a sum leave at the parties, until the sum has succeeded.

A sum may take several steps, and it may fail at the last one. Until it ends, the private states that its steps leave are stored separately from the
parties' own ones. Only the steps of the same sum read them. When the sum succeeds, those of the parties in it become their states. All others are
dropped, so that a failed sum leaves its parties unchanged.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ..algebra.tree import Tree
from ..persistence.state_table import StateTable
from ..persistence.states import States
from ..requests.party import among
from ..requests.request import PASSING, Request

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from ..persistence.store import StateStore

__all__ = ["Draft", "Drafts"]


class Draft(StateTable):
    """States that were left in addition to those of another table.

    Args:
        under: the other table, read if this one has no state.
    """

    def __init__(self, under: StateTable) -> None:
        super().__init__()
        self._under = under
        self._left: list[States] = []

    def leave(self, states: States) -> None:
        """Add states; they are sorted into tables on the first read."""
        self._left.append(states)

    def commit(self, positions: NDArray[np.int64]) -> None:
        """Move the states of these parties to the table below."""
        for states in self._left:
            who = states.positions()
            mine = among(who, positions)
            self._under.put_all(states if mine.all() else StateTable.holding(states).pick(who[mine]))
        self._left = []
        own = self.positions()
        self._under.put_all(super().pick(own[among(own, positions)]))

    def _mine(self, positions: NDArray[np.int64]) -> NDArray[np.bool_]:
        for states in self._left:
            self.put_all(states)
        self._left = []
        return among(positions, self.positions())

    def get(self, position: int) -> Tree:
        """A party's state, ``None`` if it has none."""
        if self._left and len(self._left[-1].blocks) == 1:  # the newest states, unsorted: a block that may be read once
            found = self._left[-1].blocks[0].of(position)
            if found:
                return found[-1]
        mine = self._mine(np.array([position], dtype=np.int64))[0]
        return super().get(position) if mine else self._under.get(position)

    def knows(self, positions: NDArray[np.int64]) -> bool:
        """Whether any of these parties has a state."""
        return bool(self._mine(positions).any()) or self._under.knows(positions)

    def pick(self, positions: NDArray[np.int64]) -> States:
        """The states of some parties; parties without one are left out."""
        mine = self._mine(positions)
        found = self._under.pick(positions[~mine])
        found.update(super().pick(positions[mine]))
        return found

    def gather(self, positions: NDArray[np.int64], fresh: Tree = None) -> Tree:
        """The states of some parties, stacked; see ``StateTable.gather``. States from both tables cannot be stacked together."""
        mine = self._mine(positions)
        if mine.any() and not mine.all():
            return None
        return super().gather(positions, fresh) if len(mine) and mine.all() else self._under.gather(positions, fresh)


class Drafts:
    """The drafts of a host's sums, by sum and slot.

    Args:
        store: the parties' private states.
    """

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._open: dict[str, dict[str, Draft]] = {}

    def table(self, request: Request, slot: str) -> StateTable:
        """The states that a request finds in a slot: those that its own sum left there, then the parties' states."""
        draft = self._open.get(request.sum, {}).get(slot) if request.sum else None
        return self._below(slot) if draft is None else draft

    def _below(self, slot: str) -> StateTable:
        return StateTable() if slot.endswith(PASSING) else self._store.table(slot)

    def leave(self, request: Request, left: Mapping[str, States]) -> None:
        """Keep what a request left: at once, or until its sum ends."""
        for slot, states in left.items():
            if not request.sum:
                self._store.table(slot).put_all(states)
                continue
            drafts = self._open.setdefault(request.sum, {})
            if slot not in drafts:
                drafts[slot] = Draft(self._below(slot))
            drafts[slot].leave(states)

    def conclude(self, path: str, kept: NDArray[np.int64]) -> None:
        """End a sum: these parties keep what its steps left, and the others stay unchanged."""
        for slot, draft in self._open.pop(path, {}).items():
            if not slot.endswith(PASSING):
                draft.commit(kept)
