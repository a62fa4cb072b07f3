"""`Shard`: one client's rows."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

from ._checks import Array
from .dataset import Dataset, Rows

if TYPE_CHECKING:
    from ._supply import Supply

__all__ = ["Shard"]


class Shard:
    """A view of one client's rows. Columns are made or copied when you access them, and ``len`` is free.

    ``shard["x"]`` always equals ``shard.source["x"][shard.rows]``. Shards of one partition share their ``source``,
    so that an engine can fetch the rows of many clients with one indexing call (see `Islands.gather`). A generated
    or corrupted shard has its own source. The arrays may be read-only views: copy before you write.

    Attributes:
        client: the client's number in the population that it was made in; a subset does not change it.
        name: the client's name.
        tag: the corruption applied to this client, ``""`` for none.
        held_out: the client's rows that it does not train on, or ``None``; see `Islands.with_held_out`.
    """

    __slots__ = ("_found", "_supply", "client", "held_out", "name", "tag")
    __iter__ = None

    def __init__(self, supply: Supply, client: int, name: str, tag: str = "", held_out: Shard | None = None) -> None:
        self._supply = supply
        self._found: tuple[Dataset, Rows] | None = None
        self.client = client
        self.name = name
        self.tag = tag
        self.held_out = held_out

    def _locate(self) -> tuple[Dataset, Rows]:
        if self._found is None:
            self._found = self._supply.locate(self.client)
        return self._found

    @property
    def source(self) -> Dataset:
        """The data set that contains the rows."""
        return self._locate()[0]

    @property
    def rows(self) -> Rows:
        """Row numbers in ``source``: an int64 array ``(len,)``, or a slice if the rows are adjacent."""
        return self._locate()[1]

    @property
    def origin(self) -> tuple[Hashable, int]:
        """Where the rows come from: equal for two shards of one process only if their rows are the same. What follows from rows can be kept by it."""
        return self._supply, self.client

    @property
    def x(self) -> Array:
        """The features."""
        return self["x"]

    @property
    def y(self) -> Array:
        """The labels or targets."""
        return self["y"]

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return self._supply.schema().columns

    def dataset(self) -> Dataset:
        """Return the rows as a `Dataset` (a view)."""
        return self.source._view(self.rows)

    def __getitem__(self, column: str) -> Array:
        source, rows = self._locate()
        return source[column][rows]

    def __contains__(self, column: object) -> bool:
        return column in self.columns

    def __len__(self) -> int:
        return self._supply.size_of(self.client)

    def __repr__(self) -> str:
        tag = f", {self.tag}" if self.tag else ""
        return f"Shard({self.name!r}: {len(self):,} rows{tag})"
