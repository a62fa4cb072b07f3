"""Rows that grow by one a round: the newest as they are, older ones packed, and the oldest in a file."""

from __future__ import annotations

import contextlib
import tempfile
import weakref
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Self, overload

import numpy as np

from .. import message as M
from ..errors import AtollError

__all__ = ["PackedRows", "RowBlock"]


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
        columns = {name: _pack_values([row[name] for row in rows if name in row]) for form in forms for name in form}
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


def _pack_values(values: list[Any]) -> Column:
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


BLOCK = 256
"""Rows of a block."""
MEMORY = 1 << 20
"""Bytes of packed rows in memory, if there is a folder for the rest."""


class _File:
    """A file without a name, which vanishes with the process."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(prefix=".rows-", dir=folder)  # noqa: SIM115 - it lives as long as the rows
        weakref.finalize(self, self._file.close)

    def put(self, content: bytes) -> tuple[_File, int, int]:
        start = self._file.seek(0, 2)
        self._file.write(content)
        self._file.flush()
        return self, start, len(content)

    def get(self, start: int, length: int) -> Any:
        self._file.seek(start)
        return M.decode(self._file.read(length), copy=True)


class PackedRows(Sequence[dict[str, Any]]):
    """The records of a program: a sequence of dicts, oldest first, that needs little memory.

    The newest 256 rows, and up to 255 more, are kept as they are. Older rows are packed by column: a number takes 8 bytes. If there is a folder,
    blocks beyond 1 MiB go to a file there. A packed row is unpacked when you read it: it equals what was appended, types included, and a change
    to it changes nothing here.

    Args:
        rows: the first rows.
        folder: folder of the file; ``None`` keeps all rows in memory.
    """

    def __init__(self, rows: Iterable[Mapping[str, Any]] = (), folder: Path | None = None) -> None:
        self._folder = folder
        self._blocks: list[RowBlock | tuple[_File, int, int]] = []
        self._ends: list[int] = []
        self._tail: list[dict[str, Any]] = []
        self._in_memory = 0
        self._file: _File | None = None
        self._last: tuple[int, list[dict[str, Any]]] | None = None
        for row in rows:
            self.append(dict(row))

    def append(self, row: dict[str, Any]) -> None:
        """Add a row at the end."""
        self._tail.append(row)
        if len(self._tail) >= 2 * BLOCK:
            self._add(RowBlock.of(self._tail[:BLOCK]))
            del self._tail[:BLOCK]

    def __len__(self) -> int:
        return self._packed + len(self._tail)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        at = range(len(self))[index]
        if at >= self._packed:
            return self._tail[at - self._packed]
        block = bisect_right(self._ends, at)
        if self._last is None or self._last[0] != block:  # a reader who goes row by row unpacks a block once
            self._last = (block, self._block(block).rows())
        return dict(self._last[1][at - (self._ends[block - 1] if block else 0)])

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for index in range(len(self._blocks)):
            yield from self._block(index).rows()
        yield from self._tail

    def __eq__(self, other: Any) -> bool:
        same = isinstance(other, PackedRows | list) and len(other) == len(self)
        return same and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)

    @property
    def names(self) -> set[str]:
        """The keys that at least one row has."""
        found = set().union(*self._tail)
        for index in range(len(self._blocks)):
            found.update(self._block(index).columns)
        return found

    def column(self, name: str) -> list[Any]:
        """The values of a key, by row; ``None`` where a row lacks it."""
        found = [value for index in range(len(self._blocks)) for value in self._block(index).column(name)]
        return found + [row.get(name) for row in self._tail]

    def copy(self, *more: dict[str, Any]) -> Self:
        """The same rows, and more of them; what is packed is shared."""
        made = type(self)(folder=self._folder)
        made._blocks, made._ends, made._tail = [*self._blocks], [*self._ends], [*self._tail, *more]
        made._in_memory, made._file = self._in_memory, self._file
        return made

    def trees(self, after: int = 0) -> list[Any]:
        """The rows from a number on as trees that can be written as messages; see `extend`."""
        found: list[Any] = []
        if after == 0:
            found = [self._block(index).tree for index in range(len(self._blocks))]
        rest = self._tail if after == 0 else self[after:]
        return [*found, *([RowBlock.of(rest).tree] if rest else [])]

    def extend(self, trees: Iterable[Any]) -> None:
        """Add the rows of `trees`."""
        for tree in trees:
            block = RowBlock.read(tree)
            if self._tail or block.length < BLOCK:
                for row in block.rows():
                    self.append(row)
            else:
                self._add(block)

    @property
    def _packed(self) -> int:
        return self._ends[-1] if self._ends else 0

    def _add(self, block: RowBlock) -> None:
        self._ends.append(self._packed + block.length)
        self._blocks.append(block)
        self._in_memory += block.nbytes
        if self._folder is not None and self._in_memory > MEMORY:
            self._spill(self._folder)

    def _spill(self, folder: Path) -> None:
        """Move blocks from memory to the file; a block that cannot be written stays."""
        for index, block in enumerate(self._blocks):
            if isinstance(block, RowBlock):
                with contextlib.suppress(AtollError, OSError):
                    content = M.encode(block.tree)
                    self._file = self._file or _File(folder)
                    self._blocks[index] = self._file.put(content)
        self._in_memory = sum(block.nbytes for block in self._blocks if isinstance(block, RowBlock))

    def _block(self, index: int) -> RowBlock:
        block = self._blocks[index]
        if isinstance(block, RowBlock):
            return block
        file, start, length = block
        return RowBlock.read(file.get(start, length))
