"""Names and tags of clients, as sequences that store no string per client."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError, nearest

__all__ = ["ColumnNames", "Tags"]


class ColumnNames(Sequence[str]):
    """The clients' names: natural keys if given, else "client-0", "client-1", ... made on access.

    Args:
        ids: client numbers, shape ``(clients,)``.
        keys: the natural keys of the whole population, indexed by client number, or ``None``.
    """

    def __init__(self, ids: NDArray[np.int64], keys: NDArray[Any] | None = None) -> None:
        self._ids = ids
        self._keys = keys
        self._lookup: dict[str, int] | None = None

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnNames: ...
    def __getitem__(self, index: int | slice) -> str | ColumnNames:
        if isinstance(index, slice):
            return ColumnNames(self._ids[index], self._keys)
        client = int(self._ids[index])
        return f"client-{client}" if self._keys is None else str(self._keys[client])

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def at(self, positions: NDArray[np.int64]) -> list[str]:
        """Return the names at these positions."""
        clients = self._ids[positions].tolist()
        return [f"client-{i}" for i in clients] if self._keys is None else [str(self._keys[i]) for i in clients]

    def index(self, value: Any, start: int = 0, stop: int | None = None) -> int:
        """Return the position of a name.

        Raises:
            DataError: there is no such client; suggests the nearest name (among the first thousand).
        """
        found = self._find(value)
        if start <= found < (len(self) if stop is None else stop):
            return found
        few = [self[i] for i in range(min(len(self), 1000))]
        raise DataError(f"no client named {value!r}.{nearest(str(value), few)}", remedy="see islands.names")

    def _find(self, value: Any) -> int:
        if self._keys is not None:
            if self._lookup is None:
                self._lookup = {name: i for i, name in enumerate(self)}
            return self._lookup.get(value, -1)
        number = str(value).removeprefix("client-")
        if value == number or not number.isdecimal():
            return -1
        here = np.flatnonzero(self._ids == int(number))
        return int(here[0]) if len(here) else -1

    def __contains__(self, value: object) -> bool:
        return self._find(value) >= 0

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Sequence)
            and len(other) == len(self)
            and all(a == b for a, b in zip(self, other, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3]))
        return f"[{shown}, ... {len(self):,} names]" if len(self) > 3 else f"[{shown}]"


class Tags(Sequence[str]):
    """The corruption of each client, ``""`` for none: one byte per client.

    Args:
        codes: shape ``(clients,)``, uint8; 0 is none, ``k`` is ``labels[k - 1]``.
        labels: the corruptions' names.
    """

    def __init__(self, codes: NDArray[np.uint8], labels: Sequence[str] = ()) -> None:
        self._codes = codes
        self.labels = tuple(labels)

    def __len__(self) -> int:
        return len(self._codes)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Tags: ...
    def __getitem__(self, index: int | slice) -> str | Tags:
        if isinstance(index, slice):
            return Tags(self._codes[index], self.labels)
        code = int(self._codes[index])
        return self.labels[code - 1] if code else ""

    def take(self, positions: NDArray[np.int64]) -> Tags:
        """Return the tags at some positions."""
        return Tags(self._codes[positions], self.labels)

    def where(self, label: str) -> NDArray[np.int64]:
        """Return the positions of the clients with this tag (``""``: the clean ones).

        Raises:
            DataError: no client of this population can have the tag.
        """
        if label == "":
            return np.flatnonzero(self._codes == 0)
        if label not in self.labels:
            raise DataError(
                f"no tag {label!r}.{nearest(label, self.labels)}",
                remedy=f"use one of {', '.join(self.labels) or 'none: nothing is corrupted'}",
            )
        return np.flatnonzero(self._codes == self.labels.index(label) + 1)

    def counts(self) -> dict[str, int]:
        """Map each tag to its number of clients, without the clean ones."""
        found = np.bincount(self._codes, minlength=len(self.labels) + 1)
        return {label: int(found[k + 1]) for k, label in enumerate(self.labels)}

    def __repr__(self) -> str:
        shown = ", ".join(f"{label}: {n:,}" for label, n in self.counts().items())
        return f"Tags({len(self):,} clients; {shown or 'none'})"
