"""Values and conditions of a plan's rows as circuits over wires, whoever computes these: two owners with garbled labels, or several with authenticated bits (`atoll.secure.garbled.Gates`).

A `WireTable` has a row for each row that could be; a hidden bit says which rows count. Its columns are ``(bits, rows)``, lowest bit first: words as `atoll.query.column_codes` makes them, the words of one
text as one long number, numbers in two's complement, and of both a bit beside them that is 0 where the value is NULL. Of a whole number, words and number differ in the top bit alone: to turn one
into the other costs nothing. Nor does it to make a number longer, so that each has as many bits as it can need, at most 64: gates cost by the bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from atoll.secure.garbled import (
    Gates,
    Wires,
    add_wires,
    blank_rows,
    choose_wires,
    equal_wires,
    join_wires,
    less_wires,
    multiply_wires,
    number_bits,
    scale_wires,
    subtract_wires,
)

from ..column_codes import ColumnCode
from ..secure.operators import (
    ChosenValue,
    Compared,
    Computed,
    Connected,
    Fixed,
    Flag,
    MissingValue,
    Negated,
    Quotient,
    RowCondition,
    SameTruth,
    Stored,
    TruthValue,
    Value,
)

__all__ = ["WireCells", "WireTable", "WireValues", "one_bit", "lengthen", "stack_tables", "turn_top"]

WORD = 64


def turn_top(x: Wires) -> Wires:
    """Words of whole numbers as numbers in two's complement, and back."""
    made: Wires = x ^ (np.arange(len(x))[:, None] == len(x) - 1)
    return made


def lengthen(x: Wires, bits: int) -> Wires:
    """A number in two's complement with more bits."""
    missing = bits - len(x)
    return x if missing <= 0 else join_wires([x, x[-1:].spread(missing, *x.shape[1:])])


@dataclass(frozen=True)
class WireTable:
    """Rows that nobody need see.

    Attributes:
        columns: name -> ``(bits, rows)``.
        valid: 1 where a row counts, ``(rows,)``.
        runs: lengths of runs of rows, one after the other, that owners have sorted; empty for none.
        sorted_by: by which columns, some of their bits turned, those that do not count last.
        slices: lengths of slices of rows, one after the other, of which each is sorted by itself; empty for one of all.
    """

    columns: Mapping[str, Wires]
    valid: Wires
    runs: tuple[int, ...] = ()
    sorted_by: tuple[tuple[str, Any], ...] = ()
    slices: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.valid)

    def with_columns(self, columns: Mapping[str, Wires]) -> WireTable:
        """The table with further or other columns."""
        return replace(self, columns={**self.columns, **columns})

    def keep_columns(self, names: Sequence[str]) -> WireTable:
        """Some of the columns, in an order."""
        return replace(self, columns={name: self.columns[name] for name in dict.fromkeys(names)})

    def take_rows(self, rows: slice | NDArray[np.int64]) -> WireTable:
        """Some of the rows."""
        return WireTable({name: x[:, rows] for name, x in self.columns.items()}, self.valid[rows])

    async def filter_rows(self, bits: Wires) -> WireTable:
        """The same rows, of which those without the bit do not count."""
        return WireTable(self.columns, await bits.by.conjoin(self.valid, bits))


def stack_tables(tables: Sequence[WireTable]) -> WireTable:
    """The rows of tables one after the other, in the columns of the first one."""
    names = list(tables[0].columns)
    columns = {name: join_wires([one.columns[name] for one in tables], axis=1) for name in names}
    return WireTable(columns, join_wires([one.valid for one in tables]))


def one_bit(x: Wires) -> Wires:
    """A column of one bit as bits of rows, and back."""
    return x.reshape(1, -1) if len(x.shape) == 1 else x.reshape(x.shape[1])


@dataclass(frozen=True)
class WireCells:
    """A value of each row.

    Attributes:
        code: how values become words.
        there: 1 where there is a value, ``(rows,)``.
        words: the words, ``(bits, rows)``.
        under: a number that divides, if it is a quotient.
    """

    code: ColumnCode
    there: Wires
    words: Wires
    under: Wires | None = None

    async def number(self, scale: int) -> Wires:
        """A whole number in two's complement, as a multiple of ``10^-scale``."""
        found, factor = turn_top(self.words), 10 ** (scale - self.code.scale)
        return found if factor == 1 else await scale_wires(lengthen(found, min(WORD, len(found) + factor.bit_length())), factor)  # fmt: skip


class WireValues:
    """Values and conditions of tables."""

    def __init__(self, gates: Gates) -> None:
        self.gates = gates

    def bits(self, n: int, bit: int) -> Wires:
        """The same public bit in all rows, ``(n,)``."""
        return self.gates.constant(np.full(n, bool(bit)))

    def constant(self, number: int, bits: int, n: int) -> Wires:
        """The same public number in all rows."""
        known = (number >> np.arange(bits).astype(object)) & 1
        return self.gates.constant(np.broadcast_to(known.astype(bool)[:, None], (bits, n)))

    def counted(self, bit: Wires) -> Wires:
        """A bit of each row as a number."""
        return join_wires([bit.reshape(1, -1), self.gates.zeros((1, len(bit)))])

    async def columns(self, column: Stored, cells: WireCells) -> dict[str, Wires]:
        """A value as columns of a table: zeros where it is missing."""
        made = await cells.number(column.code.scale) if column.number else cells.words
        return {column.name: await blank_rows(cells.there, made), f"{column.name}?": one_bit(cells.there)}

    # ------------------------------------------------------------------ values

    async def cells(self, table: WireTable, value: Value) -> WireCells:
        """A value of each row."""
        if isinstance(value, Stored):
            found, there = table.columns[value.name], one_bit(table.columns[f"{value.name}?"])
            return WireCells(value.code, there, turn_top(found) if value.number else found)
        if isinstance(value, Fixed):
            return self._fixed(value, len(table))
        if isinstance(value, Computed):
            return await self._computed(table, value)
        if isinstance(value, Quotient):
            over, under = await self.cells(table, value.over), await self.cells(table, value.under)
            scale = max(over.code.scale, under.code.scale)
            there = await self.gates.conjoin(over.there, under.there)
            # The quotient of the whole multiples, by the difference of their scales.
            return WireCells(replace(value.code, scale=0), there, turn_top(await over.number(scale)), await under.number(scale))  # fmt: skip
        if isinstance(value, TruthValue):
            true, false = await self.truth(table, value.condition)
            return WireCells(value.code, true ^ false, turn_top(self.counted(true)))
        return await self._chosen(table, cast("ChosenValue", value))  # these are all values

    def _fixed(self, value: Fixed, n: int) -> WireCells:
        code, known = value.code, value.value
        there = self.bits(n, known is not None)
        if code.kind == "whole":
            number = int(known or 0)
            return WireCells(code, there, turn_top(self.constant(number, number.bit_length() + 1, n)))
        bits = np.concatenate([number_bits(one.reshape(1), WORD) for one in reversed(code.encode_constant(known))])
        return WireCells(code, there, self.gates.constant(np.broadcast_to(bits, (len(bits), n))))

    async def _computed(self, table: WireTable, value: Computed) -> WireCells:
        left, right = await self.cells(table, value.left), await self.cells(table, value.right)
        there = await self.gates.conjoin(left.there, right.there)
        if value.operation == "*":
            for one, other in ((value.left, right), (value.right, left)):
                if isinstance(one, Fixed):
                    number, factor = await other.number(other.code.scale), int(one.value or 0)
                    made = await scale_wires(lengthen(number, min(WORD, len(number) + factor.bit_length())), factor)
                    return WireCells(value.code, there, turn_top(made))
            made = await self._multiply(await left.number(left.code.scale), await right.number(right.code.scale))
            return WireCells(value.code, there, turn_top(made))
        x, y = [await one.number(value.code.scale) for one in (left, right)]
        width = min(WORD, max(len(x), len(y)) + 1)
        made = await (subtract_wires if value.operation == "-" else add_wires)(lengthen(x, width), lengthen(y, width))
        return WireCells(value.code, there, turn_top(made))

    async def _multiply(self, x: Wires, y: Wires) -> Wires:
        width = min(WORD, len(x) + len(y))
        return await multiply_wires(lengthen(x, width), lengthen(y, width))

    async def _chosen(self, table: WireTable, value: ChosenValue) -> WireCells:
        cells = [await self.cells(table, one) for one in [*(one for _, one in value.cases), value.default]]
        if value.arithmetic:
            cells = [WireCells(value.code, one.there, turn_top(await one.number(value.code.scale))) for one in cells]
        found, width = cells[-1], max(len(one.words) for one in cells)
        for (condition, _), one in reversed(list(zip(value.cases, cells[:-1], strict=True))):
            true, _ = await self.truth(table, condition)
            sides = [join_wires([one_bit(side.there), self.fitted(side, width)]) for side in (one, found)]
            made = await choose_wires(true, sides[0], sides[1])
            found = WireCells(value.code, made[0], made[1:])
        return found

    def fitted(self, cells: WireCells, bits: int) -> Wires:
        """Words with more bits: of a text, zeros behind it."""
        words, missing = cells.words, bits - len(cells.words)
        if cells.code.kind == "whole":
            return turn_top(lengthen(turn_top(words), bits))
        return words if not missing else join_wires([self.gates.zeros((missing, words.shape[1])), words])

    # ------------------------------------------------------------------ conditions

    async def truth(self, table: WireTable, node: RowCondition) -> tuple[Wires, Wires]:
        """Where a condition is true, and where it is false: in neither it is NULL."""
        if isinstance(node, SameTruth):
            return self.bits(len(table), node.value is True), self.bits(len(table), node.value is False)
        if isinstance(node, Flag):
            bits = one_bit(table.columns[node.name])
            return bits, ~bits
        if isinstance(node, Negated):
            true, false = await self.truth(table, node.part)
            return false, true
        if isinstance(node, Connected):
            found = await self.truth(table, node.parts[0])
            for part in node.parts[1:]:
                (a, not_a), (b, not_b) = found, await self.truth(table, part)
                found = (await self._all(a, b), ~await self._all(~not_a, ~not_b)) if node.every else (~await self._all(~a, ~b), await self._all(not_a, not_b))  # fmt: skip
            return found
        if isinstance(node, MissingValue):
            there = (await self.cells(table, node.value)).there
            return ~there, there
        holds, there = await self._compare(table, cast("Compared", node))  # these are all conditions
        true = await self._all(holds, there)
        return true, there ^ true

    async def _all(self, one: Wires, other: Wires) -> Wires:
        return await self.gates.conjoin(one, other)

    async def _compare(self, table: WireTable, node: Compared) -> tuple[Wires, Wires]:
        left, right = await self.cells(table, node.left), await self.cells(table, node.right)
        there = await self._all(left.there, right.there)
        if left.under is not None or right.under is not None:
            return await self._compare_quotients(left, right, equal=node.equal), there
        one, other = await self.alike(left, right)
        return await (equal_wires if node.equal else less_wires)(one, other), there

    async def alike(self, left: WireCells, right: WireCells) -> tuple[Wires, Wires]:
        """Words of two values that compare: of one scale, and of one length."""
        if left.code.kind == "whole":
            scale = max(left.code.scale, right.code.scale)
            left, right = [WireCells(one.code, one.there, turn_top(await one.number(scale))) for one in (left, right)]
        width = max(len(left.words), len(right.words))
        return self.fitted(left, width), self.fitted(right, width)

    async def _compare_quotients(self, left: WireCells, right: WireCells, *, equal: bool) -> Wires:
        """What divides one side multiplies the other."""
        scale = max(left.code.scale, right.code.scale)
        a, b = [await one.number(scale) for one in (left, right)]
        if right.under is not None:
            a = await self._multiply(a, right.under)
        if left.under is not None:
            b = await self._multiply(b, left.under)
        a, b = lengthen(a, len(b)), lengthen(b, len(a))
        return await equal_wires(a, b) if equal else await less_wires(a, b, signed=True)
