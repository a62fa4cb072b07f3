"""What a server knows beforehand of its clients and their data."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Clients"]


class Clients:
    """What a server knows beforehand of its clients.

    Args:
        data: the federated data set: with ``names`` and a length, and with ``sizes`` and ``task`` where they are known.
        members: positions of those that this server has; ``None`` for all.
    """

    def __init__(self, data: Any, members: NDArray[np.int64] | None = None) -> None:
        self._data, self._members = data, members

    def __len__(self) -> int:
        return len(self._data) if self._members is None else len(self._members)

    @functools.cached_property
    def names(self) -> Sequence[str]:
        """Of each client."""
        names: Sequence[str] = self._data.names
        return names if self._members is None else [names[int(i)] for i in self._members]

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64] | None:
        """Examples of each client, ``(clients,)``; ``None`` where they are unknown."""
        sizes = getattr(self._data, "sizes", None)
        return sizes if sizes is None or self._members is None else np.asarray(sizes)[self._members]

    @property
    def task(self) -> str:
        """Of the data, such as ``"classification"``; empty where it is unknown."""
        return str(getattr(self._data, "task", ""))

    def part(self, members: NDArray[np.int64]) -> Clients:
        """Some of them, by position."""
        return Clients(self._data, members if self._members is None else self._members[members])

    def weight(self, members: NDArray[np.int64]) -> float:
        """Examples of some of them, or their number where sizes are unknown."""
        return float(len(members) if self.sizes is None else np.sum(np.asarray(self.sizes)[members]))
