"""A state table: the private states of one scope, in columns.

States of one form (structure, dtypes, shapes) are rows of one table, so that a block of clients is read and written with one indexing
operation a leaf, for any number of clients. States that columns cannot store, and forms beyond the first few, are stored client by client.
No caller gets the memory itself: written states are copied in, and read states are copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.form import Form, form_of, form_of_block
from ..algebra.tree import Tree
from .records import Allowance
from .states import StateBlock, States
from .table import Table

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StateTable"]

MOST_FORMS = 16
"""Maximum number of forms that a state table stores in columns; states of further forms are stored client by client."""


class StateTable:
    """Private states of one scope, by position.

    Args:
        allowance: the memory that it shares with other tables.
    """

    def __init__(self, allowance: Allowance | None = None) -> None:
        self._allowance = Allowance() if allowance is None else allowance
        self._tables: list[Table] = []
        self._which = np.zeros(0, dtype=np.int16)  # by position: 1 + index of its table, 0 for none
        self._row = np.zeros(0, dtype=np.int64)
        self._singles: dict[int, Tree] = {}
        self._changed: set[int] = set()

    @staticmethod
    def holding(states: States) -> StateTable:
        """A table with these states."""
        made = StateTable()
        made.put_all(states)
        return made

    @property
    def spilled(self) -> bool:
        """Whether part of it is in files."""
        return any(table.records.spilled for table in self._tables)

    # ------------------------------------------------------------------ one client

    def get(self, position: int) -> Tree:
        """A client's state, ``None`` if it has none."""
        which = int(self._which[position]) if position < len(self._which) else 0
        if which:
            return self._tables[which - 1].get(int(self._row[position]))
        return T.map(_own, self._singles.get(position))

    def put(self, position: int, state: Tree) -> None:
        """Replace a client's state."""
        known = form_of(state)
        table = None if known is None else self._table(known[0])
        if known is None or table is None:
            self._leave(np.array([position], dtype=np.int64))
            self._singles[position] = T.map(_own, state)
            self._changed.add(position)
            return
        self._write(table, np.array([position], dtype=np.int64), [None if v is None else [v] for v in known[1]])

    # ------------------------------------------------------------------ many clients

    def knows(self, positions: NDArray[np.int64]) -> bool:
        """Whether any of these clients has a state."""
        if not self._tables and not self._singles:
            return False
        return bool(self._find(positions)[0].any()) or any(p in self._singles for p in positions.tolist())

    def put_all(self, states: States) -> None:
        """Replace the states of some clients."""
        for position, state in states.singles.items():
            self.put(position, state)
        for block in states.blocks:
            known = form_of_block(block.stacked, block.kinds, len(block.positions))
            table = None if known is None else self._table(known[0])
            if known is None or table is None:
                for position, state in block.rows():
                    self.put(position, state)
            else:
                self._write(table, block.positions, known[1])

    def discard(self, positions: NDArray[np.int64]) -> None:
        """Remove the states of some clients, as if they never had one."""
        self._leave(positions)

    def pick(self, positions: NDArray[np.int64]) -> States:
        """The states of some clients; clients without one are left out."""
        which, row = self._find(positions)
        found = States()
        for k in np.unique(which[which > 0]).tolist():
            mask, table = which == k, self._tables[k - 1]
            stacked = table.form.build(table.read(row[mask]))
            found.blocks.append(StateBlock(positions[mask], stacked, table.form.kinds))
        if self._singles:
            alone = [p for p in positions[which == 0].tolist() if p in self._singles]
            found.singles = {p: self.get(p) for p in alone}
        return found

    def gather(self, positions: NDArray[np.int64], fresh: Tree = None) -> Tree:
        """The states of some clients, stacked: leaves with a leading client axis, one indexing operation each.

        Args:
            positions: positions of the clients.
            fresh: the state of a client without one.

        Returns:
            The stacked states; ``None`` if they cannot be stacked: their forms differ, or some client has no state and ``fresh`` is ``None``.
        """
        which, row = self._find(positions)
        known = None if fresh is None else form_of(fresh)
        missing = which == 0
        if missing.any() and (known is None or any(p in self._singles for p in positions[missing].tolist())):
            return None
        tables = np.unique(which[~missing]).tolist()
        if len(tables) > 1 or not len(positions):
            return None
        if not tables:
            return None if known is None else _repeated(*known, len(positions))
        table = self._tables[tables[0] - 1]
        if not missing.any():
            return table.form.build(table.read(row))
        if known is None or known[0] != table.form:
            return None
        stacked = _repeated(*known, len(positions))
        for to, column in zip(T.leaves(stacked), table.read(row[~missing]), strict=True):
            if to is not None:
                to[~missing] = column
        return stacked

    # ------------------------------------------------------------------ generations

    def positions(self, *, changed: bool = False) -> NDArray[np.int64]:
        """Positions of the clients with a state here (with ``changed``: one written since the last ``settle``), ascending."""
        singles = self._changed if changed else self._singles
        rows = [table.owners(changed=changed) for table in self._tables]
        return np.sort(np.concatenate([np.array(sorted(singles), dtype=np.int64), *rows]))

    def settle(self) -> None:
        """Mark all states as not changed."""
        self._changed.clear()
        for table in self._tables:
            table.dirty[:] = False

    def parts(self, positions: NDArray[np.int64], nbytes: int) -> Iterator[States]:
        """The states of some clients in parts of about this many bytes, so that writing them takes little memory."""
        which, _ = self._find(positions)
        sizes = np.array([0, *(table.records.dtype.itemsize for table in self._tables)], dtype=np.int64)[which]
        alone = np.flatnonzero(which == 0)
        sizes[alone] = [M.nbytes(self._singles[p]) for p in positions[alone].tolist()]
        part = (np.cumsum(sizes) - sizes) // nbytes
        for cut in np.split(positions, np.flatnonzero(np.diff(part)) + 1):
            if len(cut):
                yield self.pick(cut)

    # ------------------------------------------------------------------ locations

    def _find(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
        self._widen(int(positions.max(initial=-1)) + 1)
        return self._which[positions], self._row[positions]

    def _widen(self, size: int) -> None:
        """Make room for this many positions; unused pages cost no memory."""
        old = len(self._which)
        if size <= old:
            return
        at = np.flatnonzero(self._which)
        which, row = self._which[at], self._row[at]
        self._which = np.zeros(max(size, 2 * old), dtype=np.int16)
        self._row = np.zeros(len(self._which), dtype=np.int64)
        self._which[at], self._row[at] = which, row

    def _table(self, form: Form) -> Table | None:
        for table in self._tables:
            if table.form == form:
                return table
        if len(self._tables) < MOST_FORMS:
            self._tables.append(Table(form, self._allowance))
            return self._tables[-1]
        for k, table in enumerate(self._tables):
            if not len(table):  # all clients have moved to other tables
                self._tables[k] = Table(form, self._allowance)
                return self._tables[k]
        return None

    def _write(self, table: Table, positions: NDArray[np.int64], columns: list[Any]) -> None:
        number = self._tables.index(table) + 1
        which, row = self._find(positions)
        elsewhere = which != number
        if elsewhere.any():
            row[elsewhere] = table.add(positions[elsewhere])
            self._leave(positions[elsewhere])
            self._which[positions] = number
            self._row[positions] = row
        table.write(row, columns)

    def _leave(self, positions: NDArray[np.int64]) -> None:
        """Remove the locations of these clients' states."""
        which, row = self._find(positions)
        for k in np.unique(which[which > 0]).tolist():
            self._tables[k - 1].remove(row[which == k])
        self._which[positions] = 0
        if self._singles:
            for position in positions.tolist():
                self._singles.pop(position, None)
                self._changed.discard(position)


def _repeated(form: Form, values: list[Any], count: int) -> Tree:
    pairs = zip(form.leaves, values, strict=True)
    return form.build([
        None if leaf.kind == "none" else np.repeat(np.asarray(value, dtype=leaf.dtype)[None], count, axis=0)
        for leaf, value in pairs
    ])  # fmt: skip


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
