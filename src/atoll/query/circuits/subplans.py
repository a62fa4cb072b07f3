"""Parts of a plan that some owners compute among themselves, before all go on with the results (Poddar et al. 2021, "Senate", sections 5 and 6: sub-circuits among the owners concerned, verified by those who take them over).

A circuit of n owners sends each bit that it opens n (n - 1) times. So a part in which fewer owners have a say is computed by these alone:

* *Unions*: owners merge their sorted rows of a table by twos or fours, and the results again, like players of a cup.
* *Joins* of tables that only some owners have rows of.

A result stays secret: it is masked by bits of the dealer, which deals the same bits to those who take over (`AuthenticatedBits.lend`). One owner of the part that follows the protocol is enough for the right result. If all
of them cheat, they can give any rows, so these are checked like rows of one owner: whatever passes is the result for some rows of theirs. Of a union the rows must ascend. Of a join each pair must have equal keys and meet all
conditions; computed columns are computed anew. Numbers must be in range, and rows have numbers of these owners. What a policy claims of how many rows of their tables have one key, they check among themselves.

`measure_parts` runs a division on shapes, which says what each part sends and which form its result has.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

import numpy as np

from atoll.secure.garbled import GateCounter, Gates, Wires, all_wires, join_wires

from ..secure.operators import Expanded, Filtered, JoinedRows, LeafRows, Operator, SecurePlan, inputs_of, walk_operators
from .owner_rows import Own, RowChecks, leaf_orders, play_shapes, release_wires, share_leaves, shown_names
from .wire_values import WireTable, one_bit
from .wires import WireTables

__all__ = ["Division", "PartCounter", "PartRunner", "PlanPart", "divide_plan", "measure_parts"]


@dataclass(frozen=True)
class Division:
    """How a plan is divided.

    Attributes:
        fan: how many sorted tables a union merges at once; 0 for those of all owners.
        joins: whether owners join among themselves what only they have rows of.
    """

    fan: int = 0
    joins: bool = False

    def told(self) -> list[int]:
        """As a request says it."""
        return [self.fan, int(self.joins)]


@dataclass(frozen=True)
class PlanPart:
    """What a group of owners computes.

    Attributes:
        owners: the group, in the order of the statement's owners.
        place: the leaf whose rows it merges; ``None`` for none.
        join: what it joins; ``None`` for nothing. The whole plan is the part that has neither.
        parts: what fewer owners compute before.
        held: leaf -> owners that share their own rows of it here.
        number: of the part, after those that it needs.
    """

    owners: tuple[str, ...]
    place: int | None = None
    join: Operator | None = None
    parts: tuple[PlanPart, ...] = ()
    held: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    number: int = 0

    def walk(self) -> Iterator[PlanPart]:
        """All parts, each after those that it needs."""
        for part in self.parts:
            yield from part.walk()
        yield self

    def numbered(self, first: int = 0) -> PlanPart:
        """The same part with numbers from ``first``."""
        parts = []
        for part in self.parts:
            parts.append(part.numbered(first))
            first = parts[-1].number + 1
        return replace(self, parts=tuple(parts), number=first)


# ---------------------------------------------------------------- which parts


def divide_plan(plan: SecurePlan, sizes: Mapping[str, Sequence[int]], division: Division) -> PlanPart:
    """The whole plan, with what fewer owners compute before.

    Args:
        plan: the plan.
        sizes: rows of each leaf at each owner; who has none has 0.
        division: how.
    """
    return _Divider(plan, sizes, division).whole().numbered()


class _Divider:
    def __init__(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], division: Division) -> None:
        self._roots = [one for one in (plan.root, plan.withheld) if one is not None]
        self._division, self._orders, self._owners = division, leaf_orders(plan), tuple(sizes)
        self._holders = [tuple(owner for owner in sizes if sizes[owner][place]) for place in range(len(plan.leaves))]

    def whole(self) -> PlanPart:
        return self._part(self._owners, self._roots)

    def _part(self, group: tuple[str, ...], roots: Sequence[Operator], join: Operator | None = None) -> PlanPart:
        parts: list[PlanPart] = []
        held: dict[int, tuple[str, ...]] = {}
        seen: set[int] = set()

        def visit(op: Operator) -> None:
            if id(op) in seen:
                return
            seen.add(id(op))
            if isinstance(op, LeafRows):
                if op.place not in held:
                    held[op.place] = ()
                    self._union(op.place, group, parts, held)
            elif op is not join and self._is_apart(op, group):
                parts.append(self._part(self._concerned(op), [op], op))
            else:
                for inner in inputs_of(op):
                    visit(inner)

        for root in roots:
            visit(root)
        return PlanPart(group, join=join, parts=tuple(parts), held=held)

    def _concerned(self, op: Operator) -> tuple[str, ...]:
        return tuple(owner for owner in self._owners if any(owner in self._holders[place] for place in _places(op)))

    def _is_apart(self, op: Operator, group: tuple[str, ...]) -> bool:
        """Whether fewer owners can join it, whose rows nobody needs otherwise: rows that went in twice could differ."""
        if not (self._division.joins and isinstance(op, JoinedRows) and _is_checked_by_row(op)):
            return False
        used = {one.place for root in self._roots for one in _walk_outside(root, op) if isinstance(one, LeafRows)}
        return used.isdisjoint(_places(op)) and 2 <= len(self._concerned(op)) < len(group)

    def _union(self, place: int, group: tuple[str, ...], parts: list[PlanPart], held: dict[int, tuple[str, ...]]) -> None:  # fmt: skip
        own, fan = self._holders[place], self._division.fan
        if fan < 2 or place not in self._orders:
            held[place] = own
        elif 2 <= len(own) < len(group):
            parts.append(self._merged(place, own))
        else:
            made = self._merged(place, own)
            parts += made.parts
            held[place] = made.held[place]

    def _merged(self, place: int, own: tuple[str, ...]) -> PlanPart:
        """The union of some owners' rows."""
        if len(own) <= self._division.fan:
            return PlanPart(own, place, held={place: own})
        chunks = [tuple(map(str, chunk)) for chunk in np.array_split(np.array(own, dtype=object), self._division.fan)]
        parts = tuple(self._merged(place, chunk) for chunk in chunks if len(chunk) > 1)
        return PlanPart(own, place, parts=parts, held={place: tuple(chunk[0] for chunk in chunks if len(chunk) == 1)})


def _places(op: Operator) -> list[int]:
    """The leaves below an operator."""
    return sorted({one.place for one in walk_operators(op) if isinstance(one, LeafRows)})


def _walk_outside(op: Operator, part: Operator) -> Iterator[Operator]:
    """An operator and what it needs, without one part of it."""
    if op is not part:
        yield op
        for inner in inputs_of(op):
            yield from _walk_outside(inner, part)


def _is_checked_by_row(op: Operator) -> bool:
    """Whether each row says itself if it belongs there: rows of leaves, conditions, computed columns, inner joins."""
    return all(isinstance(one, LeafRows | Filtered | Expanded) or (isinstance(one, JoinedRows) and one.side == "inner") for one in walk_operators(op))  # fmt: skip


# ---------------------------------------------------------------- how they are computed


class PartGates(Protocol):
    """Gates of groups, and how bits pass from one to another."""

    def takes_part(self, part: PlanPart) -> bool:
        """Whether this party is one of the group."""
        ...

    def open(self, part: PlanPart) -> AbstractAsyncContextManager[Gates]:
        """The group's gates."""
        ...

    async def lend(self, gates: Gates, part: PlanPart, x: Wires) -> Any:
        """Bits that the group hands on, as `borrow` takes them."""
        ...

    async def borrow(self, gates: Gates, part: PlanPart, lent: Any, shape: tuple[int, int]) -> Wires:
        """Bits that another group handed on; ``lent`` is ``None`` for who is none of it."""
        ...


class PartRunner:
    """Computes the parts of a plan, at one party or on shapes.

    Args:
        plan: the plan.
        sizes: rows of each leaf at each owner.
        widths: words of each column of text.
        bits: bits of each column of whole numbers, if fewer than 64.
        own: this party's rows.
        gates: the groups' gates.
        checking: makes what is checked of the rows of owners.
        layouts: number of a part -> bits of each column of its result, and its rows; without them they are noted here, of parts that this party takes part in.
    """

    def __init__(self, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], own: Own, gates: PartGates, checking: Callable[[Gates], RowChecks], layouts: dict[int, tuple[dict[str, int], int]] | None = None) -> None:  # fmt: skip
        self._plan, self._sizes, self._widths, self._bits, self._own = plan, sizes, widths, bits, own
        self._gates, self._checking = gates, checking
        self.layouts: dict[int, tuple[dict[str, int], int]] = {} if layouts is None else layouts

    async def run(self, whole: PlanPart) -> list[tuple[Any, dict[str, int], int]]:
        """Of each table of the answer this party's part, the bits of each column and the number of rows."""
        lent = await self._lent(whole)
        async with self._gates.open(whole) as gates:
            leaves, made = await self._enter(gates, whole, lent)
            released = await release_wires(self._plan, WireTables(gates, leaves, shown_names(self._plan), made))
            parts = [await gates.hand_out(records) for records, _ in released]
            return [(part, dict(layout), records.shape[1]) for part, (records, layout) in zip(parts, released, strict=True)]  # fmt: skip

    async def _lent(self, part: PlanPart) -> dict[int, Any]:
        """What the parts before it hand on, of those that this party takes part in."""
        return {one.number: await self._lend(one) for one in part.parts if self._gates.takes_part(one)}

    async def _lend(self, part: PlanPart) -> Any:
        lent = await self._lent(part)
        async with self._gates.open(part) as gates:
            leaves, made = await self._enter(gates, part, lent)
            tables = WireTables(gates, leaves, made=made)
            if part.place is not None:
                table = await tables.merge_runs(leaves[part.place])
            else:
                table = await tables.make(cast("Operator", part.join))
                table = table.keep_columns(_base_names(self._plan, cast("Operator", part.join)))
            self.layouts[part.number] = {name: len(x) for name, x in table.columns.items()}, len(table)
            return await self._gates.lend(gates, part, join_wires([*table.columns.values(), one_bit(table.valid)]))

    async def _enter(self, gates: Gates, part: PlanPart, lent: Mapping[int, Any]) -> tuple[list[WireTable], dict[int, tuple[Operator, WireTable]]]:  # fmt: skip
        """The rows of each leaf, and the joins that were made before: all checked."""
        checks = self._checking(gates)
        runs: dict[int, list[WireTable]] = {}
        made: dict[int, tuple[Operator, WireTable]] = {}
        for one in part.parts:
            (columns, rows), at = self.layouts[one.number], 0
            x = await self._gates.borrow(gates, one, lent.get(one.number), (sum(columns.values()) + 1, rows))
            split = {}
            for name, width in columns.items():
                split[name], at = x[at : at + width], at + width
            table = WireTable(split, one_bit(x[at:]))
            if one.place is not None:
                runs.setdefault(one.place, []).append(await checks.inspect(one.owners, one.place, table))
            else:
                op = cast("Operator", one.join)
                made[id(op)] = op, await self._inspect_join(gates, checks, one.owners, op, table)
        sizes = {owner: [int(count) if owner in part.held.get(place, ()) else 0 for place, count in enumerate(counts)] for owner, counts in self._sizes.items() if owner in part.owners}  # fmt: skip
        leaves = await share_leaves(gates, self._plan, sizes, self._widths, self._bits, self._own, checks, runs)
        return leaves, made

    async def _inspect_join(self, gates: Gates, checks: RowChecks, owners: Sequence[str], op: Operator, table: WireTable) -> WireTable:  # fmt: skip
        """Pairs of rows that other owners have made: each must be one, or not count."""
        for place in _places(op):
            table = await checks.inspect(owners, place, table, ordered=False)
        tables, right = WireTables(gates, []), []
        for one in dict.fromkeys(walk_operators(op)):
            if isinstance(one, Expanded):
                table = await tables.expand(one, table)
            elif isinstance(one, Filtered):
                right.append((await tables.truth(table, one.condition))[0])
            elif isinstance(one, JoinedRows):
                right += await tables.match_pairs(one, table)
        if right:
            meets = await all_wires(join_wires([one_bit(bit) for bit in right]))
            await checks.notice(owners, "a pair of rows does not belong into their join", ~meets, table.valid)
        return table


def _base_names(plan: SecurePlan, op: Operator) -> list[str]:
    """The columns of sites of the leaves below an operator, and the bits beside them."""
    return [name for place in _places(op) for column in plan.leaves[place].columns for name in (column.name, f"{column.name}?")]  # fmt: skip


# ---------------------------------------------------------------- what they cost


class PartCounter(GateCounter):
    """Counts what a group does.

    Attributes:
        lent: bits that it hands on.
        borrowed: bits that it takes over, and how many owners lend them.
    """

    def __init__(self, roles: Sequence[str], block: int) -> None:
        super().__init__(roles, block)
        self.lent = 0
        self.borrowed: list[tuple[int, int]] = []


class _CountedParts:
    def __init__(self, block: int) -> None:
        self._block, self.counters = block, list[PartCounter]()

    def takes_part(self, part: PlanPart) -> bool:
        return True

    def open(self, part: PlanPart) -> AbstractAsyncContextManager[Gates]:
        self.counters.append(PartCounter(part.owners, self._block))
        return nullcontext(self.counters[-1])

    async def lend(self, gates: Gates, part: PlanPart, x: Wires) -> None:
        cast("PartCounter", gates).lent += x.shape[0] * x.shape[1]

    async def borrow(self, gates: Gates, part: PlanPart, lent: Any, shape: tuple[int, int]) -> Wires:
        cast("PartCounter", gates).borrowed.append((shape[0] * shape[1], len(part.owners)))
        return gates.zeros(shape)


def measure_parts(plan: SecurePlan, whole: PlanPart, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], block: int, checking: Callable[[Gates], RowChecks]) -> tuple[list[PartCounter], dict[int, tuple[dict[str, int], int]]]:  # fmt: skip
    """What each part takes, that of the whole plan last, and the forms of their results: the circuits run on shapes alone.

    Args:
        plan: the plan.
        whole: its division.
        sizes: rows of each leaf at each owner.
        widths: words of each column of text.
        bits: bits of each column of whole numbers, if fewer than 64.
        block: as the gates have it; see `Gates`.
        checking: makes what is checked of the rows of owners.
    """
    counted = _CountedParts(block)
    runner = PartRunner(plan, sizes, widths, bits, lambda owner, place: None, counted, checking)
    play_shapes(runner.run(whole))
    return counted.counters, runner.layouts
