"""What a server knows about its clients and their data before training."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Clients"]


class Clients:
    """What a server knows about its clients before training.

    Args:
        data: the federated data set: it has ``names`` and a length, and ``sizes`` and ``task`` if they are known.
        members: positions of this server's clients; ``None`` for all.
    """

    def __init__(self, data: Any, members: NDArray[np.int64] | None = None) -> None:
        self._data, self._members = data, members

    def __len__(self) -> int:
        return len(self._data) if self._members is None else len(self._members)

    @functools.cached_property
    def names(self) -> Sequence[str]:
        """The name of each client."""
        names: Sequence[str] = self._data.names
        return names if self._members is None else [names[int(i)] for i in self._members]

    @functools.cached_property
    def sizes(self) -> NDArray[np.int64] | None:
        """Examples of each client, ``(clients,)``; ``None`` if unknown."""
        sizes = getattr(self._data, "sizes", None)
        return sizes if sizes is None or self._members is None else np.asarray(sizes)[self._members]

    @property
    def task(self) -> str:
        """The task of the data, such as ``"classification"``; empty if unknown."""
        return str(getattr(self._data, "task", ""))

    def part(self, members: NDArray[np.int64]) -> Clients:
        """Return the clients at some positions."""
        return Clients(self._data, members if self._members is None else self._members[members])

    def weight(self, members: NDArray[np.int64]) -> float:
        """Return the number of examples of some clients, or the number of clients if sizes are unknown."""
        return float(len(members) if self.sizes is None else np.sum(np.asarray(self.sizes)[members]))
