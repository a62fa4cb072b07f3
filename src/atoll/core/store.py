"""Where private state lives between rounds, and how it survives a crash.

A store belongs to a host and keeps ``(slot, party) -> state``. A slot is one program's scope, so two concurrent programs never see each
other's state. ``commit`` writes what changed since the last generation into a segment file; the manifest of the checkpoint decides
which segments count. A crash between the two leaves a segment that nobody names: it is removed when the store opens.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from .errors import CheckpointError
from .files import read_message, write_message
from .rng import hash64
from .tree import Tree

__all__ = ["StateStore"]


class StateStore:
    """Private state of the parties of one host.

    Args:
        folder: where segments go; ``None`` keeps everything in memory.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self._live: dict[str, dict[int, Tree]] = defaultdict(dict)
        self._dirty: dict[str, set[int]] = defaultdict(set)

    def get(self, slot: str, position: int) -> Tree:
        """A party's state in a slot, ``None`` when it has none."""
        return self._live[slot].get(position)

    def put(self, slot: str, position: int, state: Tree) -> None:
        """Replace a party's state; the old generation stays as it was."""
        self._live[slot][position] = state
        self._dirty[slot].add(position)

    def touched(self, slot: str) -> list[int]:
        """Positions that have state in a slot."""
        return sorted(self._live[slot])

    def commit(self, slot: str, generation: int, *, full: bool = False) -> list[str]:
        """Write what changed in a slot; return the names of the new segments (none when nothing changed).

        Args:
            slot: the scope.
            generation: number of the generation that will name the segments.
            full: write everything, so that older segments can be forgotten.

        Raises:
            CheckpointError: the segment cannot be written; the previous generation is untouched.
        """
        dirty = sorted(self._live[slot] if full else self._dirty[slot])
        if self.folder is None or not dirty:
            return []
        name = f"state-{generation:08d}-{hash64(slot):016x}.msg"
        content = {"slot": slot, "positions": dirty, "states": [self._live[slot][p] for p in dirty]}
        write_message(self.folder / name, content)
        return [name]

    def settle(self, slot: str) -> None:
        """The generation is safe: what was committed is no longer new."""
        self._dirty[slot].clear()

    def load(self, slot: str, segments: list[str]) -> None:
        """Go back to the generation whose segments are named, oldest first."""
        self._live[slot] = {}
        self._dirty[slot].clear()
        for name in segments:
            if self.folder is None:
                raise CheckpointError(f"segment {name!r} without a folder", remedy="open the store with its folder")
            content: dict[str, Any] = read_message(self.folder / name)
            self._live[slot].update(zip(content["positions"], content["states"], strict=True))

    def drop(self, slot: str) -> None:
        """Forget a slot that ended."""
        self._live.pop(slot, None)
        self._dirty.pop(slot, None)
