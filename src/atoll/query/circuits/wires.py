"""What owners do who compute a plan's operators as circuits (`atoll.query.secure.operators`, `atoll.secure.garbled`): joins, groups, windows and orders by sorting networks and scans.

Every table has a row for each row that could be, and no circuit depends on a value: what a party sees follows from the sizes of the leaves. Any `Gates` run it: garbled labels of two owners, authenticated bits of
2 to 16, or shapes alone (`GateCounter`), which say what a plan costs before anyone is contacted.

Rows of equal keys are neighbours after a sort. A row then takes over what stands in the first row of its group, or adds up what stands before it, by a scan in log n steps (`scan_groups`). So

* a group is sorted once, and once more for each value of which different ones count;
* a join with unique keys sorts the rows of both tables, those with unique keys first, and each other row takes over the columns of the row at the head of its group;
* a join of rows that may have one key k times is one with unique pairs (key, place 0 to k - 1 in its group), of which each row of the other table asks for all k;
* a join without a bound compares all pairs.

Rows go in and leave as `atoll.query.circuits.owner_rows` says.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, cast

import numpy as np

from atoll.core.errors import CompositionError
from atoll.secure.garbled import (
    Gates,
    Wires,
    add_wires,
    all_wires,
    blank_rows,
    compact_rows,
    equal_wires,
    join_wires,
    larger_wires,
    less_wires,
    merge_rows,
    number_bits,
    reduce_rows,
    scan_groups,
    sort_rows,
    sum_groups,
    sum_rows,
)

from ..secure.extents import bound_pairs, fill_up
from ..secure.operators import (
    Expanded,
    Filtered,
    GroupColumn,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Limited,
    Looked,
    Operator,
    Order,
    Ranked,
    Stacked,
    Stored,
    Value,
    WindowColumn,
)
from ..secure.tables import REPEATED_KEY, SEVERAL_ROWS, refuse_claim
from .wire_values import WORD, WireTable, WireValues, lengthen, one_bit, stack_tables, turn_top

__all__ = ["UNSIGNED", "VALID", "RunningTotals", "Turned", "WireTables", "any_bits", "order_terms", "turn_bits"]

_ROW = "\0row"
_MATCHED = "\0matched"
VALID = "\0valid"


Turned: TypeAlias = "Literal['', 'all', 'top', 'rest']"
UNSIGNED = {"": 0, "all": (1 << WORD) - 1, "top": 1 << (WORD - 1), "rest": (1 << (WORD - 1)) - 1}


def turn_bits(x: Wires, turned: Turned) -> Wires:
    """Turn some bits: all, the top one, all others, or none."""
    top = np.arange(len(x))[:, None] == len(x) - 1
    return x ^ ({"all": True, "top": top, "rest": ~top}[turned]) if turned else x


@dataclass(frozen=True)
class _KeyPart:
    """A part of what rows are sorted by.

    Attributes:
        bits: what ascends, ``(bits, rows)``.
        column: the column that these are, with some bits turned; empty for none.
        turned: which bits: ``"all"``, ``"top"``, ``"rest"``, or none.
    """

    bits: Wires
    column: str = ""
    turned: Turned = ""

    @classmethod
    def of_column(cls, table: WireTable, name: str, turned: Turned = "") -> _KeyPart:
        """A column of a table, some of its bits turned."""
        return cls(turn_bits(table.columns[name], turned), name, turned)


@dataclass(frozen=True)
class RunningTotals:
    """How an aggregate runs over rows.

    Attributes:
        rows: how many totals there are.
        run: makes them of ``(bits, rows)`` and of what joins two.
    """

    rows: int
    run: Callable[[Wires, Any], Awaitable[Wires]]

    @classmethod
    def of_groups(cls, follows: Wires) -> RunningTotals:
        """One at each row, of its group up to there."""
        return cls(len(follows), lambda x, join: scan_groups(x, join, follows))


class WireTables(WireValues):
    """The tables of a plan's operators.

    Args:
        gates: one party's side of a computation.
        leaves: the shared rows of each leaf.
        shown: names of the columns of the answer, which decide between rows that are equal in an order.
        made: ``id`` of an operator -> it and its table, of those that are made already.
    """

    def __init__(self, gates: Gates, leaves: Sequence[WireTable], shown: Sequence[str] = (), made: Mapping[int, tuple[Operator, WireTable]] | None = None) -> None:  # fmt: skip
        super().__init__(gates)
        self._leaves, self._shown = list(leaves), list(shown)
        self._failures: list[tuple[Wires, str]] = []
        self._made: dict[int, tuple[Operator, WireTable]] = dict(made or {})

    async def make(self, root: Operator) -> WireTable:
        """The table of an operator.

        Raises:
            DataError: more rows have one key than policies say, or a subquery has several rows.
        """
        found = await self._table(root)
        if self._failures:
            # All parties see one bit for each kind of claim.
            bits = [~await all_wires(~one.reshape(-1, 1)) for one, _ in self._failures]
            failed = cast("Any", await self.gates.reveal(join_wires([one.reshape(1, 1) for one in bits], axis=1)))
            for bit, (_, what) in zip(() if failed is None else failed, self._failures, strict=failed is not None):
                if bit:
                    raise refuse_claim(what)
            self._failures.clear()
        return found

    async def _table(self, op: Operator) -> WireTable:
        if id(op) not in self._made:
            self._made[id(op)] = op, await self._table_of(op)
        return self._made[id(op)][1]

    async def _table_of(self, op: Operator) -> WireTable:
        if isinstance(op, LeafRows):
            return self._leaves[op.place]
        if isinstance(op, Stacked | JoinedRows | Looked):
            make: Any = {Stacked: self._stack, JoinedRows: self._join, Looked: self._look}[type(op)]
            return cast("WireTable", await make(op))
        if not isinstance(op, Filtered | Expanded | GroupedRows | Ranked | Limited):
            raise CompositionError(f"{type(op).__name__} by owners alone", where="smcql", remedy="let a helper take part: helper: true")  # fmt: skip
        table = await self._table(op.source)
        if isinstance(op, Filtered):
            return await table.filter_rows((await self.truth(table, op.condition))[0])
        if isinstance(op, Expanded):
            return await self.expand(op, table)
        if isinstance(op, GroupedRows):
            return await self._group(op, table)
        return await (self._rank(op, table) if isinstance(op, Ranked) else self._limit(op, table))

    async def expand(self, op: Expanded, table: WireTable) -> WireTable:
        """A table with further columns."""
        for column, value in op.columns:
            table = table.with_columns(await self.columns(column, await self.cells(table, value)))
        return table

    async def merge_runs(self, table: WireTable) -> WireTable:
        """The rows of a table of sorted runs, sorted."""
        return (await self._sort(table, [_KeyPart.of_column(table, name, turned) for name, turned in table.sorted_by]))[0]  # fmt: skip

    async def match_pairs(self, op: JoinedRows, table: WireTable) -> list[Wires]:
        """Whether each row of a table is a pair of a join, in some bits that must all be 1."""
        found = []
        for one, other in op.pairs:
            a, b = await self.cells(table, one), await self.cells(table, other)
            found += [a.there, b.there, await equal_wires(*await self.alike(a, b))]
        return found if op.condition is None else [*found, (await self.truth(table, op.condition))[0]]

    async def _limit(self, op: Limited, table: WireTable) -> WireTable:
        if op.rows is not None and (not op.rows or op.skip >= len(table)):
            return await table.take_rows(slice(0, 1)).filter_rows(self.bits(1, 0))
        # Where rows that are equal in the order stand, and which of them are kept, must not follow from whose they are.
        ties = [one for one in table.columns if one in self._shown] or list(table.columns)
        keys = [*self._order(table, op.order), *(_KeyPart.of_column(table, one) for one in ties)]
        ordered, _ = await self._sort(table, keys)
        return ordered if op.rows is None else ordered.take_rows(slice(op.skip, op.skip + op.rows))

    # ------------------------------------------------------------------ sorts and scans

    def _order(self, table: WireTable, order: Order) -> list[_KeyPart]:
        return [_KeyPart.of_column(table, name, turned) for name, turned in order_terms(order)]

    def _keys(self, table: WireTable, columns: Sequence[Stored]) -> list[_KeyPart]:
        return self._order(table, tuple((column, False, False) for column in columns))

    async def _sort(self, table: WireTable, keys: Sequence[_KeyPart]) -> tuple[WireTable, list[Wires]]:
        """The rows in the order of keys, the most important first, behind them those that do not count; and the bits of each part, first whether a row does not count."""
        parts, seen = [_KeyPart(one_bit(~table.valid), VALID, "all")], {VALID}
        for one in keys:
            if not one.column or one.column not in seen:  # a column that comes again decides nothing
                parts.append(one)
                seen.add(one.column)
        rest = [name for name in table.columns if name not in seen]
        key = join_wires([one.bits for one in reversed(parts)])
        records = join_wires([key, *(table.columns[name] for name in rest)])
        asked, known = [(one.column, one.turned) for one in parts[1:]], table.sorted_by
        if table.runs and asked == list(known[: len(asked)]):
            records = await _merge_runs(records, table.runs, len(key))
        else:
            records = await _sort_slices(records, table.slices or (len(table),), len(key))
        bits, columns, at = [], {}, 0
        for one in reversed(parts):
            bits.append(records[at : at + len(one.bits)])
            at += len(one.bits)
            if one.column:
                columns[one.column] = turn_bits(bits[-1], one.turned)
        for name in rest:
            columns[name] = records[at : at + len(table.columns[name])]
            at += len(table.columns[name])
        valid = one_bit(columns.pop(VALID))
        return WireTable({name: columns[name] for name in table.columns}, valid, slices=table.slices), bits[::-1]

    async def sort_by_all(self, table: WireTable) -> WireTable:
        """The rows in the order of all of their columns: nobody sees whose they were."""
        return (await self._sort(table, [_KeyPart.of_column(table, name) for name in table.columns]))[0]

    async def _follow(self, parts: Sequence[Wires]) -> Wires:
        """1 where a row is like the one before it in all parts."""
        bits = join_wires(parts)
        first = self.gates.zeros((1,))
        return first if bits.shape[1] < 2 else join_wires([first, await equal_wires(bits[:, 1:], bits[:, :-1])])

    def _before(self, x: Wires) -> Wires:
        """The rows before, ``(bits, rows)``: zeros before the first."""
        return join_wires([self.gates.zeros((len(x), 1)), x[:, :-1]], axis=1)

    async def _spread_heads(self, x: Wires, follows: Wires) -> Wires:
        """What stands in the first row of each group, in all of its rows."""
        return await scan_groups(await blank_rows(~follows, x), _add_bits, follows)

    async def _spread_tails(self, x: Wires, follows: Wires) -> Wires:
        """What stands in the last row of each group, in all of its rows."""
        backwards = join_wires([self.gates.zeros((1,)), follows[:0:-1]]) if len(follows) > 1 else follows
        return (await self._spread_heads(x[:, ::-1], backwards))[:, ::-1]

    async def _all(self, one: Wires, other: Wires) -> Wires:
        return await self.gates.conjoin(one, other)

    # ------------------------------------------------------------------ joins

    async def _pairs(self, left: WireTable, right: WireTable, pairs: Sequence[tuple[Value, Value]]) -> tuple[Wires, Wires, Wires, Wires]:  # fmt: skip
        """The keys of both sides, and which rows have one: a missing value is equal to none."""
        keys: tuple[list[Wires], list[Wires]] = ([], [])
        usable = [left.valid, right.valid]
        for one, other in pairs:
            a, b = await self.cells(left, one), await self.cells(right, other)
            for side, words in zip(keys, await self.alike(a, b), strict=True):
                side.append(words)
            usable = [await self._all(has, cells.there) for has, cells in zip(usable, (a, b), strict=True)]
        return join_wires(keys[0]), join_wires(keys[1]), usable[0], usable[1]

    async def _attach(self, table: WireTable, other: WireTable, on: tuple[Wires, Wires, Wires, Wires], names: Sequence[str], flag: str) -> tuple[WireTable, Wires]:  # fmt: skip
        """The rows of a table, with columns of the first row of another one that has their key.

        Args:
            table: the table.
            other: the other one.
            on: the keys of both, and which rows have one.
            names: the columns of ``other``.
            flag: the bit that says whether there is such a row.

        Returns:
            The table, in another order; and 1 where ``other`` has a key again.
        """
        n, m = len(table), len(other)
        mine = join_wires([*table.columns.values(), one_bit(table.valid)])
        theirs = join_wires([other.columns[name] for name in names]) if names else self.gates.zeros((0, m))
        width = max(len(mine), len(theirs))
        # Rows of both have the same wires: each row is of one table alone.
        payload = join_wires([join_wires([x, self.gates.zeros((width - len(x), x.shape[1]))]) for x in (theirs, mine)], axis=1)  # fmt: skip
        here = self.gates.constant(np.arange(m + n) >= m)
        usable = join_wires([on[3], on[2]])
        key = join_wires([here.reshape(1, -1), join_wires([on[1], on[0]], axis=1), (~usable).reshape(1, -1)])
        records = await sort_rows(join_wires([key, payload]), len(key))
        here, usable, rest = records[0], ~records[len(key) - 1], records[len(key) :]
        follows = await self._all(usable, await self._follow([records[1 : len(key)]]))
        source = await self._all(~here, usable)
        repeated = await self._all(source, follows)
        head = one_bit(source ^ repeated)
        found = await scan_groups(join_wires([head, await blank_rows(head[0], rest[: len(theirs)])]), _add_bits, follows)  # fmt: skip
        _, kept = await compact_rows(here, join_wires([found, rest[: len(mine)]]))
        kept, at = kept[:, :n], 1 + len(theirs)
        columns = {flag: kept[:1], **_split(kept[1:at], [(name, len(other.columns[name])) for name in names])}
        own = _split(kept[at:], [(name, len(x)) for name, x in table.columns.items()])
        return WireTable({**own, **columns}, kept[-1]), repeated

    async def _cross(self, left: WireTable, right: WireTable) -> WireTable:
        n, m = len(left), len(right)
        columns = {name: x.reshape(len(x), n, 1).spread(len(x), n, m).reshape(len(x), n * m) for name, x in left.columns.items()}  # fmt: skip
        columns |= {name: x.reshape(len(x), 1, m).spread(len(x), n, m).reshape(len(x), n * m) for name, x in right.columns.items()}  # fmt: skip
        ones, others = left.valid.reshape(n, 1).spread(n, m), right.valid.reshape(1, m).spread(n, m)
        return WireTable(columns, (await self._all(ones, others)).reshape(n * m))

    async def _join(self, op: JoinedRows) -> WireTable:
        left, right = await self._table(op.left), await self._table(op.right)
        if op.side == "left" and op.condition is None and op.pairs and op.right_most == 1:
            table, repeated = await self._attach(left, right, await self._pairs(left, right, op.pairs), list(right.columns), _MATCHED)  # fmt: skip
            self._failures.append((repeated, REPEATED_KEY))
            return table.keep_columns([*left.columns, *right.columns])
        if op.side == "inner":
            table = await self._inner(op, left, right)
            return table if op.condition is None else await table.filter_rows((await self.truth(table, op.condition))[0])  # fmt: skip
        numbered = [self._number(table, f"{_ROW}{k}") for k, table in enumerate((left, right))]
        table = await self._inner(op, numbered[0], numbered[1])
        if op.condition is not None:
            table = await table.filter_rows((await self.truth(table, op.condition))[0])
        names = [*left.columns, *right.columns]
        parts = [table.keep_columns(names)]
        for k in range(1 if op.side == "left" else 2):
            alone = await self._match_again(numbered[k], table, f"{_ROW}{k}", [], _MATCHED)
            alone = await alone.filter_rows(~one_bit(alone.columns[_MATCHED]))
            missing = {name: self.gates.zeros((len(x), len(alone))) for name, x in table.columns.items() if name not in alone.columns}  # fmt: skip
            parts.append(alone.with_columns(missing).keep_columns(names))
        return stack_tables(parts)

    def _number(self, table: WireTable, name: str) -> WireTable:
        """The table with the number of each row beside it."""
        n = len(table)
        return table.with_columns({name: self.gates.constant(number_bits(np.arange(n), max(1, (n - 1).bit_length())))})

    async def _match_again(self, numbered: WireTable, both: WireTable, row: str, names: Sequence[str], flag: str) -> WireTable:  # fmt: skip
        """Numbered rows, with what a join has of them: its first row of each."""
        on = numbered.columns[row], both.columns[row], numbered.valid, both.valid
        table, repeated = await self._attach(numbered, both, on, names, flag)
        if names:
            self._failures.append((repeated, SEVERAL_ROWS))
        return table

    async def _inner(self, op: JoinedRows | Looked, left: WireTable, right: WireTable) -> WireTable:
        """Pairs of rows with equal keys."""
        left_most, right_most = (op.left_most, op.right_most) if isinstance(op, JoinedRows) else (op.source_most, op.inner_most)  # fmt: skip
        if not op.pairs:
            return await self._cross(left, right)
        n, m = len(left), len(right)
        bound = bound_pairs(n, m, left_most, right_most)
        on = await self._pairs(left, right, op.pairs)
        if bound == n * m and bound not in (n * right_most, m * left_most):
            table = await self._cross(left, right)
            ones, others = (one.spread(len(one), n, m).reshape(len(one), n * m) for one in (on[0].reshape(-1, n, 1), on[1].reshape(-1, 1, m)))  # fmt: skip
            usable = await self._all(on[2].reshape(n, 1).spread(n, m), on[3].reshape(1, m).spread(n, m))
            return await table.filter_rows(await self._all(await equal_wires(ones, others), usable.reshape(n * m)))
        if bound == n * right_most:
            table = await self._several(left, right, on, right_most)
        else:
            table = await self._several(right, left, (on[1], on[0], on[3], on[2]), left_most)
        return table

    async def _several(self, table: WireTable, other: WireTable, on: tuple[Wires, Wires, Wires, Wires], most: int) -> WireTable:  # fmt: skip
        """Pairs of rows with equal keys, of which the other table has as many as ``most`` of each."""
        key, theirs, usable, has = on
        if most > 1:
            places = (most - 1).bit_length()
            held = other.with_columns({"\0key": theirs, "\0has": one_bit(has)})
            held, bits = await self._sort(held, [_KeyPart.of_column(held, "\0has", "all"), _KeyPart.of_column(held, "\0key")])  # fmt: skip
            follows = await self._follow(bits)
            theirs, has = held.columns["\0key"], one_bit(held.columns["\0has"])
            width = max(places, len(held).bit_length())
            ones = join_wires([one_bit(follows), self.gates.zeros((width - 1, len(held)))])
            place = await sum_groups(ones, follows)  # the first of a group has 0
            over = ~await less_wires(place, self.constant(most, width, len(held))) if most >> width == 0 else self.bits(len(held), 0)  # fmt: skip
            self._failures.append((await self._all(over, has), REPEATED_KEY))
            has = await self._all(has, ~over)
            theirs, other = join_wires([theirs, place[:places]]), held.keep_columns(list(other.columns))
            n = len(table)
            asked = self.gates.constant(number_bits(np.repeat(np.arange(most), n), places))
            table = stack_tables([table] * most)
            key, usable = join_wires([join_wires([key] * most, axis=1), asked]), join_wires([usable] * most)
        found, repeated = await self._attach(table, other, (key, theirs, usable, has), list(other.columns), _MATCHED)
        self._failures.append((repeated, REPEATED_KEY))
        kept = await found.filter_rows(one_bit(found.columns[_MATCHED]))
        return kept.keep_columns([name for name in kept.columns if name != _MATCHED])

    async def _look(self, op: Looked) -> WireTable:
        table, inner = await self._table(op.source), await self._table(op.inner)
        names = [name for column in op.columns for name in (column.name, f"{column.name}?")]
        if not op.pairs and op.condition is None:
            return await self._broadcast(op, table, inner, names)
        if op.condition is None:
            found, repeated = await self._attach(table, inner, await self._pairs(table, inner, op.pairs), names, op.flag)  # fmt: skip
            if names:
                self._failures.append((repeated, SEVERAL_ROWS))
            return found
        numbered = self._number(table, _ROW)
        both = await self._inner(op, numbered, inner)
        both = await both.filter_rows((await self.truth(both, op.condition))[0])
        if not op.pairs and not names:  # all pairs, in the order of the rows: a tree of OR
            none = (~both.valid).reshape(len(table), len(inner)).data.swapaxes(1, 2)
            return table.with_columns({op.flag: one_bit(~await all_wires(Wires(self.gates, none)))})
        found = await self._match_again(numbered, both, _ROW, names, op.flag)
        return found.keep_columns([name for name in found.columns if name != _ROW])

    async def _broadcast(self, op: Looked, table: WireTable, inner: WireTable, names: Sequence[str]) -> WireTable:
        """The one row of a table beside each row of another."""
        n = len(table)
        found = {op.flag: one_bit(~await all_wires((~inner.valid).reshape(-1, 1)))}
        if names and len(inner) > 1:
            count = await sum_rows(one_bit(inner.valid))
            self._failures.append((await less_wires(self.constant(1, len(count), 1), count), SEVERAL_ROWS))
        for name in names:
            found[name] = await reduce_rows(await blank_rows(inner.valid, inner.columns[name]), _add_bits)
        return table.with_columns({name: x.spread(len(x), n) for name, x in found.items()})

    # ------------------------------------------------------------------ groups

    async def _group(self, op: GroupedRows, table: WireTable) -> WireTable:
        made = [await self._terms(table, one) for one in op.columns]
        keys = [name for key in op.keys for name in (key.name, f"{key.name}?")]
        table = replace(table, columns={**{name: table.columns[name] for name in keys}, **{name: x for _, columns in made for name, x in columns.items()}})  # fmt: skip
        terms: list[tuple[str, str]] = [one for one, _ in made]
        bits: list[Wires] = []
        for k, (one, (gate, value)) in enumerate(zip(op.columns, terms, strict=True)):
            if one.distinct and one.operation in ("count", "sum"):
                by = [*self._keys(table, op.keys), _KeyPart.of_column(table, gate, "all"), _KeyPart.of_column(table, value)]  # fmt: skip
                table, bits = await self._sort(table, by)
                again = await self._follow(bits)
                first = await self._all(one_bit(table.columns[gate]), ~again)
                table = table.with_columns({f"\0first{k}": one_bit(first)})
                terms[k], bits = (f"\0first{k}", value), bits[: 1 + len(keys)]
        if not op.keys:
            totals: dict[str, Wires] = {}
            for one, (gate, value) in zip(op.columns, terms, strict=True):
                counts = await self._all(table.valid, one_bit(table.columns[gate]))
                totals |= await self._aggregate(one, counts, table.columns[value], RunningTotals(1, reduce_rows))
            return WireTable(totals, self.bits(1, 1))
        if not bits:
            table, bits = await self._sort(table, self._keys(table, op.keys))
        follows = await self._follow(bits)
        found = {name: table.columns[name] for name in keys}
        for one, (gate, value) in zip(op.columns, terms, strict=True):
            found |= await self._aggregate(one, one_bit(table.columns[gate]), table.columns[value], RunningTotals.of_groups(follows))  # fmt: skip
        last = join_wires([~follows[1:], self.bits(1, 1)])
        return await WireTable(found, table.valid).filter_rows(last)

    async def _terms(self, table: WireTable, one: GroupColumn) -> tuple[tuple[str, str], dict[str, Wires]]:
        """The names of the bit that says which rows an aggregate takes, and of what it takes; and these columns."""
        gate, value, bits = f"\0gate {one.column.name}", f"\0value {one.column.name}", None
        if one.where is not None:
            bits = (await self.truth(table, one.where))[0]
        if one.value is None:
            bits = self.bits(len(table), 1) if bits is None else bits
            return (gate, gate), {gate: one_bit(bits)}
        cells = await self.cells(table, one.value)
        if bits is not None:
            made = {gate: one_bit(await self._all(bits, cells.there))}
        else:
            gate = f"{one.value.name}?" if isinstance(one.value, Stored) else gate
            made = {gate: one_bit(cells.there)}
        if one.operation == "count" and not one.distinct:
            return (gate, gate), made
        number = one.operation == "sum"
        fits = isinstance(one.value, Stored) and one.value.number == number and (not number or one.value.code.scale == one.column.code.scale)  # fmt: skip
        if isinstance(one.value, Stored) and (fits or one.operation == "count"):  # a column that is there already
            return (gate, one.value.name), {**made, one.value.name: table.columns[one.value.name]}
        return (gate, value), {**made, value: await cells.number(one.column.code.scale) if number else cells.words}

    async def _aggregate(self, one: GroupColumn, gate: Wires, x: Wires, running: RunningTotals) -> dict[str, Wires]:
        """An aggregate of each group, at its last row; of all rows, if they are one group."""
        name, n, rows = one.column.name, len(gate), running.rows
        if one.operation == "count":
            count = await running.run(self._lengthened(one_bit(gate), n.bit_length()), add_wires)
            return {name: join_wires([count, self.gates.zeros((1, rows))]), f"{name}?": one_bit(self.bits(rows, 1))}
        if one.operation == "sum":
            there = await running.run(one_bit(gate), any_bits)
            x = lengthen(await blank_rows(gate, x), min(WORD, len(x) + n.bit_length()))
            return {name: await running.run(x, add_wires), f"{name}?": there}
        low = one.operation == "min"
        # The bit above says whether there is a value: one that is not there never wins.
        held = await running.run(await blank_rows(gate, join_wires([~x if low else x, one_bit(self.bits(n, 1))])), larger_wires)  # fmt: skip
        return {name: await blank_rows(held[-1], ~held[:-1]) if low else held[:-1], f"{name}?": held[-1:]}

    def _lengthened(self, x: Wires, bits: int) -> Wires:
        return join_wires([x, self.gates.zeros((bits - len(x), x.shape[1]))]) if bits > len(x) else x

    # ------------------------------------------------------------------ windows

    async def _rank(self, op: Ranked, table: WireTable) -> WireTable:
        terms, made = {}, dict[str, Wires]()
        for one in op.columns:
            if one.value is not None:
                cells, name = await self.cells(table, one.value), one.column.name
                terms[name] = f"\0gate {name}", f"\0value {name}"
                made |= {terms[name][0]: one_bit(cells.there), terms[name][1]: await cells.number(one.column.code.scale) if one.operation == "sum" else cells.words}  # fmt: skip
        names = list(table.columns)
        table, bits = await self._sort(table.with_columns(made), [*self._keys(table, op.partition), *self._order(table, op.order)])  # fmt: skip
        inside = await self._follow(bits[: 1 + 2 * len(op.partition)])
        peers = await self._follow(bits)
        for one in op.columns:
            gate, value = (table.columns[name] for name in terms[one.column.name]) if one.column.name in terms else (one_bit(self.bits(len(table), 1)),) * 2  # fmt: skip
            table = table.with_columns(await self._window(one, gate, value, inside, peers))
        return table.keep_columns([*names, *(name for one in op.columns for name in (one.column.name, f"{one.column.name}?"))])  # fmt: skip

    async def _window(self, one: WindowColumn, gate: Wires, x: Wires, inside: Wires, peers: Wires) -> dict[str, Wires]:
        name, n = one.column.name, len(inside)
        if one.operation == "lag":
            return await self._shift(one, gate, x, inside)
        if one.operation in ("row_number", "rank", "dense_rank"):
            width = n.bit_length()
            counts = ~peers if one.operation == "dense_rank" else self.bits(n, 1)
            found = await scan_groups(self._lengthened(one_bit(counts), width), add_wires, inside)
            if one.operation == "rank":
                found = await self._spread_heads(found, peers)
            return {name: join_wires([found, self.gates.zeros((1, n))]), f"{name}?": one_bit(self.bits(n, 1))}
        column = GroupColumn(one.column, one.operation)
        made = await self._aggregate(column, one_bit(gate), x, RunningTotals.of_groups(inside))
        if one.frame != "rows":
            ends = peers if one.frame == "peers" else inside
            made = {key: await self._spread_tails(part, ends) for key, part in made.items()}
        return made if one.operation != "count" else {**made, f"{name}?": one_bit(self.bits(n, 1))}

    async def _shift(self, one: WindowColumn, gate: Wires, x: Wires, inside: Wires) -> dict[str, Wires]:
        """What stands some rows above, or below, in the same partition."""
        n, step = len(inside), abs(one.offset)
        both, follows = join_wires([x, gate]), inside
        if one.offset < 0:
            both, follows = both[:, ::-1], join_wires([self.gates.zeros((1,)), inside[:0:-1]]) if n > 1 else inside
        for _ in range(min(step, n)):
            both = await blank_rows(follows, self._before(both))
        made = both[:, ::-1] if one.offset < 0 else both
        return {one.column.name: await blank_rows(made[-1], made[:-1]), f"{one.column.name}?": made[-1:]}

    # ------------------------------------------------------------------ stacks

    async def _stack(self, op: Stacked) -> WireTable:
        tables = [await self._table(one) for one in op.sources]
        cells = [[await self.cells(table, value) for value in row] for table, row in zip(tables, op.inputs, strict=True)]  # fmt: skip
        for c, column in enumerate(op.columns):
            for row in cells:
                if row[c].code.kind == "whole":
                    row[c] = replace(row[c], words=turn_top(await row[c].number(column.code.scale)))
            width = max(len(row[c].words) for row in cells)
            for row in cells:
                row[c] = replace(row[c], words=self.fitted(row[c], width))
        made = []
        for k, table in enumerate(tables):
            columns: dict[str, Wires] = {}
            for column, own in zip(op.columns, cells[k], strict=True):
                shown = turn_top(own.words) if column.number else own.words
                columns |= {column.name: await blank_rows(own.there, shown), f"{column.name}?": one_bit(own.there)}
            columns |= {flag: one_bit(self.bits(len(table), j == k)) for j, flag in enumerate(op.flags)}
            made.append(WireTable(columns, table.valid))
        return stack_tables(made)


def order_terms(order: Order) -> list[tuple[str, Turned]]:
    """Columns that ascend in an order, and which of their bits are turned."""
    found: list[tuple[str, Turned]] = []
    for column, down, first in order:
        found.append((f"{column.name}?", "" if first else "all"))
        found.append((column.name, ("rest" if down else "top") if column.number else ("all" if down else "")))
    return found


async def _merge_runs(records: Wires, runs: Sequence[int], key: int) -> Wires:
    """Sorted runs as one, two by two."""
    ends = np.cumsum([0, *runs])
    parts = [records[:, a:b] for a, b in itertools.pairwise(ends)]
    while len(parts) > 1:
        merged = [await merge_rows(one, other, key) for one, other in zip(parts[::2], parts[1::2], strict=False)]
        parts = [*merged, *parts[2 * len(merged) :]]
    return parts[0]


async def _sort_slices(records: Wires, lengths: Sequence[int], key: int) -> Wires:
    """Slices of records, each sorted; those of equal lengths, up to a power of two, at once. Rows that fill one up do not count, and so are its last."""
    if len(lengths) == 1:
        return await sort_rows(records, key)
    rows, starts = np.asarray(lengths), np.cumsum([0, *lengths[:-1]])
    sizes = np.array([fill_up(int(n)) for n in rows])
    parts, places = list[Wires](), list[Any]()
    nothing = records.by.constant(np.arange(len(records))[:, None] == key - 1)  # the bit that says so is the highest
    filled, end = join_wires([records, nothing], axis=1), records.shape[1]
    for size in np.unique(sizes):
        mine = np.flatnonzero(sizes == size)
        at = starts[mine, None] + np.arange(size)
        there = np.arange(size) < rows[mine, None]
        made = await sort_rows(filled[:, np.where(there, at, end).ravel()], key, block=int(size))
        parts.append(made[:, np.flatnonzero(there.ravel())])
        places.append(at[there])
    return join_wires(parts, axis=1)[:, np.argsort(np.concatenate(places))]


async def _add_bits(x: Wires, y: Wires) -> Wires:
    """Of two numbers of which one is 0, the other: free."""
    return x ^ y


async def any_bits(x: Wires, y: Wires) -> Wires:
    """OR of two rows' bits."""
    return ~await x.by.conjoin(~x, ~y)


def _split(records: Wires, widths: Sequence[tuple[str, int]]) -> dict[str, Wires]:
    found, at = {}, 0
    for name, width in widths:
        found[name] = records[at : at + width]
        at += width
    return found
