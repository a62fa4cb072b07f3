"""A table: states of one form, a row a client, one column a leaf."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..algebra.form import Form
from ..algebra.tree import Tree
from .records import Allowance, Records

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Table"]


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
        self.records.touched(len(rows))

    def read(self, rows: NDArray[np.int64]) -> list[Any]:
        """Copies of rows: a column for each leaf."""
        columns = [
            None if leaf.kind == "none" else self.records.column(str(i))[rows]
            for i, leaf in enumerate(self.form.leaves)
        ]
        self.records.touched(len(rows))
        return columns

    def get(self, row: int) -> Tree:
        """One client's state."""
        values = [
            None if leaf.kind == "none" else leaf.value(self.records.column(str(i))[row])
            for i, leaf in enumerate(self.form.leaves)
        ]
        self.records.touched(1)
        return self.form.build(values)
