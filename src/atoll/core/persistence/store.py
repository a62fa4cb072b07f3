"""Storage of private state between rounds, and across a crash.

A store belongs to a host and has a table of states for each slot. A slot is one program's scope, so two concurrent programs never see each
other's states. What uplink stages remember, and what reducers keep, is in separate slots below it (``slot//...``), which are removed with it.
``commit`` writes the changes since the last generation to segment files; the manifest of the checkpoint decides
which segments count. A crash between the two leaves segments that no manifest names: they are removed when the run is opened again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ..algebra.rng import hash64
from ..algebra.tree import Tree
from ..errors import CheckpointError
from .checkpoint import within
from .files import read_message, write_message
from .records import Allowance
from .state_table import States, StateTable

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Owners", "StateStore"]

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

    def touched(self, slot: str) -> list[int]:
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
                    write_message(self.folder / name, {"slot": own, **part.packed(), "owners": self._owners(part)})
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
