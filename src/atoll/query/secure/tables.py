"""What one of three parties does: it makes the tables of a plan's operators on shares (`atoll.query.secure.operators`).

Every table has a row for each row that could be, so that what a party sees depends on the sizes of the leaves alone. What a policy claims of a key is checked on the way, and what a bound
leaves out is noticed: both give hidden bits, of which the parties open one for each kind, before they hand out the answer.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, cast

import numpy as np

from atoll.core.errors import DataError
from atoll.secure.shares import SharedArray, SharedWords, Trio, numbers_to_words, words_to_numbers
from atoll.secure.shares.computation import concatenated
from atoll.secure.shares.word_circuits import (
    choose_words,
    compare_limbs,
    interleave,
    lift_bits,
    match_limbs,
    negative_bits,
    pack_fields,
)
from atoll.secure.tables import (
    LEFT,
    Rearrangement,
    RowAggregate,
    SharedTable,
    SortKey,
    WindowAggregate,
    attach_rows,
    attach_unique_rows,
    concatenate_tables,
    cross_rows,
    find_repeated_keys,
    group_rows,
    join_many,
    mark_firsts,
    match_rows,
    near_pairs,
    sort_table,
    total_rows,
    window_columns,
)

from ..column_codes import ColumnCode
from .extents import Extents, bound_pairs, too_many_rows
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
    MatchedRows,
    MissingValue,
    NearPairs,
    Negated,
    Operator,
    Order,
    Quotient,
    Ranked,
    RowCondition,
    SameTruth,
    Stacked,
    Stored,
    ToldJoin,
    TruthValue,
    Value,
    WindowColumn,
)

__all__ = ["REPEATED_KEY", "SEVERAL_ROWS", "Resize", "SecureTables", "refuse_claim"]

Resize: TypeAlias = "Callable[[SecureTables, Operator, SharedTable], Awaitable[SharedTable]]"

_TOP = 1 << 63
_ROW = "\0row"
REPEATED_KEY = "a value that policies declare to be in few rows (key, at_most) is in more"
SEVERAL_ROWS = "a subquery that stands for one value has several rows"


def refuse_claim(what: str) -> DataError:
    """The refusal of rows that are against what policies claim, or of which a subquery has several."""
    return DataError(
        what, where="smcql", remedy="correct the policy, or write an aggregate or LIMIT 1 into the subquery"
    )


@dataclass(frozen=True)
class _Cells:
    """A value of each row: words, or a number, or a number by another; and a bit that says whether there is one."""

    code: ColumnCode
    there: SharedWords
    limbs: tuple[SharedWords, ...] = ()
    number: SharedArray | None = None
    under: SharedArray | None = None


class SecureTables:
    """The tables of a plan's operators.

    Args:
        trio: the three parties.
        leaves: the shared rows of each leaf.
        resize: makes a smaller table of an operator's, without losing a row that counts; ``None`` keeps all.
        most: rows of a join at most.

    Attributes:
        watch: is told before an operator's table is made, and after it with ``True``.
    """

    watch: Callable[[Operator, bool], None] | None = None

    def __init__(self, trio: Trio, leaves: Sequence[SharedTable], resize: Resize | None = None, most: int = 1 << 31) -> None:  # fmt: skip
        self.trio, self._leaves, self._resize, self._most = trio, list(leaves), resize, most
        self._failures: list[tuple[SharedWords, str]] = []
        self._made: dict[int, tuple[Operator, SharedTable]] = {}

    async def make(self, root: Operator) -> SharedTable:
        """The table of an operator.

        Raises:
            DataError: more rows have one key than policies say, or a subquery has several rows.
        """
        found = await self._table(root)
        await self.require_claims()
        return found

    async def require_claims(self) -> None:
        """Refuse to go on if what was noticed on the way is against what policies claim: the parties open one bit for each kind.

        Raises:
            DataError: more rows have one key than policies say, or a subquery has several rows.
        """
        if self._failures:
            counts = [(await lift_bits(bits, self.trio.numbers)).reshape(1, len(bits)).sum(1) for bits, _ in self._failures]  # fmt: skip
            failed = await self.trio.open(await self._positive(concatenated(counts)))
            for (_, what), bit in zip(self._failures, failed, strict=True):
                if bit:
                    raise refuse_claim(what)
            self._failures.clear()

    async def notice_repeats(self, op: Operator, values: Sequence[Value], most: int, *, missing: bool = False) -> None:
        """Notice if more rows of an operator's table have equal values than policies claim.

        Args:
            op: the operator.
            values: the values.
            most: how many rows may have them.
            missing: whether missing values are one value; else they are none.
        """
        table = await self._table(op)
        if len(table) <= most:
            return
        keys = [key for key, _ in await self._pairs(table, table, [(one, one) for one in values])]
        if missing:
            keys = [SortKey(x) for key in keys for x in (key.words, key.null) if x is not None]
        self._failures.append((await find_repeated_keys(table, keys, most), REPEATED_KEY))

    async def _positive(self, x: SharedArray) -> SharedWords:
        """1 where a number is above 0."""
        return await negative_bits(x * -1, self.trio)

    async def _table(self, op: Operator) -> SharedTable:
        """An operator's table: several lookups may be in one of them."""
        if id(op) not in self._made:
            if self.watch is not None:
                self.watch(op, False)
            made = await self._table_of(op)
            self._made[id(op)] = op, made if self._resize is None else await self._resize(self, op, made)
            if self.watch is not None:
                self.watch(op, True)
        return self._made[id(op)][1]

    async def _table_of(self, op: Operator) -> SharedTable:
        if isinstance(op, LeafRows):
            return self._leaves[op.place]
        makers: dict[type, Any] = {Stacked: self._stack, JoinedRows: self._join, Looked: self._look, MatchedRows: self._match, NearPairs: self._near}  # fmt: skip
        make = next((method for kind, method in makers.items() if isinstance(op, kind)), None)
        if make is not None:
            return cast("SharedTable", await make(op))
        table = await self._table(op.source)  # type: ignore[attr-defined]
        if isinstance(op, Filtered):
            true, _ = await self._truth(table, op.condition)
            return await table.filter_rows(true)
        if isinstance(op, Expanded):
            for column, value in op.columns:
                table = table.with_columns(await self._columns(column, await self._cells(table, value)))
            return table
        if isinstance(op, GroupedRows):
            return await self._group(op, table)
        if isinstance(op, Ranked):
            return await self._rank(op, table)
        limited = cast("Limited", op)  # these are all operators
        return await self._limit(limited, table)

    async def _limit(self, op: Limited, table: SharedTable) -> SharedTable:
        if op.rows is not None and (not op.rows or op.skip >= len(table)):  # a table has one row at least
            return await table.take_rows(slice(0, 1)).filter_rows(self._bits(1, 0))
        ordered = await sort_table(table, await self._order(table, op.order))
        return ordered if op.rows is None else ordered.take_rows(slice(op.skip, op.skip + op.rows))

    # ------------------------------------------------------------------ columns

    def _bits(self, n: int, bit: int) -> SharedWords:
        return self.trio.constant(np.full(n, bit, dtype=np.uint8), 1)

    def _constant(self, n: int, word: int) -> SharedWords:
        return self.trio.constant(np.full(n, word, dtype=np.uint64), 64)

    @staticmethod
    def _names(table: SharedTable, name: str) -> list[str]:
        """The columns of words that a value has in a table."""
        found: list[str] = []
        while f"{name}.{len(found)}" in table.columns:
            found.append(f"{name}.{len(found)}")
        return found

    def _all_names(self, table: SharedTable, column: Stored) -> list[str]:
        return [*([column.name] if column.number else self._names(table, column.name)), f"{column.name}?"]

    async def _columns(self, column: Stored, cells: _Cells) -> dict[str, Any]:
        """A value as columns of a table: zeros where it is missing."""
        name = column.name
        if column.number:
            number = await self._number(cells, column.code.scale)
            gate = await lift_bits(cells.there, self.trio.numbers)
            return {name: await self.trio.numbers.mul(gate, number), f"{name}?": cells.there}
        limbs = await self._words(cells)
        cleared = await self.trio.conjoin_all([(cells.there.spread(64), limb) for limb in limbs])
        return {**{f"{name}.{w}": limb for w, limb in enumerate(cleared)}, f"{name}?": cells.there}

    # ------------------------------------------------------------------ values

    async def _cells(self, table: SharedTable, value: Value, words: int = 1) -> _Cells:
        n = len(table)
        if isinstance(value, Stored):
            there = table.words(f"{value.name}?")
            if value.number:
                return _Cells(value.code, there, number=table.numbers(value.name))
            return _Cells(value.code, there, tuple(table.words(one) for one in self._names(table, value.name)))
        if isinstance(value, Fixed):
            return self._fixed(value, n, words)
        if isinstance(value, Computed):
            return await self._computed(table, value)
        if isinstance(value, Quotient):
            over, under = await self._cells(table, value.over), await self._cells(table, value.under)
            there = await self.trio.conjoin(over.there, under.there)
            # The quotient of the whole multiples, by the difference of their scales.
            code = replace(value.code, scale=0)
            x, y = await self._number(over, max(over.code.scale, under.code.scale)), await self._number(under, max(over.code.scale, under.code.scale))  # fmt: skip
            return _Cells(code, there, number=x, under=y)
        if isinstance(value, TruthValue):
            true, false = await self._truth(table, value.condition)
            return _Cells(value.code, true ^ false, (true.widened(64).xor_public(_TOP),))
        return await self._chosen(table, cast("ChosenValue", value))  # these are all values

    def _fixed(self, value: Fixed, n: int, words: int) -> _Cells:
        code, known = value.code, value.value
        there = self._bits(n, int(known is not None))
        if code.kind == "whole":
            number = self.trio.numbers.constant(np.full(n, int(known or 0), dtype=np.int64))
            return _Cells(code, there, (self._constant(n, int(known or 0) ^ _TOP if known is None or known >= 0 else (int(known) + (1 << 64)) ^ _TOP),), number)  # fmt: skip
        return _Cells(code, there, tuple(self._constant(n, int(word)) for word in code.encode_constant(known, words)))

    async def _number(self, cells: _Cells, scale: int) -> SharedArray:
        """A number as a multiple of ``10^-scale``."""
        number = cells.number
        if number is None:
            number = await words_to_numbers(cells.limbs[0]) - np.array(_TOP, dtype=np.uint64)
        factor = 10 ** (scale - cells.code.scale)
        return number if factor == 1 else number * factor

    async def _words(self, cells: _Cells) -> tuple[SharedWords, ...]:
        if cells.limbs or cells.number is None:
            return cells.limbs
        return (await numbers_to_words(cells.number + np.array(_TOP, dtype=np.uint64), self.trio),)

    async def _computed(self, table: SharedTable, value: Computed) -> _Cells:
        left, right = await self._cells(table, value.left), await self._cells(table, value.right)
        there = await self.trio.conjoin(left.there, right.there)
        if value.operation == "*":
            if isinstance(value.left, Fixed) or isinstance(value.right, Fixed):
                known, other = (value.left, right) if isinstance(value.left, Fixed) else (value.right, left)
                number = await self._number(other, other.code.scale) * int(getattr(known, "value", 0) or 0)
            else:
                number = await self.trio.numbers.mul(await self._number(left, left.code.scale), await self._number(right, right.code.scale))  # fmt: skip
            return _Cells(value.code, there, number=number)
        x, y = [await self._number(one, value.code.scale) for one in (left, right)]
        return _Cells(value.code, there, number=x - y if value.operation == "-" else x + y)

    async def _chosen(self, table: SharedTable, value: ChosenValue) -> _Cells:
        parts = [one for _, one in value.cases] + [value.default]
        cells = [await self._cells(table, one) for one in parts]
        found, count = cells[-1], max(len(one.limbs) for one in cells)
        if value.arithmetic:
            found = replace(found, number=await self._number(found, value.code.scale), limbs=(), code=value.code)
        for (condition, _), one in reversed(list(zip(value.cases, cells[:-1], strict=True))):
            true, _ = await self._truth(table, condition)
            if value.arithmetic:
                gate = await lift_bits(true, self.trio.numbers)
                number = await self._number(one, value.code.scale)
                (there,) = await choose_words(true, [(one.there, found.there)])
                base = found.number
                apart = await self.trio.numbers.mul(gate, number - base)
                found = _Cells(value.code, there, number=base + apart)
                continue
            pairs = [(one.there, found.there), *zip(self._filled(one, count), self._filled(found, count), strict=True)]
            there, *limbs = await choose_words(true, pairs)
            found = _Cells(value.code, there, tuple(limbs))
        return found

    def _filled(self, cells: _Cells, count: int) -> list[SharedWords]:
        """The words of a value, filled up with zeros."""
        return [*cells.limbs, *[self._constant(len(cells.there), 0)] * (count - len(cells.limbs))]

    # ------------------------------------------------------------------ conditions

    async def _truth(self, table: SharedTable, node: RowCondition) -> tuple[SharedWords, SharedWords]:
        """Where a condition is true, and where it is false: in neither it is NULL."""
        if isinstance(node, SameTruth):
            return self._bits(len(table), int(node.value is True)), self._bits(len(table), int(node.value is False))
        if isinstance(node, Flag):
            bits = table.words(node.name)
            return bits, bits.inverted()
        if isinstance(node, Negated):
            true, false = await self._truth(table, node.part)
            return false, true
        if isinstance(node, Connected):
            found = await self._truth(table, node.parts[0])
            for part in node.parts[1:]:
                found = await self._both(found, await self._truth(table, part), node.every)
            return found
        if isinstance(node, MissingValue):
            there = (await self._cells(table, node.value)).there
            return there.inverted(), there
        holds, there = await self._compare(table, cast("Compared", node))  # these are all conditions
        true, false = await self.trio.conjoin_all([(holds, there), (holds.inverted(), there)])
        return true, false

    async def _both(self, one: tuple[SharedWords, SharedWords], other: tuple[SharedWords, SharedWords], every: bool) -> tuple[SharedWords, SharedWords]:  # fmt: skip
        (a, not_a), (b, not_b) = (one, other) if every else (one[::-1], other[::-1])
        both, neither = await self.trio.conjoin_all([(a, b), (not_a.inverted(), not_b.inverted())])
        return (both, neither.inverted()) if every else (neither.inverted(), both)

    async def _compare(self, table: SharedTable, node: Compared) -> tuple[SharedWords, SharedWords]:
        left, right = await self._cells(table, node.left), await self._cells(table, node.right)
        there = await self.trio.conjoin(left.there, right.there)
        if left.limbs and right.limbs and left.code.scale == right.code.scale:
            count = max(len(left.limbs), len(right.limbs))
            one, other = (pack_fields(self._filled(side, count)) for side in (left, right))
            if node.equal:
                return await match_limbs(one, other), there
            return await compare_limbs([interleave(limb) for limb in one], [interleave(limb) for limb in other]), there
        a, b = await self._crossed(left, right)
        less = await negative_bits(a - b, self.trio)
        if node.equal:
            more = await negative_bits(b - a, self.trio)
            less = await self.trio.conjoin(less.inverted(), more.inverted())
        return less, there

    async def _crossed(self, left: _Cells, right: _Cells) -> tuple[SharedArray, SharedArray]:
        """Two numbers that compare as two values do: what divides one multiplies the other."""
        scale = max(left.code.scale, right.code.scale)
        a, b = [await self._number(one, scale) for one in (left, right)]
        if right.under is not None:
            a = await self.trio.numbers.mul(a, right.under)
        if left.under is not None:
            b = await self.trio.numbers.mul(b, left.under)
        return a, b

    # ------------------------------------------------------------------ keys

    async def _keys(self, table: SharedTable, columns: Sequence[Stored]) -> list[SortKey]:
        return await self._order(table, [(column, False, False) for column in columns])

    async def _order(self, table: SharedTable, order: Order | Sequence[tuple[Stored, bool, bool]]) -> list[SortKey]:
        found = []
        for column, down, first in order:
            cells = await self._cells(table, column)
            for w, limb in enumerate(await self._words(cells)):
                found.append(SortKey(limb, down, cells.there.inverted() if w == 0 else None, first))
        return found

    async def _pairs(self, left: SharedTable, right: SharedTable, pairs: Sequence[tuple[Value, Value]]) -> list[tuple[SortKey, SortKey]]:  # fmt: skip
        if not pairs:
            return [(SortKey(self._bits(len(left), 0)), SortKey(self._bits(len(right), 0)))]
        found = []
        for one, other in pairs:
            a, b = await self._cells(left, one), await self._cells(right, other)
            if not (a.limbs and b.limbs) or a.code.scale != b.code.scale:
                scale = max(a.code.scale, b.code.scale)
                a, b = [_Cells(side.code, side.there, await self._words(_Cells(side.code, side.there, number=await self._number(side, scale)))) for side in (a, b)]  # fmt: skip
            count = max(len(a.limbs), len(b.limbs))
            for w, (x, y) in enumerate(zip(self._filled(a, count), self._filled(b, count), strict=True)):
                found.append((SortKey(x, null=a.there.inverted() if w == 0 else None), SortKey(y, null=b.there.inverted() if w == 0 else None)))  # fmt: skip
        return found

    # ------------------------------------------------------------------ joins

    async def _join(self, op: JoinedRows) -> SharedTable:
        left, right = await self._table(op.left), await self._table(op.right)
        on = await self._pairs(left, right, op.pairs)
        if op.side == "left" and op.condition is None:
            return await self._left(op, left, right, on)
        if op.side == "inner":
            table = await self._inner(op, left, right, on)
            return table if op.condition is None else await table.filter_rows((await self._truth(table, op.condition))[0])  # fmt: skip
        numbered = [_numbered(table, f"{_ROW}{k}") for k, table in enumerate((left, right))]
        table = await self._inner(op, numbered[0], numbered[1], on)
        if op.condition is not None:
            table = await table.filter_rows((await self._truth(table, op.condition))[0])
        parts, layout = [table.keep_columns([*left.columns, *right.columns])], {**left.layout, **right.layout}
        for k in range(1 if op.side == "left" else 2):
            alone = await self._unmatched(numbered[k], table, f"{_ROW}{k}")
            missing = {name: self._zeros(len(alone), bits) for name, bits in layout.items() if name not in alone.columns}  # fmt: skip
            parts.append(alone.with_columns(missing).keep_columns(list(parts[0].columns)))
        return concatenate_tables(parts)

    async def _inner(self, op: JoinedRows | Looked, left: SharedTable, right: SharedTable, on: Any) -> SharedTable:
        left_most, right_most = (op.left_most, op.right_most) if isinstance(op, JoinedRows) else (op.source_most, op.inner_most)  # fmt: skip
        if not op.pairs:
            return await cross_rows(left, right)
        n, m = len(left), len(right)
        if isinstance(op, ToldJoin):
            return (await join_many(left, right, on, bound=self._opening(op, max(n, m))))[0]
        bound = bound_pairs(n, m, left_most, right_most)
        if right_most == 1 and bound == n:
            return await self._unique(right, left, [(b, a) for a, b in on])
        if left_most == 1 and bound == m:
            return await self._unique(left, right, on)
        bound = self._bound(op, bound)
        if bound > self._most:  # tables that are cut may be larger than expected
            raise too_many_rows(bound, self._most)
        table, overflow = await join_many(left, right, on, bound=bound)
        if bound < n * m:
            self._failures.append((overflow, REPEATED_KEY))
        return table

    def _opening(self, op: ToldJoin, usual: int) -> Callable[[SharedWords], Awaitable[int]]:
        """What opens how many pairs a join has; in a rehearsal they are those foreseen, or the usual ones."""

        async def open_pairs(total: SharedWords) -> int:
            found, foreseen = int((await self.trio.open(total))[0]), self.trio.foreseen(op.noted)
            if foreseen is not None:
                found = foreseen[0] if foreseen else usual
            self.trio.note(op.noted, found)
            if found > self._most:
                raise too_many_rows(found, self._most)
            return max(1, found)

        return open_pairs

    def _bound(self, op: JoinedRows | Looked, rows: int) -> int:
        """Most pairs of rows of a join, which all parties know; as many as policies let there be."""
        del op
        return rows

    async def _unique(self, one: SharedTable, other: SharedTable, on: Any) -> SharedTable:
        """The rows of ``other`` with those of ``one``, whose keys are unique: the parties check it."""
        found, matched, repeated = await attach_unique_rows(one, other, on, dict(one.columns))
        self._failures.append((repeated, REPEATED_KEY))
        return await other.with_columns(found).filter_rows(matched)

    async def _left(self, op: JoinedRows, left: SharedTable, right: SharedTable, on: Any) -> SharedTable:
        turned = [(b, a) for a, b in on]
        if isinstance(op, ToldJoin):
            table, _ = await join_many(right, left, turned, bound=self._opening(op, len(left)), outer=True)
            return table.keep_columns([*left.columns, *right.columns])
        bound = Extents.pairs(op, len(left), len(right))
        if op.right_most == 1 and bound == len(left) <= self._most:
            found, _, repeated = await attach_unique_rows(right, left, turned, dict(right.columns))
            self._failures.append((repeated, REPEATED_KEY))
            return left.with_columns(found)
        bound = self._bound(op, bound)
        if bound > self._most:
            raise too_many_rows(bound, self._most)
        table, overflow = await join_many(right, left, turned, bound=bound, outer=True)
        if bound < len(left) * len(right):
            self._failures.append((overflow, REPEATED_KEY))
        return table.keep_columns([*left.columns, *right.columns])

    async def _unmatched(self, numbered: SharedTable, table: SharedTable, row: str) -> SharedTable:
        """The rows of a table that are in no row of a join."""
        on = [(SortKey(table.words(row)), SortKey(numbered.words(row)))]
        _, matched = await attach_rows(table, numbered, on, {})
        kept = await numbered.filter_rows(matched.inverted())
        return kept.keep_columns([name for name in kept.columns if name != row])

    def _zeros(self, n: int, bits: int | None) -> Any:
        if bits is None:
            return self.trio.numbers.constant(np.zeros(n, dtype=np.int64))
        return self.trio.constant(np.zeros(n, dtype=np.uint64), bits)

    async def _look(self, op: Looked) -> SharedTable:
        table, inner = await self._table(op.source), await self._table(op.inner)
        names = [name for column in op.columns for name in self._all_names(inner, column)]
        if not op.pairs and op.condition is None:
            return await self._broadcast(op, table, inner, names)
        if not op.pairs and not names and op.condition is not None:
            return table.with_columns({op.flag: await self._any_pair(table, inner, op.condition)})
        on = await self._pairs(table, inner, op.pairs)
        if op.condition is None:
            found, matched, repeated = await attach_unique_rows(inner, table, [(b, a) for a, b in on], {name: inner[name] for name in names})  # fmt: skip
            if names:
                self._failures.append((repeated, SEVERAL_ROWS))
            return table.with_columns({**found, op.flag: matched})
        numbered = _numbered(table, _ROW)
        both = await self._inner(op, numbered, inner, on)
        both = await both.filter_rows((await self._truth(both, op.condition))[0])
        on = [(SortKey(both.words(_ROW)), SortKey(numbered.words(_ROW)))]
        found, matched, repeated = await attach_unique_rows(both, numbered, on, {name: both[name] for name in names})
        if names:
            self._failures.append((repeated, SEVERAL_ROWS))
        return table.with_columns({**found, op.flag: matched})

    async def _any_pair(self, table: SharedTable, inner: SharedTable, condition: RowCondition) -> SharedWords:
        """Whether a condition holds for a row and one of another table, or more: all pairs, and a tree of OR over those of a row."""
        both = await cross_rows(table, inner)
        true = await self.trio.conjoin(both.valid, (await self._truth(both, condition))[0])
        none = true.inverted().with_shape((len(table), len(inner)))
        while none.shape[1] > 1:
            half = none.shape[1] // 2
            joined = await self.trio.conjoin(none[:, :half], none[:, half : 2 * half])
            rest = none[:, 2 * half :]
            none = joined.with_parts(*(np.concatenate(pair, axis=1) for pair in zip(joined.parts, rest.parts, strict=True)))  # fmt: skip
        return none.inverted().with_shape((len(table),))

    async def _broadcast(self, op: Looked, table: SharedTable, inner: SharedTable, names: Sequence[str]) -> SharedTable:
        """The one row of a table beside each row of another."""
        n, by = len(table), self.trio.numbers
        count = (await lift_bits(inner.valid, by)).reshape(1, len(inner)).sum(1)
        found: dict[str, Any] = {op.flag: _repeated(await self._positive(count), n)}
        if names:
            if len(inner) > 1:
                self._failures.append((await self._positive(count - by.constant(np.ones(1, np.int64))), SEVERAL_ROWS))
            cleared = await inner.keep_columns(names).clear_rows()
            for name, x in cleared.columns.items():
                if isinstance(x, SharedWords):
                    parts = [np.bitwise_xor.reduce(part, keepdims=True) for part in x.parts]
                    found[name] = _repeated(x.with_parts(parts[0], parts[1]), n)
                else:
                    found[name] = _repeated_number(x.reshape(1, len(x)).sum(1), n)
        return table.with_columns(found)

    async def _match(self, op: MatchedRows) -> SharedTable:
        # Which rows bid is opened on the way: so nobody may know which they are.
        left, right = [await table.move_rows(Rearrangement.draw(self.trio, len(table))) for table in (await self._table(op.left), await self._table(op.right))]  # fmt: skip
        both, by, shape = await cross_rows(left, right), self.trio.numbers, (len(left), len(right))
        cells = await self._cells(both, op.weight)
        there = await lift_bits(await self.trio.conjoin(both.valid, cells.there), by)
        weights = await by.mul(there, await self._number(cells, op.weight.code.scale))
        held = await match_rows(self.trio, weights.reshape(*shape))
        found: dict[str, Any] = {}
        lifted = await lift_bits(held, by) if any(bits is None for bits in right.layout.values()) else None
        for name, x in right.columns.items():
            spread = tuple(np.repeat(part[None], shape[0], axis=0) for part in x.parts)
            if isinstance(x, SharedWords):
                taken = await self.trio.conjoin(held.spread(x.bits), x.with_parts(spread[0], spread[1]))
                found[name] = x.with_parts(*(np.bitwise_xor.reduce(part, axis=1) for part in taken.parts))
            elif lifted is not None:
                found[name] = (await by.mul(lifted, SharedArray(by, spread))).sum(1)
        valid = held.with_parts(*(np.bitwise_xor.reduce(part, axis=1) for part in held.parts))
        return SharedTable({**left.columns, **found}, valid)

    async def _near(self, op: NearPairs) -> SharedTable:
        left, right = await self._table(op.left), await self._table(op.right)
        at, to = ((f"n{leaf.place}.0", f"n{leaf.place}.1") for leaf in (op.left, op.right))
        found = await near_pairs(left, right, at, to, radius=op.radius, k=op.k, steps=op.steps)
        number = found.words(LEFT).widened(64).xor_public(_TOP)
        return found.with_columns({f"{op.entry.name}.0": number, f"{op.entry.name}?": self._bits(len(found), 1)})

    # ------------------------------------------------------------------ groups

    async def _group(self, op: GroupedRows, table: SharedTable) -> SharedTable:
        keys = await self._keys(table, op.keys)
        added: dict[str, Any] = {}
        made: dict[str, RowAggregate] = {}
        for one in op.columns:
            await self._add(one, table, keys, added, made)
        table = table.with_columns(added)
        names = list(dict.fromkeys(name for key in op.keys for name in self._all_names(table, key)))
        found = await self._make_groups(op, table, keys, made, names) if op.keys else await total_rows(table, made)
        cleared: dict[str, Any] = {}
        for one in op.columns:
            name = one.column.name
            if one.operation == "count":
                cleared[f"{name}?"] = self._bits(len(found), 1)
            elif not one.column.number:
                there, limbs = found.words(f"{name}?"), self._names(found, name)
                words = await self.trio.conjoin_all([(there.spread(64), found.words(limb)) for limb in limbs])
                cleared |= dict(zip(limbs, words, strict=True))
        return found.with_columns(cleared)

    async def _make_groups(self, op: GroupedRows, table: SharedTable, keys: list[SortKey], made: dict[str, RowAggregate], keep: list[str]) -> SharedTable:  # fmt: skip
        """One row for each group."""
        del op
        return await group_rows(table, keys, made, keep=keep)

    async def _add(self, one: GroupColumn, table: SharedTable, keys: list[SortKey], added: dict[str, Any], made: dict[str, RowAggregate]) -> None:  # fmt: skip
        """The columns that an aggregate runs over, and what becomes of them."""
        name, gate = one.column.name, f"\0gate {one.column.name}"
        bits = None if one.where is None else (await self._truth(table, one.where))[0]
        if one.value is None:
            if bits is not None:
                added[gate] = bits
            made[name] = RowAggregate("count", where=None if bits is None else gate)
            return
        cells = await self._cells(table, one.value)
        bits = cells.there if bits is None else await self.trio.conjoin(bits, cells.there)
        if one.distinct and one.operation in ("count", "sum"):
            own = [SortKey(limb) for limb in await self._words(cells)]
            bits = await mark_firsts(table, [*keys, *own], where=bits)
        added[gate] = bits
        if one.operation == "count":
            made[name] = RowAggregate("count", where=gate)
        elif one.operation == "sum":
            added[f"\0{name}"] = await self._number(cells, one.column.code.scale)
            made[name] = RowAggregate("sum", f"\0{name}", where=gate)
            made[f"{name}?"] = RowAggregate("max", gate)
        else:
            limbs = await self._words(cells)
            operation: Any = one.operation
            if len(limbs) > 1:
                order = [SortKey(limb, one.operation == "max") for limb in limbs]
                added[gate] = await mark_firsts(table, keys, order, where=bits)
                operation = "max"
            for w, limb in enumerate(limbs):
                added[f"\0{name}.{w}"] = limb
                made[f"{name}.{w}"] = RowAggregate(operation, f"\0{name}.{w}", where=gate)
            made[f"{name}?"] = RowAggregate("max", gate)

    # ------------------------------------------------------------------ windows

    async def _rank(self, op: Ranked, table: SharedTable) -> SharedTable:
        partition, order = await self._keys(table, op.partition), await self._order(table, op.order)
        added: dict[str, Any] = {}
        made: dict[str, WindowAggregate] = {}
        for one in op.columns:
            await self._add_window(one, table, added, made)
        found = await window_columns(table.with_columns(added), partition, order, made)
        columns = {name: found[name] for name in (*table.columns, *made)}
        for one in op.columns:
            name = one.column.name
            if one.operation == "count" and one.value is not None:
                columns[name] = columns.pop(f"{name}?")
            if one.operation in ("row_number", "rank", "dense_rank", "count"):
                columns[f"{name}?"] = self._bits(len(table), 1)
            elif one.operation == "sum":
                columns[f"{name}?"] = await self._positive(found.numbers(f"{name}?"))
            elif one.operation in ("min", "max"):
                there = found.words(f"{name}?")
                columns[f"{name}.0"] = await self.trio.conjoin(there.spread(64), found.words(f"{name}.0"))
        return SharedTable(columns, found.valid)

    async def _add_window(self, one: WindowColumn, table: SharedTable, added: dict[str, Any], made: dict[str, WindowAggregate]) -> None:  # fmt: skip
        """The columns that a window function runs over, and what becomes of them."""
        name, operation, frame = one.column.name, cast("Any", one.operation), cast("Any", one.frame)
        if one.value is None or operation in ("row_number", "rank", "dense_rank"):
            made[name] = WindowAggregate(operation, frame=frame)
            return
        cells = await self._cells(table, one.value)
        gate = f"\0gate {name}"
        if operation in ("sum", "count"):
            usable = await lift_bits(await self.trio.conjoin(cells.there, table.valid), self.trio.numbers)
            added[gate] = usable
            made[f"{name}?"] = WindowAggregate("sum", gate, frame=frame)
            if operation == "sum":
                number = await self._number(cells, one.column.code.scale)
                added[f"\0{name}"] = await self.trio.numbers.mul(usable, number)
                made[name] = WindowAggregate("sum", f"\0{name}", frame=frame)
            return
        added[gate] = cells.there
        where = None if operation == "lag" else gate
        for w, limb in enumerate(await self._words(cells)):
            added[f"\0{name}.{w}"] = limb
            made[f"{name}.{w}"] = WindowAggregate(operation, f"\0{name}.{w}", where, frame, one.offset)
        made[f"{name}?"] = WindowAggregate("lag" if operation == "lag" else "max", gate, where, frame, one.offset)

    # ------------------------------------------------------------------ stacks

    async def _stack(self, op: Stacked) -> SharedTable:
        tables = [await self._table(one) for one in op.sources]
        cells = [[await self._cells(table, value) for value in row] for table, row in zip(tables, op.inputs, strict=True)]  # fmt: skip
        made = []
        for k, table in enumerate(tables):
            columns: dict[str, Any] = {}
            for c, column in enumerate(op.columns):
                own = cells[k][c]
                if not column.number:
                    if not own.limbs or own.code.scale != column.code.scale:
                        own = _Cells(own.code, own.there, await self._words(_Cells(own.code, own.there, number=await self._number(own, column.code.scale))))  # fmt: skip
                    own = replace(own, limbs=tuple(self._filled(own, max(1, *(len(row[c].limbs) for row in cells)))))
                columns |= await self._columns(column, own)
            for j, flag in enumerate(op.flags):
                columns[flag] = self._bits(len(table), int(j == k))
            made.append(SharedTable(columns, table.valid))
        return concatenate_tables(made)


def _numbered(table: SharedTable, name: str) -> SharedTable:
    """A table with the number of each row beside it."""
    return table.with_columns({name: table.trio.constant(np.arange(len(table)), 32)})


def _repeated(x: SharedWords, n: int) -> SharedWords:
    return x.with_parts(np.repeat(x.parts[0], n), np.repeat(x.parts[1], n))


def _repeated_number(x: SharedArray, n: int) -> SharedArray:
    return SharedArray(x.by, tuple(np.repeat(part, n) for part in x.parts))
