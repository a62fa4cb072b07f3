"""A block of rows by column: numbers stand side by side in arrays, and each comes back with its own type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

__all__ = ["RowBlock"]

_NUMBERS = {float: np.float64, int: np.int64, bool: np.bool_}
_OBJECT = 64
"""Bytes that a value outside an array is taken to need."""

Column = tuple[str, Any]
"""Its kind, and its content: ``same`` (one value for all rows), ``float``, ``int``, ``bool`` and ``scalar`` (an array; what NumPy made stays NumPy's),
``lists`` (one array and the lengths), ``any`` (the values)."""


class RowBlock:
    """Rows, packed. It is read only, and its `tree` can be written as a message if the values can.

    Args:
        length: number of rows.
        forms: the keys of a row, in order, for each form that occurs.
        which: the form of each row.
        columns: the packed values of each key, of the rows that have it.
    """

    def __init__(self, length: int, forms: Sequence[Sequence[str]], which: Any, columns: Mapping[str, Column]) -> None:
        self.length, self.forms, self.which, self.columns = length, forms, which, columns

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> RowBlock:
        """Pack rows."""
        forms: dict[tuple[str, ...], int] = {}
        which = [forms.setdefault(tuple(row), len(forms)) for row in rows]
        columns = {name: _packed([row[name] for row in rows if name in row]) for form in forms for name in form}
        return cls(len(rows), list(forms), None if len(forms) == 1 else np.array(which, np.int32), columns)

    @property
    def tree(self) -> dict[str, Any]:
        """The block as a tree."""
        columns = {name: [kind, content] for name, (kind, content) in self.columns.items()}
        return {
            "length": self.length,
            "forms": [list(form) for form in self.forms],
            "which": self.which,
            "columns": columns,
        }

    @classmethod
    def read(cls, tree: Mapping[str, Any]) -> RowBlock:
        """The block of a tree."""
        columns = {name: (kind, content) for name, (kind, content) in tree["columns"].items()}
        return cls(tree["length"], tree["forms"], tree["which"], columns)

    @property
    def nbytes(self) -> int:
        """Bytes that it needs in memory, about."""
        return sum(_nbytes(content) for _, content in self.columns.values())

    def rows(self) -> list[dict[str, Any]]:
        """Unpack the rows."""
        values = {name: _values(column, self._count(name)) for name, column in self.columns.items()}
        which = [0] * self.length if self.which is None else self.which.tolist()
        return [{name: next(values[name]) for name in self.forms[form]} for form in which]

    def column(self, name: str) -> list[Any]:
        """The values of a key; ``None`` where a row lacks it."""
        if name not in self.columns:
            return [None] * self.length
        values = _values(self.columns[name], self._count(name))
        if self.which is None:
            return list(values)
        has = [name in form for form in self.forms]
        return [next(values) if has[form] else None for form in self.which.tolist()]

    def _count(self, name: str) -> int:
        if self.which is None:
            return self.length
        has = np.array([name in form for form in self.forms])
        return int(has[self.which].sum())


def _packed(values: list[Any]) -> Column:
    """Pack values so that each comes back as it is, its type included."""
    kinds = {type(value) for value in values}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind in (type(None), str, bool) and all(value == values[0] for value in values):
        return "same", values[0]
    if kind in _NUMBERS:
        try:
            return kind.__name__, np.array(values, _NUMBERS[kind])
        except OverflowError:  # a whole number beyond 64 bits
            return "any", values
    if kind is not None and issubclass(kind, np.number | np.bool_):
        return "scalar", np.array(values, values[0].dtype)
    if kind is list:
        return _packed_lists(values)
    return "any", values


def _packed_lists(values: list[list[Any]]) -> Column:
    kinds = {type(item) for value in values for item in value}
    kind = kinds.pop() if len(kinds) == 1 else None
    if kind not in _NUMBERS:
        return "any", values
    try:
        flat: Any = np.array([item for value in values for item in value], _NUMBERS[kind])
    except OverflowError:
        return "any", values
    return "lists", [flat, np.array([len(value) for value in values], np.int64)]


def _values(column: Column, count: int) -> Iterator[Any]:
    kind, content = column
    if kind == "same":
        return iter([content] * count)
    if kind == "scalar":
        return iter(list(content))
    if kind == "lists":
        flat = content[0].tolist()
        return (flat[start:end] for start, end in pairwise([0, *accumulate(content[1].tolist())]))
    return iter(content if kind == "any" else content.tolist())


def _nbytes(content: Any) -> int:
    if isinstance(content, np.ndarray):
        return content.nbytes
    return sum(map(_nbytes, content)) if isinstance(content, list) else _OBJECT
