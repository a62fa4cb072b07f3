"""A state table: the private states of one scope, in columns.

States of one form (structure, dtypes, shapes) are rows of one table, so that a block of clients is read and written with one indexing
operation a leaf, for any number of clients. States that columns cannot store, and forms beyond the first few, are stored client by client.
No caller gets the memory itself: written states are copied in, and read states are copies.

Storage of private state between rounds, and across a crash.

A store belongs to a host and has a table of states for each slot. A slot is one program's scope, so two concurrent programs never see each
other's states. What uplink stages remember, and what reducers keep, is in separate slots below it (``slot//...``), which are removed with it.
``commit`` writes the changes since the last generation to segment files; the manifest of the checkpoint decides
which segments count. A crash between the two leaves segments that no manifest names: they are removed when the run is opened again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from .. import message as M
from ..algebra import tree as T
from ..algebra.form import Form, form_of, form_of_block, kinds_of_block
from ..algebra.rng import hash64
from ..algebra.tree import Tree
from ..errors import CheckpointError
from .checkpoint import within
from .files import read_message, write_message
from .records import Allowance, Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Owners", "StateBlock", "StateStore", "StateTable", "States", "Table"]


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
            yield from zip(self.positions.tolist(), T.unstack_trees(self.stacked, len(self.positions)), strict=True)
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

    def pack(self) -> dict[str, Any]:
        """The states as a message."""
        return {
            "singles": [[position, state] for position, state in self.singles.items()],
            "blocks": [[block.positions, block.stacked, block.kinds] for block in self.blocks],
        }

    @staticmethod
    def unpack(packed: Any) -> States:
        """The inverse of ``pack``."""
        blocks = [StateBlock(positions, stacked, list(kinds)) for positions, stacked, kinds in packed["blocks"]]
        return States(dict(packed["singles"]), blocks)


# ---------------------------------------------------------------------- states of one form as columns


class Table:
    """States of one form.

    Args:
        form: the form that they have in common.
        allowance: memory for the rows.

    Attributes:
        records: the rows. The columns are the fields of one array of records, so that a client's state is contiguous on disk.
        dirty: which rows were written since the last generation.
    """

    def __init__(self, form: Form, allowance: Allowance) -> None:
        self.form = form
        self.records = Records(form.record, allowance)
        self.dirty = np.zeros(0, dtype=bool)
        self._owner = np.zeros(0, dtype=np.int64)  # position by row, -1 for a free row
        self._used = 0
        self._free: list[int] = []

    def __len__(self) -> int:
        return self._used - len(self._free)

    def add(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Allocate rows for clients that have none here."""
        again = min(len(positions), len(self._free))
        new = len(positions) - again
        self.records.reserve(self._used + new)
        if len(self.records) > len(self._owner):
            more = len(self.records) - len(self._owner)
            self._owner = np.concatenate([self._owner, np.full(more, -1, dtype=np.int64)])
            self.dirty = np.concatenate([self.dirty, np.zeros(more, dtype=bool)])
        reused = np.array([self._free.pop() for _ in range(again)], dtype=np.int64)
        rows = np.concatenate([reused, np.arange(self._used, self._used + new, dtype=np.int64)])
        self._used += new
        self._owner[rows] = positions
        return rows

    def remove(self, rows: NDArray[np.int64]) -> None:
        """Remove these rows: their clients have no state here any more."""
        self._owner[rows] = -1
        self.dirty[rows] = False
        self._free.extend(rows.tolist())

    def owners(self, *, changed: bool = False) -> NDArray[np.int64]:
        """The clients of all (or only the changed) rows."""
        owner = self._owner[: self._used]
        return owner[self.dirty[: self._used] if changed else owner >= 0]

    def write(self, rows: NDArray[np.int64], columns: list[Any]) -> None:
        """Write rows: a column for each leaf, with a leading client axis."""
        for i, (leaf, column) in enumerate(zip(self.form.leaves, columns, strict=True)):
            if leaf.kind != "none":
                self.records.column(str(i))[rows] = column
        self.dirty[rows] = True
        self.records.note_touched(len(rows))

    def read(self, rows: NDArray[np.int64]) -> list[Any]:
        """Copies of rows: a column for each leaf."""
        columns = [
            None if leaf.kind == "none" else self.records.column(str(i))[rows]
            for i, leaf in enumerate(self.form.leaves)
        ]
        self.records.note_touched(len(rows))
        return columns

    def get(self, row: int) -> Tree:
        """One client's state."""
        values = [
            None if leaf.kind == "none" else leaf.value(self.records.column(str(i))[row])
            for i, leaf in enumerate(self.form.leaves)
        ]
        self.records.note_touched(1)
        return self.form.build(values)


# ---------------------------------------------------------------------- all states of a slot


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
            return None if known is None else _repeat_values(*known, len(positions))
        table = self._tables[tables[0] - 1]
        if not missing.any():
            return table.form.build(table.read(row))
        if known is None or known[0] != table.form:
            return None
        stacked = _repeat_values(*known, len(positions))
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


def _repeat_values(form: Form, values: list[Any], count: int) -> Tree:
    pairs = zip(form.leaves, values, strict=True)
    return form.build([
        None if leaf.kind == "none" else np.repeat(np.asarray(value, dtype=leaf.dtype)[None], count, axis=0)
        for leaf, value in pairs
    ])  # fmt: skip


def _own(leaf: Any) -> Any:
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


# ---------------------------------------------------------------------- the states of all scopes


SEGMENT_BYTES = 16 << 20
"""Approximate size of a segment: writing or reading one takes a few times as much memory."""


class Owners(Protocol):
    """Those whose states are kept, by position; a roster of parties is such."""

    def __len__(self) -> int:
        """How many there are."""
        ...

    def name(self, position: int, /) -> str:
        """The name of one."""
        ...

    def keys(self, positions: NDArray[np.int64], /) -> NDArray[np.uint64]:
        """A number for each name, which another name hardly ever has."""
        ...


class StateStore:
    """Private states of the parties of one host.

    Args:
        folder: folder of the segments; ``None`` writes none.
        roster: all parties; each state of a segment must belong to one of them.
        memory: bytes of memory for states in columns; the rest goes to memory-mapped files in the folder (or the system's temporary
            one). ``None`` is a quarter of this machine's memory. States that columns cannot store stay in memory.

    Attributes:
        tables: states by slot.
    """

    def __init__(self, folder: Path | None = None, roster: Owners | None = None, memory: int | None = None) -> None:
        self.folder = folder
        self.roster = roster
        self.allowance = Allowance(memory, folder)
        self.tables: dict[str, StateTable] = {}

    def table(self, slot: str) -> StateTable:
        """The states of a slot."""
        if slot not in self.tables:
            self.tables[slot] = StateTable(self.allowance)
        return self.tables[slot]

    def get(self, slot: str, position: int) -> Tree:
        """A copy of a party's state in a slot, ``None`` if it has none."""
        return self.table(slot).get(position)

    def put(self, slot: str, position: int, state: Tree) -> None:
        """Replace a party's state; the old generation stays unchanged."""
        self.table(slot).put(position, state)

    def list_touched(self, slot: str) -> list[int]:
        """Positions with a state in a slot."""
        return [int(position) for position in self.table(slot).positions()]

    def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write the changes of a slot; return the names of the new segments (none if nothing changed).

        Args:
            slot: the scope.
            generation: number of the generation that will name the segments.
            full: whether to write everything, so that older segments can be removed.

        Raises:
            CheckpointError: a segment cannot be written; the previous generation stays intact.
        """
        if self.folder is None:
            return []
        names = list[str]()
        try:
            for own, table in self._tables_of(slot):
                for part in table.parts(table.positions(changed=not full), SEGMENT_BYTES):
                    name = f"state-{generation:08d}-{hash64(slot):016x}-{len(names):04d}.msg"
                    write_message(self.folder / name, {"slot": own, **part.pack(), "owners": self._owners(part)})
                    names.append(name)
        except Exception:
            for name in names:
                with contextlib.suppress(OSError):
                    (self.folder / name).unlink()
            raise
        return names

    def settle(self, slot: str) -> None:
        """Mark the generation as safe: what was committed no longer counts as changed."""
        for _, table in self._tables_of(slot):
            table.settle()

    def load(self, slot: str, segments: list[str]) -> None:
        """Restore the generation with these segments, oldest first.

        Raises:
            CheckpointError: a segment cannot be read, or has the state of a party that no longer exists.
        """
        for own, _ in self._tables_of(slot):
            del self.tables[own]
        for name in segments:
            if self.folder is None:
                raise CheckpointError(f"segment {name!r} without a folder", remedy="open the store with its folder")
            content: dict[str, Any] = read_message(self.folder / name)
            states = States.unpack(content)
            self._check_owners(states, content["owners"], self.folder / name)
            self.table(content["slot"]).put_all(states)
        self.settle(slot)

    def _tables_of(self, slot: str) -> list[tuple[str, StateTable]]:
        """The table of a slot, and those of its uplink stages' memory (see ``Request.memory``): they are one generation."""
        self.table(slot)
        return [
            (name, self.tables[name]) for name in sorted(self.tables) if name == slot or name.startswith(slot + "//")
        ]

    def drop(self, slot: str) -> None:
        """Remove a slot that ended, and every slot inside it."""
        for name in [name for name in self.tables if within(name, slot)]:
            del self.tables[name]

    def _owners(self, states: States) -> NDArray[np.uint64] | None:
        """The hash of each owner's name."""
        return None if self.roster is None else self.roster.keys(states.positions())

    def _check_owners(self, states: States, owners: NDArray[np.uint64] | None, path: Path) -> None:
        if self.roster is None or owners is None:
            return
        remedy = "resume with the islands that the run began with, in the same order, or start a new run"
        positions = states.positions()
        gone = positions[positions >= len(self.roster)]
        if len(gone):
            raise CheckpointError(
                f"it has private state of party number {int(gone[0])}, but the federation has {len(self.roster)} parties",
                where=str(path),
                remedy=remedy,
            )
        other = positions[self.roster.keys(positions) != owners]
        if len(other):
            number = int(other[0])
            raise CheckpointError(
                f"the private state of party number {number} belongs to another party than {self.roster.name(number)!r}",
                where=str(path),
                remedy=remedy,
            )
