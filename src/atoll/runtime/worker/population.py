"""The population as a site sees it: everyone's names and sizes, and the rows of its own clients."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from atoll.core.errors import PolicyError
from atoll.core.requests.cohort import Community, Population

__all__ = ["LiveCommunity", "LiveData", "SitePopulation", "is_connection"]


class LiveData:
    """A live connection to a database. It belongs to the thread that opened it; another thread that uses it opens one of its own.

    Tasks run in one thread, roles of conversations in another.

    Args:
        first: the connection of this thread.
        open: opens another one.
    """

    def __init__(self, first: Any, open: Callable[[], Any]) -> None:  # noqa: A002 - what it does
        self._open = open
        self._own = threading.local()
        self._own.connection = first

    @property
    def here(self) -> Any:
        """The connection of the calling thread."""
        if not hasattr(self._own, "connection"):
            self._own.connection = self._open()
        return self._own.connection


def is_connection(made: Any) -> bool:
    """Tell whether an object is a connection to a database, as PEP 249 describes them."""
    return all(callable(getattr(made, name, None)) for name in ("cursor", "commit", "rollback", "close"))


class LiveCommunity(Community):
    """One client, whose data are a live connection."""

    def shard(self, i: int) -> Any:
        """The connection of the calling thread."""
        return super().shard(i).here


class _Here(dict[str, Any]):
    """Data of the parties without clients that live at this site."""

    def get(self, name: str, default: Any = None) -> Any:
        """Those of one.

        Raises:
            PolicyError: the party is at another site.
        """
        if name not in self:
            raise _elsewhere(name)
        found = super().get(name, default)
        return found.here if isinstance(found, LiveData) else found


class SitePopulation:
    """All clients of a job by position; only those of this site have data here.

    Args:
        names: of all clients, in the order of the roster.
        sizes: rows of each, ``(clients,)``.
        mine: positions of this site's clients, in the order of ``data``.
        data: their rows.
        others: data of the parties without clients that live here: nobody's, but at a helper.
    """

    def __init__(
        self,
        names: Sequence[str],
        sizes: ArrayLike,
        mine: Sequence[int],
        data: Population,
        others: Mapping[str, Any] | None = None,
    ) -> None:
        self.names = names
        self.sizes: NDArray[np.int64] = np.asarray(sizes, dtype=np.int64)
        self.data = data
        self.others = _Here(others or {})
        self._local = {int(position): i for i, position in enumerate(mine)}
        if hasattr(data, "gather"):
            self.gather = self._gather

    def __len__(self) -> int:
        return len(self.names)

    def shard(self, i: int) -> Any:
        """Return the data of a client of this site.

        Raises:
            PolicyError: the client is at another site.
        """
        return self.data.shard(self._here(i))

    def _gather(self, clients: ArrayLike, *columns: str) -> Any:
        """Return columns of several clients of this site; see `atoll.data.Islands.gather`."""
        places = [self._here(int(client)) for client in np.asarray(clients)]
        return self.data.gather(places, *columns)  # type: ignore[attr-defined]

    def _here(self, i: int) -> int:
        if int(i) not in self._local:
            raise _elsewhere(self.names[i])
        return self._local[int(i)]


def _elsewhere(name: str) -> PolicyError:
    return PolicyError(
        f"the data of {name!r} are not at this site",
        where="site",
        remedy="ask the site that has them; a task sees its own island only",
    )
