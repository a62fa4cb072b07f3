"""Which segment files of private state a site may forget."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from atoll.core.persistence.state_table import StateStore

__all__ = ["Segments"]


class Segments:
    """Removes segments that neither of the server's last two generations names.

    Args:
        store: the store in whose folder they lie.
    """

    def __init__(self, store: StateStore) -> None:
        self._folder = store.folder
        self._named: dict[str, list[set[str]]] = {}

    def settle(self, slot: str, names: list[str]) -> None:
        """Note which segments the server's newest generation names for a slot."""
        before = self._named.setdefault(slot, [])
        before.append(set(names))
        if len(before) > 2:
            for name in before.pop(0) - before[0] - before[1]:
                if self._folder is not None:
                    with contextlib.suppress(OSError):
                        (self._folder / name).unlink()
