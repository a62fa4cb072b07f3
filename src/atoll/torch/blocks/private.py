"""The private states of a cohort as input of its programs: stacked if they are alike, otherwise one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.tree import Tree

from ..leaves import Layout, flatten

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Privates"]


class Privates:
    """Private states, one for each client.

    Args:
        states: one by one, ``None`` before a client's first.
        stacked: leaves with a leading client axis, instead.
        count: clients.
    """

    def __init__(self, states: Sequence[Tree] | None, count: int, stacked: Tree = None) -> None:
        self._states = states
        self._stacked = stacked
        self._count = count

    @staticmethod
    def of(states: Sequence[Tree] | Privates | None, count: int) -> Privates:
        """Take any form in which a caller has them; ``None`` for no state at all."""
        return states if isinstance(states, Privates) else Privates(states, count)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, at: int) -> Tree: ...
    @overload
    def __getitem__(self, at: NDArray[np.int64]) -> Privates: ...
    def __getitem__(self, at: Any) -> Any:
        if not isinstance(at, np.ndarray):
            if self._stacked is not None:
                return T.map(lambda leaf: None if leaf is None else leaf[at], self._stacked)
            return None if self._states is None else self._states[at]
        if self._stacked is not None:
            return Privates(None, len(at), T.map(lambda leaf: None if leaf is None else leaf[at], self._stacked))
        return Privates(None if self._states is None else [self._states[i] for i in at.tolist()], len(at))

    def leaves(self, fresh: Any) -> tuple[list[NDArray[Any]], Layout]:
        """Return stacked leaves, and the structure of one client's state.

        Args:
            fresh: makes the state of a client that has none.
        """
        if self._stacked is not None:
            return flatten(self._stacked)
        states = self._states
        if states is None or all(state is None for state in states):
            found, layout = flatten(fresh())
            return [np.repeat(np.asarray(leaf)[None], self._count, axis=0) for leaf in found], layout
        blank = fresh() if any(state is None for state in states) else None
        pairs = [flatten(blank if state is None else state) for state in states]
        rows = [row for row, _ in pairs]
        return [np.stack([np.asarray(row[i]) for row in rows]) for i in range(len(rows[0]))], pairs[0][1]
