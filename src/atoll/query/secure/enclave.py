"""What an enclave does with the rows of all sites: it makes the tables of a plan's operators by steps that do not depend on a value (`atoll.query.secure.operators`), after Zheng et al. 2017, "Opaque".

Rows lie in memory that the enclave's host watches. There are three kinds of steps: an *exchange* of two rows, or none, at places of Batcher's network; a *step* of a scan, which puts each row together with the row so many
places above; and what goes over all rows in their order. Everything else happens in registers: a choice between two values reads both. So a sort is a network, a group is a sort and a scan, and a join is a sort of both
tables, a scan, and a sort back; a join of many rows with many first makes as many copies of a row as it has partners.

Registers are few: a table lies in sealed blocks that the host keeps (`SealedMemory`), and a step opens what it needs and seals what it has made, each stage of a sort too.

How many rows tables have is seen. With ``told`` a table is cut to the rows that count, after each operator, and `AccessTrace` has the number: equal sizes, equal traces. Without it a table keeps a row for each that could be,
so that the sizes of the leaves alone decide.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import DataError
from atoll.secure.tables.sorting import exchange_pairs

from ..column_codes import ColumnCode
from .extents import bound_pairs, too_many_rows
from .host_memory import HostMemory, KeptColumns, OwnMemory
from .operators import (
    ChosenValue,
    Compared,
    Computed,
    Connected,
    Expanded,
    Filtered,
    Fixed,
    Flag,
    GroupColumn,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Limited,
    Looked,
    MissingValue,
    Negated,
    Operator,
    Order,
    Quotient,
    Ranked,
    RowCondition,
    SameTruth,
    Stacked,
    Stored,
    TruthValue,
    Value,
    WindowColumn,
)
from .tables import REPEATED_KEY, SEVERAL_ROWS

__all__ = ["AccessTrace", "EnclaveTable", "EnclaveTables"]

Array = NDArray[Any]
_TOP = np.uint64(1 << 63)
_NOWHERE = np.uint64((1 << 64) - 1)
_ROW, _KEY = "\0row", "\0key"


class AccessTrace:
    """What the enclave's host sees of the memory: which rows are read and written, in order.

    Args:
        memory: where tables lie; by default memory of who computes, where there is no host.

    Attributes:
        memory: where tables lie.
        steps: how many accesses it has.
        sizes: rows of tables that were told.
    """

    def __init__(self, memory: HostMemory | None = None) -> None:
        self.memory: HostMemory = OwnMemory() if memory is None else memory
        self._digest = hashlib.blake2b(digest_size=16)
        self.steps = 0
        self.sizes: list[int] = []

    def note(self, what: str, *places: Any) -> None:
        """An access: what it does, and at which rows."""
        self._digest.update(what.encode() + b"\0")
        for one in places:
            self._digest.update(np.ascontiguousarray(one, dtype=np.int64).tobytes() + b"\0")
        self.steps += 1

    def tell(self, rows: int) -> None:
        """A number of rows that depends on values."""
        self.sizes.append(rows)
        self.note("size", rows)

    @property
    def digest(self) -> str:
        """All accesses, in 16 bytes."""
        return self._digest.hexdigest()


class EnclaveTable:
    """Rows that the enclave's host sees come and go, and not what is in them.

    Args:
        columns: name -> a word of 64 bits a row; numbers have two's complement, bits are 0 or 1.
        valid: which rows count.
        trace: what the host sees.
    """

    def __init__(self, columns: Mapping[str, Array], valid: Array, trace: AccessTrace) -> None:
        self.columns, self.trace = KeptColumns(trace.memory, columns), trace
        made = np.asarray(valid, bool)
        self._valid, self._rows = trace.memory.write(made), len(made)

    def __len__(self) -> int:
        return self._rows

    @property
    def valid(self) -> Array:
        """Which rows count."""
        return self.trace.memory.read(self._valid)

    def with_columns(self, columns: Mapping[str, Array]) -> EnclaveTable:
        """The table with further columns, or others in their place."""
        made = {name: np.asarray(x).astype(np.uint64, copy=False) for name, x in columns.items()}
        self.trace.note("write", len(self), len(made))
        return EnclaveTable(self.columns.update_with(made), self.valid, self.trace)

    def keep_columns(self, names: Sequence[str]) -> EnclaveTable:
        """The table of some columns."""
        return EnclaveTable(self.columns.pick(names), self.valid, self.trace)

    def filter_rows(self, bits: Array) -> EnclaveTable:
        """The table in which rows count only if a bit is set; the number of rows stays."""
        self.trace.note("filter", len(self))
        return EnclaveTable(self.columns, self.valid & bits, self.trace)

    def take_rows(self, rows: slice) -> EnclaveTable:
        """The table of some rows in a row."""
        begin, end, _ = rows.indices(len(self))
        self.trace.note("take", begin, end)
        return EnclaveTable({name: x[rows] for name, x in self.columns.items()}, self.valid[rows], self.trace)

    def sort_rows(self, keys: Sequence[Array], *, last: bool = True) -> EnclaveTable:
        """The table in the order of words, equal rows as they were.

        Args:
            keys: words of each row, the first of which counts most.
            last: whether rows that do not count come last.
        """
        n = len(self)
        head = [*([(~self.valid).astype(np.uint64)] if last else []), *keys, np.arange(n, dtype=np.uint64)]
        memory = self.trace.memory
        kept = memory.write(np.column_stack([*head, *self.columns.values(), self.valid.astype(np.uint64)]))
        for low, high in exchange_pairs(n):
            self.trace.note("exchange", low, high)
            rows = memory.read(kept)
            one, other = rows[low], rows[high]
            wrong = _is_less(other.T[: len(head)], one.T[: len(head)])[:, None]
            rows[low], rows[high] = np.where(wrong, other, one), np.where(wrong, one, other)
            memory.write(rows, kept)
        moved = np.ascontiguousarray(memory.read(kept).T[len(head) :])
        return EnclaveTable(dict(zip(self.columns, moved, strict=False)), moved[-1].astype(bool), self.trace)

    def compact_rows(self) -> EnclaveTable:
        """The rows that count, one at least: how many these are is told."""
        count = int(self.valid.sum())
        self.trace.tell(count)
        return self.sort_rows([]).take_rows(slice(0, max(1, count)))


def concatenate_rows(tables: Sequence[EnclaveTable]) -> EnclaveTable:
    """The rows of all tables with the same columns, one table after the other."""
    names = list(tables[0].columns)
    columns = {name: np.concatenate([one.columns[name] for one in tables]) for name in names}
    tables[0].trace.note("append", [len(one) for one in tables])
    return EnclaveTable(columns, np.concatenate([one.valid for one in tables]), tables[0].trace)


def _is_less(one: Array, other: Array) -> Array:
    """Whether tuples of words, a row of words for each place, are less than others."""
    less, same = np.zeros(one.shape[1], bool), np.ones(one.shape[1], bool)
    for a, b in zip(one, other, strict=True):
        less |= same & (a < b)
        same &= a == b
    return less


def _scan(trace: AccessTrace, starts: Array, values: Sequence[Array], combine: Callable[[Sequence[Array], Sequence[Array]], Sequence[Array]]) -> list[Array]:  # fmt: skip
    """Each row's values put together with those above it, down to the start of its segment.

    Args:
        trace: what the host sees: each row is put together with the row 1, 2, 4 … places above.
        starts: where a segment begins.
        values: of each row.
        combine: of values above and a row's own what they are together; it is associative.
    """
    begun, made, d = starts.copy(), [np.array(one) for one in values], 1
    while d < len(begun):
        trace.note("step", len(begun), d)
        both = combine([one[:-d] for one in made], [one[d:] for one in made])
        made = [np.concatenate([one[:d], np.where(begun[d:], one[d:], new)]) for one, new in zip(made, both, strict=True)]  # fmt: skip
        begun = np.concatenate([begun[:d], begun[d:] | begun[:-d]])
        d *= 2
    return made


def _add(above: Sequence[Array], own: Sequence[Array]) -> list[Array]:
    return [a + b for a, b in zip(above, own, strict=True)]


def _first(above: Sequence[Array], own: Sequence[Array]) -> list[Array]:
    """The upper values, where they are there (the first of each says so)."""
    there = above[0] == 1
    return [np.where(there, a, b) for a, b in zip(above, own, strict=True)]


def _last(above: Sequence[Array], own: Sequence[Array]) -> list[Array]:
    return _first(own, above)


def _best(largest: bool) -> Callable[[Sequence[Array], Sequence[Array]], list[Array]]:
    """The smaller or larger one of values that are there."""

    def choose(above: Sequence[Array], own: Sequence[Array]) -> list[Array]:
        less = _is_less(np.stack(own[1:]), np.stack(above[1:])) if not largest else _is_less(np.stack(above[1:]), np.stack(own[1:]))  # fmt: skip
        mine = (own[0] == 1) & (less | (above[0] == 0))
        return [np.where(mine, b, a) for a, b in zip(above, own, strict=True)]

    return choose


def _differs(columns: Sequence[Array], n: int) -> Array:
    """Whether a row differs from the one above; the first does."""
    found = np.ones(n, bool)
    found[1:] = False
    for one in columns:
        found[1:] |= one[1:] != one[:-1]
    return found


@dataclass(frozen=True)
class _Cells:
    """A value of each row: words, or a number, or a number by another; and whether there is one."""

    code: ColumnCode
    there: Array
    limbs: tuple[Array, ...] = ()
    number: Array | None = None
    under: Array | None = None


class RowValues:
    """Values and conditions of the rows of a table, in registers: every row is computed alike, and a choice reads both of its values."""

    def __init__(self, table: EnclaveTable) -> None:
        self.table = table

    def cells(self, value: Value) -> _Cells:
        """A value."""
        table, n = self.table, len(self.table)
        if isinstance(value, Stored):
            there = table.columns[f"{value.name}?"] == 1
            if value.number:
                return _Cells(value.code, there, number=table.columns[value.name].view(np.int64))
            return _Cells(value.code, there, tuple(table.columns[one] for one in limb_names(table, value.name)))
        if isinstance(value, Fixed):
            return self._fixed(value, n)
        if isinstance(value, Computed):
            return self._computed(value)
        if isinstance(value, Quotient):
            over, under = self.cells(value.over), self.cells(value.under)
            scale = max(over.code.scale, under.code.scale)
            return _Cells(replace(value.code, scale=0), over.there & under.there, number=self.number(over, scale), under=self.number(under, scale))  # fmt: skip
        if isinstance(value, TruthValue):
            true, false = self.truth(value.condition)
            return _Cells(value.code, true | false, (true.astype(np.uint64) ^ _TOP,))
        return self._chosen(cast("ChosenValue", value))  # these are all values

    @staticmethod
    def _fixed(value: Fixed, n: int) -> _Cells:
        code, known = value.code, value.value
        there = np.full(n, known is not None)
        if code.kind == "whole":
            number = np.full(n, int(known or 0), np.int64)
            return _Cells(code, there, (number.view(np.uint64) ^ _TOP,), number)
        return _Cells(code, there, tuple(np.full(n, word) for word in code.encode_constant(known)))

    @staticmethod
    def number(cells: _Cells, scale: int) -> Array:
        """A number as a multiple of ``10^-scale``."""
        number = (cells.limbs[0] ^ _TOP).view(np.int64) if cells.number is None else cells.number
        return number * np.int64(10 ** (scale - cells.code.scale))

    @staticmethod
    def limbs(cells: _Cells, count: int = 0) -> list[Array]:
        """A value as words, filled up with zeros."""
        found = list(cells.limbs) if cells.limbs or cells.number is None else [cells.number.view(np.uint64) ^ _TOP]
        return [*found, *[np.zeros(len(cells.there), np.uint64)] * (count - len(found))]

    def _computed(self, value: Computed) -> _Cells:
        left, right = self.cells(value.left), self.cells(value.right)
        there = left.there & right.there
        if value.operation == "*":
            return _Cells(value.code, there, number=self.number(left, left.code.scale) * self.number(right, right.code.scale))  # fmt: skip
        x, y = (self.number(one, value.code.scale) for one in (left, right))
        return _Cells(value.code, there, number=x - y if value.operation == "-" else x + y)

    def _chosen(self, value: ChosenValue) -> _Cells:
        cells = [self.cells(one) for one in (*(one for _, one in value.cases), value.default)]
        count = max(len(self.limbs(one)) for one in cells)
        bare = [[self.number(one, value.code.scale)] if value.arithmetic else self.limbs(one, count) for one in cells]
        there, found = cells[-1].there, bare[-1]
        for k in reversed(range(len(value.cases))):
            true, _ = self.truth(value.cases[k][0])
            there = np.where(true, cells[k].there, there)
            found = [np.where(true, a, b) for a, b in zip(bare[k], found, strict=True)]
        if value.arithmetic:
            return _Cells(value.code, there, number=found[0])
        return _Cells(value.code, there, tuple(found))

    def truth(self, node: RowCondition) -> tuple[Array, Array]:
        """Where a condition is true, and where it is false: in neither it is NULL."""
        n = len(self.table)
        if isinstance(node, SameTruth):
            return np.full(n, node.value is True), np.full(n, node.value is False)
        if isinstance(node, Flag):
            bits = self.table.columns[node.name] == 1
            return bits, ~bits
        if isinstance(node, Negated):
            true, false = self.truth(node.part)
            return false, true
        if isinstance(node, Connected):
            parts = [self.truth(part) for part in node.parts]
            every, any_ = np.logical_and.reduce, np.logical_or.reduce
            trues, falses = [true for true, _ in parts], [false for _, false in parts]
            return (every(trues), any_(falses)) if node.every else (any_(trues), every(falses))
        if isinstance(node, MissingValue):
            there = self.cells(node.value).there
            return ~there, there
        return self._compare(cast("Compared", node))  # these are all conditions

    def _compare(self, node: Compared) -> tuple[Array, Array]:
        left, right = self.cells(node.left), self.cells(node.right)
        there = left.there & right.there
        if left.limbs and right.limbs and left.code.scale == right.code.scale:
            count = max(len(left.limbs), len(right.limbs))
            one, other = np.stack(self.limbs(left, count)), np.stack(self.limbs(right, count))
            holds = (one == other).all(axis=0) if node.equal else _is_less(one, other)
        else:
            scale = max(left.code.scale, right.code.scale)
            a, b = self.number(left, scale), self.number(right, scale)
            a = a if right.under is None else a * right.under
            b = b if left.under is None else b * left.under
            holds = a == b if node.equal else a < b
        return holds & there, ~holds & there

    def order(self, order: Order | Sequence[tuple[Stored, bool, bool]]) -> list[Array]:
        """Words that ascend as rows are ordered."""
        found = []
        for column, down, first in order:
            cells = self.cells(column)
            found.append((cells.there == first).astype(np.uint64))
            found += [np.where(cells.there, ~limb if down else limb, 0) for limb in self.limbs(cells)]
        return found


def limb_names(table: EnclaveTable, name: str) -> list[str]:
    """The columns of words that a value has in a table."""
    found: list[str] = []
    while f"{name}.{len(found)}" in table.columns:
        found.append(f"{name}.{len(found)}")
    return found


def _all_names(table: EnclaveTable, column: Stored) -> list[str]:
    return [*([column.name] if column.number else limb_names(table, column.name)), f"{column.name}?"]


class EnclaveTables:
    """The tables of a plan's operators.

    Args:
        leaves: the rows of each leaf.
        trace: what the host sees.
        told: whether tables are cut to the rows that count.
        most: rows of a table at most.
    """

    def __init__(self, leaves: Sequence[EnclaveTable], trace: AccessTrace, *, told: bool, most: int = 1 << 21) -> None:
        self._leaves, self.trace, self._told, self._most = list(leaves), trace, told, most
        self._made: dict[int, tuple[Operator, EnclaveTable]] = {}

    def make(self, op: Operator) -> EnclaveTable:
        """An operator's table: several lookups may be in one of them.

        Raises:
            DataError: more rows have one key than policies say, or a subquery has several rows.
            CompositionError: a table has too many rows.
        """
        if id(op) not in self._made:
            made = self._make(op)
            cut = self._told and isinstance(op, Filtered | JoinedRows | GroupedRows | Limited | Stacked)
            self._made[id(op)] = op, made.compact_rows() if cut else made
        return self._made[id(op)][1]

    def _make(self, op: Operator) -> EnclaveTable:
        if isinstance(op, LeafRows):
            return self._leaves[op.place]
        makers: dict[type, Any] = {Stacked: self._stack, JoinedRows: self._join, Looked: self._look}
        make = next((method for kind, method in makers.items() if isinstance(op, kind)), None)
        if make is not None:
            return cast("EnclaveTable", make(op))
        table = self.make(op.source)  # type: ignore[attr-defined]
        if isinstance(op, Filtered):
            return table.filter_rows(RowValues(table).truth(op.condition)[0])
        if isinstance(op, Expanded):
            for column, value in op.columns:
                table = table.with_columns(self._columns(column, RowValues(table).cells(value)))
            return table
        if isinstance(op, GroupedRows):
            return self._group(op, table)
        if isinstance(op, Ranked):
            return self._rank(op, table)
        limited = cast("Limited", op)  # these are all operators, but for those that the strategy refuses
        ordered = table.sort_rows(RowValues(table).order(limited.order))
        if limited.rows is None:
            return ordered
        begin = limited.skip if limited.skip < len(ordered) else len(ordered) - 1
        found = ordered.take_rows(slice(begin, begin + max(1, limited.rows)))
        return found if limited.rows and limited.skip < len(ordered) else found.filter_rows(np.zeros(len(found), bool))

    @staticmethod
    def _columns(column: Stored, cells: _Cells) -> dict[str, Array]:
        """A value as columns of a table: zeros where it is missing."""
        name, zero = column.name, np.uint64(0)
        if column.number:
            number = RowValues.number(cells, column.code.scale).view(np.uint64)
            return {name: np.where(cells.there, number, zero), f"{name}?": cells.there}
        limbs = RowValues.limbs(cells)
        return {**{f"{name}.{w}": np.where(cells.there, limb, zero) for w, limb in enumerate(limbs)}, f"{name}?": cells.there}  # fmt: skip

    # ------------------------------------------------------------------ rows with equal keys

    def _meet(self, inner: EnclaveTable, table: EnclaveTable, keys: Sequence[tuple[Array, Array]], names: Sequence[str]) -> tuple[dict[str, Array], Array]:  # fmt: skip
        """For each row of ``table`` the columns of the first row of ``inner`` with equal keys, zeros where there is none, and how many there are.

        Args:
            inner: the other table.
            table: the table.
            keys: words of both that are equal.
            names: columns of ``inner``.
        """
        n, m = len(table), len(inner)
        own = {f"{_KEY}{k}": np.concatenate([a, b]) for k, (a, b) in enumerate(keys)}
        kind = np.concatenate([np.zeros(m, np.uint64), np.ones(n, np.uint64)])
        place = np.concatenate([np.zeros(m, np.uint64), np.arange(n, dtype=np.uint64)])
        carried = {f"\0{k}": np.concatenate([inner.columns[name], np.zeros(n, np.uint64)]) for k, name in enumerate(names)}  # fmt: skip
        both = EnclaveTable({**own, **carried, "\0kind": kind, "\0place": place}, np.concatenate([inner.valid, table.valid]), self.trace)  # fmt: skip
        both = both.sort_rows([*(both.columns[name] for name in own), kind])
        starts = _differs([both.valid, *(both.columns[name] for name in own)], n + m)
        here = ((both.columns["\0kind"] == 0) & both.valid).astype(np.uint64)
        first = _scan(self.trace, starts, [here, *(both.columns[name] for name in carried)], _first)
        (count,) = _scan(self.trace, starts, [here], _add)
        kept = [np.where(both.valid & (first[0] == 1), one, np.uint64(0)) for one in first[1:]]
        count = np.where(both.valid, count, np.uint64(0))
        back = EnclaveTable({**dict(zip(names, kept, strict=True)), "\0count": count, "\0kind": both.columns["\0kind"], "\0place": both.columns["\0place"]}, both.valid, self.trace)  # fmt: skip
        back = back.sort_rows([1 - back.columns["\0kind"], back.columns["\0place"]], last=False).take_rows(slice(0, n))
        return {name: back.columns[name] for name in names}, back.columns["\0count"]

    def _copy(self, table: EnclaveTable, counts: Array, bound: int) -> EnclaveTable:
        """Each row as often as it counts, with the number of the copy beside it.

        Args:
            table: the table.
            counts: copies of each row.
            bound: rows of the result, as many as there could be.

        Raises:
            DataError: there are more.
        """
        self.trace.note("sum", len(table))
        starts, total = np.cumsum(counts) - counts, int(counts.sum())
        if self._told:
            self.trace.tell(total)
            bound = max(1, total)
        if bound > self._most:
            raise too_many_rows(bound, self._most)
        if total > bound:
            raise DataError(REPEATED_KEY, where="opaque", remedy="correct key or at_most in the policy")
        slots = np.arange(bound, dtype=np.uint64)
        columns = {name: np.concatenate([x, np.zeros(bound, np.uint64)]) for name, x in table.columns.items()}
        kind = np.concatenate([np.zeros(len(table), np.uint64), np.ones(bound, np.uint64)])
        at, valid = np.concatenate([starts, slots]), np.concatenate([counts > 0, slots < total])
        both = EnclaveTable({**columns, "\0kind": kind, "\0at": at}, valid, self.trace).sort_rows([at, kind])
        here = (both.columns["\0kind"] == 0).astype(np.uint64)
        names = [*table.columns, "\0at"]
        start = _differs([], len(both))
        found = _scan(self.trace, start, [here, *(both.columns[name] for name in names)], _last)
        copied = EnclaveTable({**dict(zip(table.columns, found[1:-1], strict=True)), "\0copy": both.columns["\0at"] - found[-1], "\0kind": both.columns["\0kind"]}, both.valid, self.trace)  # fmt: skip
        copied = copied.sort_rows([1 - copied.columns["\0kind"]], last=False).take_rows(slice(0, bound))
        return copied.keep_columns([name for name in copied.columns if name != "\0kind"])

    def _keys(self, left: EnclaveTable, right: EnclaveTable, pairs: Sequence[tuple[Value, Value]]) -> tuple[list[tuple[Array, Array]], Array, Array]:  # fmt: skip
        """Words of both tables that are equal, and which rows of each have all of them."""
        found, mine, other = [], left.valid.copy(), right.valid.copy()
        for one, two in pairs:
            a, b = RowValues(left).cells(one), RowValues(right).cells(two)
            if not (a.limbs and b.limbs) or a.code.scale != b.code.scale:
                scale = max(a.code.scale, b.code.scale)
                a, b = (_Cells(side.code, side.there, number=RowValues.number(side, scale)) for side in (a, b))
            count = max(len(a.limbs), len(b.limbs))
            found += list(zip(RowValues.limbs(a, count), RowValues.limbs(b, count), strict=True))
            mine, other = mine & a.there, other & b.there
        return found, mine, other

    # ------------------------------------------------------------------ joins

    def _join(self, op: JoinedRows) -> EnclaveTable:
        left, right = self.make(op.left), self.make(op.right)
        if op.side == "inner":
            table = self._inner(left, right, op.pairs, op.left_most, op.right_most)
            return table if op.condition is None else table.filter_rows(RowValues(table).truth(op.condition)[0])
        numbered = [one.with_columns({f"{_ROW}{k}": np.arange(len(one))}) for k, one in enumerate((left, right))]
        table = self._inner(numbered[0], numbered[1], op.pairs, op.left_most, op.right_most)
        if op.condition is not None:
            table = table.filter_rows(RowValues(table).truth(op.condition)[0])
        names = [*left.columns, *right.columns]
        parts = [table.keep_columns(names)]
        for k in range(1 if op.side == "left" else 2):
            row = f"{_ROW}{k}"
            _, count = self._meet(table, numbered[k], [(table.columns[row], numbered[k].columns[row])], [])
            alone = numbered[k].filter_rows(count == 0)
            missing = {name: np.zeros(len(alone), np.uint64) for name in names if name not in alone.columns}
            parts.append(alone.with_columns(missing).keep_columns(names))
        return concatenate_rows(parts)

    def _inner(self, left: EnclaveTable, right: EnclaveTable, pairs: Sequence[tuple[Value, Value]], left_most: int, right_most: int) -> EnclaveTable:  # fmt: skip
        """Pairs of rows with equal values."""
        if not pairs:
            return self._cross(left, right)
        keys, mine, other = self._keys(left, right, pairs)
        a, b = left.filter_rows(mine), right.filter_rows(other)
        bound = bound_pairs(len(left), len(right), left_most, right_most)
        if right_most == 1:
            return self._attach(b, a, [(y, x) for x, y in keys])
        if left_most == 1:
            return self._attach(a, b, keys)
        ordered = b.with_columns({f"{_KEY}{k}": y for k, (_, y) in enumerate(keys)})
        ordered = ordered.sort_rows([y for _, y in keys]).with_columns({_ROW: np.arange(len(b))})
        found, count = self._meet(ordered, a, [(ordered.columns[f"{_KEY}{k}"], x) for k, (x, _) in enumerate(keys)], [_ROW])  # fmt: skip
        made = self._copy(a.with_columns({"\0first": found[_ROW]}), count, bound)
        wanted = made.columns["\0first"] + made.columns["\0copy"]
        names = list(right.columns)
        rows, _ = self._meet(ordered, made, [(ordered.columns[_ROW], wanted)], names)
        return made.with_columns(rows).keep_columns([*left.columns, *names])

    def _attach(self, one: EnclaveTable, other: EnclaveTable, keys: Sequence[tuple[Array, Array]]) -> EnclaveTable:
        """The rows of ``other`` with that of ``one`` with equal keys, which is the only one: this is checked."""
        found, count = self._meet(one, other, keys, list(one.columns))
        if (count > 1).any():
            raise DataError(REPEATED_KEY, where="opaque", remedy="correct key or at_most in the policy")
        return other.with_columns(found).filter_rows(count == 1)

    def _cross(self, left: EnclaveTable, right: EnclaveTable) -> EnclaveTable:
        """All pairs of rows."""
        n, m = len(left), len(right)
        if n * m > self._most:
            raise too_many_rows(n * m, self._most)
        self.trace.note("pairs", n, m)
        columns = {name: np.repeat(x, m) for name, x in left.columns.items()}
        columns |= {name: np.tile(x, n) for name, x in right.columns.items()}
        return EnclaveTable(columns, np.repeat(left.valid, m) & np.tile(right.valid, n), self.trace)

    def _look(self, op: Looked) -> EnclaveTable:
        table, inner = self.make(op.source), self.make(op.inner)
        names = [name for column in op.columns for name in _all_names(inner, column)]
        if not op.pairs and op.condition is None:
            count = np.full(len(table), inner.valid.sum(), np.uint64)
            self.trace.note("spread", len(table), len(inner))
            found = {name: np.full(len(table), np.where(inner.valid, inner.columns[name], np.uint64(0)).max()) for name in names}  # fmt: skip
        elif op.condition is None:
            keys, mine, other = self._keys(table, inner, op.pairs)
            found, count = self._meet(inner.filter_rows(other), table.filter_rows(mine), [(y, x) for x, y in keys], names)  # fmt: skip
        else:
            numbered = table.with_columns({_ROW: np.arange(len(table))})
            both = self._inner(numbered, inner, op.pairs, op.source_most, op.inner_most)
            both = both.filter_rows(RowValues(both).truth(op.condition)[0])
            found, count = self._meet(both, numbered, [(both.columns[_ROW], numbered.columns[_ROW])], names)
        if names and (count[table.valid] > 1).any():
            raise DataError(SEVERAL_ROWS, where="opaque", remedy="write an aggregate or LIMIT 1 into the subquery")
        return table.with_columns({**found, op.flag: count > 0})

    # ------------------------------------------------------------------ groups

    def _group(self, op: GroupedRows, table: EnclaveTable) -> EnclaveTable:
        values, added = RowValues(table), dict[str, Array]()
        gates = {one.column.name: self._gate(one, values, added) for one in op.columns}
        added |= {f"\0gate {name}": gate for name, gate in gates.items()}
        keys = values.order([(key, False, False) for key in op.keys])
        added |= {f"{_KEY}{k}": one for k, one in enumerate(keys)}
        table = table.with_columns(added)
        own = [f"{_KEY}{k}" for k in range(len(keys))]
        for one in op.columns:
            if one.distinct and one.operation in ("count", "sum"):
                table = self._mark_firsts(one, table, own)
        table = table.sort_rows([table.columns[name] for name in own])
        starts = _differs([table.valid, *(table.columns[name] for name in own)], len(table))
        made: dict[str, Array] = {}
        for one in op.columns:
            made |= self._aggregate(one, table, starts)
        names = list(dict.fromkeys(name for key in op.keys for name in _all_names(table, key)))
        found = table.keep_columns(names).with_columns(made)
        if op.keys:
            return found.filter_rows(np.append(starts[1:], True))
        # Rows that count are the first ones, so the last of these has all; without any there is a group of none.
        total = {name: np.where(table.valid, x, np.uint64(0)) for name, x in found.columns.items()}
        last = table.valid & np.append(~table.valid[1:], True)
        self.trace.note("sum", len(table))
        one_row = {name: np.where(last, x, np.uint64(0)).max(keepdims=True) for name, x in total.items()}
        one_row |= {f"{one.column.name}?": np.ones(1, np.uint64) for one in op.columns if one.operation == "count"}
        return EnclaveTable(one_row, np.ones(1, bool), self.trace)

    @staticmethod
    def _gate(one: GroupColumn, values: RowValues, added: dict[str, Array]) -> Array:
        """Which rows take part in an aggregate; adds the columns that it runs over."""
        n, name = len(values.table), one.column.name
        gate = values.table.valid.copy() if one.where is None else values.table.valid & values.truth(one.where)[0]
        if one.value is None:
            return gate
        cells = values.cells(one.value)
        if one.operation == "sum":
            added[f"\0{name}"] = values.number(cells, one.column.code.scale).view(np.uint64)
        if one.operation in ("min", "max") or one.distinct:
            added |= {f"\0{name}.{w}": limb for w, limb in enumerate(values.limbs(cells))}
        return gate & cells.there & np.ones(n, bool)

    def _mark_firsts(self, one: GroupColumn, table: EnclaveTable, keys: Sequence[str]) -> EnclaveTable:
        """The table in which the first row alone of equal values in a group takes part."""
        gate = f"\0gate {one.column.name}"
        by = [*keys, *limb_names(table, f"\0{one.column.name}")]
        ordered = table.sort_rows([*(table.columns[name] for name in by), 1 - table.columns[gate]])
        first = _differs([ordered.valid, *(ordered.columns[name] for name in by)], len(ordered))
        return ordered.with_columns({gate: (ordered.columns[gate] == 1) & first})

    def _aggregate(self, one: GroupColumn, table: EnclaveTable, starts: Array) -> dict[str, Array]:
        """An aggregate over the rows of a group up to each row."""
        name, gate = one.column.name, table.columns[f"\0gate {one.column.name}"]
        if one.operation == "count" or one.value is None:
            (count,) = _scan(self.trace, starts, [gate], _add)
            return {name: count, f"{name}?": np.ones(len(table), np.uint64)}
        if one.operation == "sum":
            values = np.where(gate == 1, table.columns[f"\0{name}"], np.uint64(0))
            total, count = _scan(self.trace, starts, [values, gate], _add)
            return {name: total, f"{name}?": count > 0}
        names = limb_names(table, f"\0{name}")
        there, *limbs = _scan(self.trace, starts, [gate, *(table.columns[limb] for limb in names)], _best(one.operation == "max"))  # fmt: skip
        return {**{f"{name}.{w}": np.where(there == 1, limb, np.uint64(0)) for w, limb in enumerate(limbs)}, f"{name}?": there}  # fmt: skip

    # ------------------------------------------------------------------ windows

    def _rank(self, op: Ranked, table: EnclaveTable) -> EnclaveTable:
        values, added = RowValues(table), dict[str, Array]()
        by = [values.order([(column, False, False) for column in op.partition]), values.order(op.order)]
        names = [[f"{_KEY}{which}{k}" for k in range(len(words))] for which, words in enumerate(by)]
        for one in op.columns:
            if one.value is not None:
                cells = values.cells(one.value)
                added |= {f"\0{one.column.name}.{w}": limb for w, limb in enumerate(values.limbs(cells))}
                added[f"\0there {one.column.name}"] = cells.there
                if one.operation == "sum":
                    added[f"\0{one.column.name}"] = values.number(cells, one.column.code.scale).view(np.uint64)
        added |= dict(zip([name for some in names for name in some], [word for words in by for word in words], strict=True))  # fmt: skip
        ordered = table.with_columns(added)
        ordered = ordered.sort_rows([ordered.columns[name] for some in names for name in some])
        starts = _differs([ordered.valid, *(ordered.columns[name] for name in names[0])], len(table))
        apart = starts | _differs([ordered.columns[name] for name in names[1]], len(table))
        made: dict[str, Array] = {}
        for one in op.columns:
            made |= self._window(one, ordered, starts, apart)
        return ordered.keep_columns(list(table.columns)).with_columns(made)

    def _window(self, one: WindowColumn, table: EnclaveTable, starts: Array, apart: Array) -> dict[str, Array]:
        """A window function over rows in their order."""
        name, n = one.column.name, len(table)
        ones, zero = np.ones(n, np.uint64), np.uint64(0)
        if one.operation in ("row_number", "rank", "dense_rank") or (one.operation == "count" and one.value is None):
            (number,) = _scan(self.trace, starts, [ones], _add)
            if one.operation == "rank":
                _, number = _scan(self.trace, starts, [apart.astype(np.uint64), number], _last)
            elif one.operation == "dense_rank":
                (number,) = _scan(self.trace, starts, [apart.astype(np.uint64)], _add)
            elif one.operation == "count":
                (number,) = self._framed(one.frame, starts, apart, [number])
            return {name: number, f"{name}?": ones}
        there = table.columns[f"\0there {name}"]
        if one.operation in ("sum", "count"):
            value = np.where(there == 1, table.columns[f"\0{name}"], zero) if one.operation == "sum" else there
            total, count = self._framed(one.frame, starts, apart, _scan(self.trace, starts, [value, there], _add))
            return {name: total, f"{name}?": count > 0 if one.operation == "sum" else ones}
        limbs = [table.columns[limb] for limb in limb_names(table, f"\0{name}")]
        if one.operation == "lag":
            found = self._shifted([there, *limbs], starts, one.offset)
        else:
            found = self._framed(one.frame, starts, apart, _scan(self.trace, starts, [there, *limbs], _best(one.operation == "max")))  # fmt: skip
        return {**{f"{name}.{w}": np.where(found[0] == 1, limb, zero) for w, limb in enumerate(found[1:])}, f"{name}?": found[0]}  # fmt: skip

    def _framed(self, frame: str, starts: Array, apart: Array, values: Sequence[Array]) -> list[Array]:
        """Running values as the frame has them: up to the row, up to its last equal, or of the whole partition, which a scan from below brings up."""
        if frame == "rows":
            return list(values)
        last = np.append((apart if frame == "peers" else starts)[1:], True)
        down = [one[::-1] for one in values]
        found = _scan(self.trace, last[::-1], [last[::-1].astype(np.uint64), *down], _first)
        return [one[::-1] for one in found[1:]]

    def _shifted(self, values: Sequence[Array], starts: Array, offset: int) -> list[Array]:
        """The values of the row ``offset`` above in the partition; below, if it is negative; zeros where there is none."""
        (partition,) = _scan(self.trace, _differs([], len(starts)), [starts.astype(np.uint64)], _add)
        self.trace.note("shift", len(starts), offset)
        n, by = len(starts), min(abs(offset), len(starts))

        def shift(one: Array, missing: np.uint64) -> Array:
            empty = np.full(by, missing)
            return np.concatenate([empty, one[: n - by]]) if offset >= 0 else np.concatenate([one[by:], empty])

        inside = shift(partition, _NOWHERE) == partition
        return [np.where(inside, shift(one, np.uint64(0)), np.uint64(0)) for one in values]

    # ------------------------------------------------------------------ stacks

    def _stack(self, op: Stacked) -> EnclaveTable:
        tables = [self.make(one) for one in op.sources]
        cells = [[RowValues(table).cells(value) for value in row] for table, row in zip(tables, op.inputs, strict=True)]
        made = []
        for k, table in enumerate(tables):
            columns: dict[str, Array] = {}
            for c, column in enumerate(op.columns):
                own = cells[k][c]
                if not column.number:
                    if not own.limbs or own.code.scale != column.code.scale:
                        own = _Cells(own.code, own.there, number=RowValues.number(own, column.code.scale))
                    count = max(len(RowValues.limbs(row[c])) for row in cells)
                    own = _Cells(own.code, own.there, tuple(RowValues.limbs(own, count)))
                columns |= self._columns(column, own)
            columns |= {flag: np.full(len(table), j == k) for j, flag in enumerate(op.flags)}
            made.append(EnclaveTable({}, table.valid, self.trace).with_columns(columns))
        return concatenate_rows(made)
