"""A plan in slices as a circuit of owners (`atoll.query.slices`): rows of the values that both have go in slice by slice, and what each has made of its other values by itself is added to the result.

Everyone knows in which slice a row lies. So a join pairs the rows of a slice by wires alone, which costs no gate, and tests what else the join compares.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from atoll.secure.garbled import GateCounter, Gates, Wires, blank_rows, join_wires

from ..secure.costs import sliced_layout
from ..secure.extents import bound_pairs
from ..secure.operators import (
    Connected,
    Expanded,
    Filtered,
    GroupedRows,
    JoinedRows,
    LeafRows,
    Looked,
    Operator,
    Ranked,
    SecurePlan,
    Stacked,  # fmt: skip
    Stored,
    walk_operators,
)
from ..slices import SlicedRows, SliceSizes, pair_slices
from .owner_rows import Own, play_shapes, release_wires, share_columns, share_leaves, shown_names
from .wire_values import WORD, WireTable, lengthen, one_bit, turn_top
from .wires import VALID, RunningTotals, WireTables, any_bits

__all__ = ["OwnResult", "SlicedWireTables", "count_gates", "release_answer"]

OwnResult: TypeAlias = "Callable[[str], Mapping[str, Any] | None]"
"""Of an owner the rows of the slices that it alone has, as `atoll.query.slices.compute_alone` makes them, if they are this party's own; else ``None``."""


class SlicedWireTables(WireTables):
    """The tables of a plan in slices.

    Args:
        gates: one party's side.
        leaves: the shared rows of each leaf; of those that are sliced, the ones of slices that several owners have.
        shown: as in `WireTables`.
        slices: the slices.
        alone: the rows that owners have made by themselves.
        numbers: the columns of these that are numbers, in place of words.
    """

    def __init__(self, gates: Gates, leaves: Sequence[WireTable], shown: Sequence[str], slices: SliceSizes, alone: Sequence[WireTable], numbers: frozenset[str]) -> None:  # fmt: skip
        super().__init__(gates, leaves, shown)
        self._slices, self._alone, self._numbers = slices, list(alone), numbers
        self._inside = {id(one) for one in walk_operators(slices.sliced.source)}
        _, self._pairs_at_most = slices.bounds(joint=True)
        self._places: dict[int, NDArray[np.int64]] = {}
        """The slice of each row of an operator's table, where everyone knows it."""

    async def _table_of(self, op: Operator) -> WireTable:
        if isinstance(op, SlicedRows):
            return self._add_alone(await self._table(op.source))
        made = await super()._table_of(op)
        if isinstance(op, LeafRows) and op.place in self._slices.sliced.places:
            self._places[id(op)] = self._slices.leaf_places(op.place)
        elif isinstance(op, Filtered | Expanded) and id(op.source) in self._places:
            self._places[id(op)] = self._places[id(op.source)]
        elif isinstance(op, Stacked) and all(id(one) in self._places for one in op.sources):
            self._places[id(op)] = np.concatenate([self._places[id(one)] for one in op.sources])
        return made

    def _add_alone(self, made: WireTable) -> WireTable:
        """The rows of a table, and behind them what owners have made by themselves, in columns that are wide enough for both."""
        tables, columns = [made, *self._alone], dict[str, Wires]()
        for name in [name for name in made.columns if all(name in one.columns for one in self._alone)]:
            bits = max(len(one.columns[name]) for one in tables)
            columns[name] = join_wires([self._widen(one.columns[name], bits, name) for one in tables], axis=1)
        return WireTable(columns, join_wires([one.valid for one in tables]))

    def _widen(self, x: Wires, bits: int, name: str) -> Wires:
        missing = bits - len(x)
        if not missing:
            return x
        if bits > WORD:  # of a text, zeros behind it
            return join_wires([self.gates.zeros((missing, x.shape[1])), x])
        return lengthen(x, bits) if name in self._numbers else turn_top(lengthen(turn_top(x), bits))

    def _known(self, *tables: Operator) -> list[NDArray[np.int64]]:
        """The slices of the rows of tables; nothing if not everyone knows them of all."""
        found = [self._places.get(id(one)) for one in tables]
        return [one for one in found if one is not None] if all(one is not None for one in found) else []

    async def _paired(self, op: JoinedRows | Looked, left: WireTable, right: WireTable) -> tuple[WireTable, NDArray[np.int64], NDArray[np.int64]] | None:  # fmt: skip
        """Pairs of rows of equal keys within slices, the row of the first table and the slice of each; ``None`` where slices are unknown or have too many pairs."""
        known = self._known(*((op.left, op.right) if isinstance(op, JoinedRows) else (op.source, op.inner)))
        most = (op.left_most, op.right_most) if isinstance(op, JoinedRows) else (op.source_most, op.inner_most)
        if id(op) not in self._inside or not known:
            return None
        rows, others, places = pair_slices(known[0], known[1], self._slices.keys)
        bound = min(bound_pairs(len(left), len(right), *most), self._pairs_at_most.get(id(op), len(rows)))
        if len(rows) > bound:  # few of these pairs can be equal in what else is compared
            return None
        if not len(rows):
            nothing = {**left.take_rows(slice(0, 1)).columns, **right.take_rows(slice(0, 1)).columns}
            return WireTable(nothing, self.bits(1, 0)), np.full(1, 0), np.full(1, -1)
        a, b = left.take_rows(rows), right.take_rows(others)
        made = WireTable({**a.columns, **b.columns}, await self.gates.conjoin(a.valid, b.valid))
        rest = self._slices.sliced.compared_beside(op)
        if rest:
            made = await made.filter_rows((await self.truth(made, Connected(True, rest)))[0])
        return made, rows, places

    async def _inner(self, op: JoinedRows | Looked, left: WireTable, right: WireTable) -> WireTable:
        found = await self._paired(op, left, right)
        if found is None:
            return await super()._inner(op, left, right)
        made, _, places = found
        if isinstance(op, JoinedRows) and op.side == "inner":
            self._places[id(op)] = places
        return made

    async def _look(self, op: Looked) -> WireTable:
        """Whether a row has others in its slice: an OR over these, without a sort."""
        table, inner = await self._table(op.source), await self._table(op.inner)
        known = self._known(op.source, op.inner)
        if id(op) not in self._inside or not known or op.columns:
            return await super()._look(op)
        rows, bits = known[1], one_bit(inner.valid)
        at = np.where([*(key is not None for key in self._slices.keys), False], np.arange(len(self._slices.keys) + 1), -2)[known[0]]  # fmt: skip
        if self._slices.sliced.compared_beside(op) or op.condition is not None:
            found = await self._paired(op, table, inner)
            if found is None:
                return await super()._look(op)
            both, rows, _ = found
            both = both if op.condition is None else await both.filter_rows((await self.truth(both, op.condition))[0])
            bits, at = one_bit(both.valid), np.arange(len(table))
        order = np.argsort(rows, kind="stable")
        totals, held = await reduce_slices(bits[:, order], rows[order], any_bits), np.unique(rows)
        place = np.searchsorted(held, at).clip(0, len(held) - 1)
        self._places[id(op)] = known[0]
        return table.with_columns({op.flag: totals[:, place].keep((held[place] == at)[None])})

    async def _rank(self, op: Ranked, table: WireTable) -> WireTable:
        """Partitions lie in slices, each of which is sorted by itself."""
        known = self._known(op.source)
        if id(op) not in self._inside or not known or not any(self._is_slice(one) for one in op.partition):
            return await super()._rank(op, table)
        table, self._places[id(op)] = _in_order(table, known[0])
        return replace(await super()._rank(op, table), slices=())

    def _is_slice(self, column: Stored) -> bool:
        return not column.number and column.name in self._slices.sliced.names

    async def _group(self, op: GroupedRows, table: WireTable) -> WireTable:
        """Groups of which each is a slice need no sort: everyone knows which rows they have. Others lie in slices, each of which is sorted by itself."""
        known, keys = self._known(op.source), [self._is_slice(key) for key in op.keys]
        if id(op) not in self._inside or not known or not any(keys):
            return await super()._group(op, table)
        table, places = _in_order(table, known[0])
        if not all(keys) or any(one.distinct and one.operation in ("count", "sum") for one in op.columns):
            self._places[id(op)] = places
            return await super()._group(op, table)
        totals = RunningTotals(len(np.unique(places)), lambda x, join: reduce_slices(x, places, join))
        names = [name for key in op.keys for name in (key.name, f"{key.name}?")]
        # All rows of a slice that count have its value.
        found = {name: await totals.run(await blank_rows(table.valid, table.columns[name]), any_bits) for name in names}
        for one in op.columns:
            (gate, value), made = await self._terms(table, one)
            columns = {**table.columns, **made}
            counts = await self.gates.conjoin(table.valid, one_bit(columns[gate]))
            found |= await self._aggregate(one, counts, columns[value], totals)
        self._places[id(op)] = np.unique(places)
        return WireTable(found, one_bit(await totals.run(one_bit(table.valid), any_bits)))


def _in_order(table: WireTable, places: NDArray[np.int64]) -> tuple[WireTable, NDArray[np.int64]]:
    """The rows of a table slice by slice, and the slice of each."""
    order = np.argsort(places, kind="stable")
    lengths = np.unique(places, return_counts=True)[1]
    return replace(table.take_rows(order), slices=tuple(int(one) for one in lengths)), places[order]


async def reduce_slices(x: Wires, places: NDArray[np.int64], join: Callable[[Wires, Wires], Awaitable[Wires]]) -> Wires:
    """What joins all rows of each slice, ``(bits, slices)``, in as many steps as the longest has halvings.

    Args:
        x: ``(bits, rows)``.
        places: the slice of each row, ascending.
        join: joins two rows.
    """
    while True:
        starts = np.flatnonzero(np.r_[True, places[1:] != places[:-1]])
        at = np.arange(len(places)) - np.repeat(starts, np.diff(np.r_[starts, len(places)]))
        second = np.flatnonzero(at % 2 == 1)
        if not len(second):
            return x
        kept = np.flatnonzero(at % 2 == 0)
        single = kept[~np.isin(kept + 1, second)]
        made = join_wires([await join(x[:, second - 1], x[:, second]), x[:, single]], axis=1)
        x = made[:, np.argsort(np.concatenate([second - 1, single]), kind="stable")]
        places = places[kept]


# ---------------------------------------------------------------- from the owners' rows to the answer


async def release_answer(plan: SecurePlan, gates: Gates, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], own: Own, slices: SliceSizes | None = None, result: OwnResult = lambda owner: None) -> list[tuple[Wires, dict[str, int]]]:  # fmt: skip
    """Take the rows of all owners, compute a plan, and let the rows of the answer leave; see `release_wires`.

    Args:
        plan: the plan.
        gates: this party's side.
        sizes: rows of each leaf at each owner.
        widths: words of each column of text.
        bits: bits of each column of whole numbers, if fewer than 64.
        own: this party's rows.
        slices: the slices; ``None`` for a plan without.
        result: what this party has made of the slices that it alone has.
    """
    if slices is None:
        leaves = await share_leaves(gates, plan, sizes, widths, bits, own)
        return await release_wires(plan, WireTables(gates, leaves, shown_names(plan)))
    places = slices.sliced.places
    leaves = await share_leaves(gates, plan, sizes, widths, bits, own, placed=places)
    layout = sliced_layout(plan, slices, widths)
    known = {**bits, **measure_result(plan, slices, widths, bits)}
    alone = [await _share_result(gates, layout, known, owner, rows, result(owner)) for owner in slices.counts if (rows := slices.result_rows(owner))]  # fmt: skip
    numbers = frozenset(name for name, width in layout.items() if width is None)
    return await release_wires(plan, SlicedWireTables(gates, leaves, shown_names(plan), slices, alone, numbers))


def measure_result(plan: SecurePlan, slices: SliceSizes, widths: Mapping[str, int], bits: Mapping[str, int]) -> dict[str, int]:  # fmt: skip
    """Most bits of the columns that owners make of slices by themselves, where they follow from those of the leaves: an aggregate of n rows has ``log n`` bits more than one of a single row."""
    counter, source, shapes = GateCounter(["owner"], 1), slices.sliced.source, dict[str, int]()

    async def work() -> None:
        sizes = {"owner": [1] * len(plan.leaves)}
        leaves = await share_leaves(counter, plan, sizes, widths, bits, lambda owner, place: None)
        shapes.update({name: len(x) for name, x in (await WireTables(counter, leaves).make(source)).columns.items()})

    play_shapes(work())
    rows, _ = slices.bounds(joint=False)
    found: dict[str, int] = {}
    for op in walk_operators(source):
        below = any(isinstance(one, GroupedRows | Ranked) for one in walk_operators(op) if one is not op)
        if isinstance(op, GroupedRows | Ranked) and not below:
            more = rows[id(op.source)].bit_length()
            found |= {one.column.name: min(WORD, shapes[one.column.name] + more) for one in op.columns if one.column.name in shapes}  # fmt: skip
        elif isinstance(op, Expanded | Stacked) and not below:
            made = [column for column, _ in op.columns] if isinstance(op, Expanded) else op.columns
            found |= {column.name: shapes[column.name] for column in made if column.name in shapes}
    return {name: count for name, count in found.items() if 1 < count < WORD}


async def _share_result(gates: Gates, layout: Mapping[str, int | None], bits: Mapping[str, int], owner: str, rows: int, made: Mapping[str, Any] | None) -> WireTable:  # fmt: skip
    """What one owner has made by itself, filled up."""
    held = None if made is None else (len(next(iter(made.values()))), made)
    asked = [(0, name, 1 if width == 1 else bits.get(name.removesuffix(".0"), WORD), rows) for name, width in [*layout.items(), (VALID, 1)]]  # fmt: skip
    limbs: dict[str, list[Wires]] = {}
    for (_, name), x in (await share_columns(gates, owner, {0: held}, asked)).items():
        limbs.setdefault(name if layout.get(name) in (None, 1) else name.rpartition(".")[0], []).append(x)
    valid = one_bit(limbs.pop(VALID)[0])
    return WireTable({name: join_wires(parts[::-1]) for name, parts in limbs.items()}, valid)


def count_gates(plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], block: int, slices: SliceSizes | None = None) -> GateCounter:  # fmt: skip
    """What a plan takes, before anyone is contacted: its circuits run on shapes alone.

    Args:
        plan: the plan.
        sizes: rows of each leaf at each owner; all owners compute.
        widths: words of each column of text.
        bits: bits of each column of whole numbers, if fewer than 64.
        block: as their gates have it; see `Gates`.
        slices: the slices; ``None`` for a plan without.
    """
    counter = GateCounter(list(sizes), block)

    async def work() -> None:
        for records, _ in await release_answer(plan, counter, sizes, widths, bits, lambda owner, place: None, slices):
            await counter.hand_out(records)

    play_shapes(work())
    return counter
