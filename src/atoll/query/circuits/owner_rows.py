"""What owners put into the circuit of a plan, and what leaves it: rows that each has sorted by itself, and the rows of the answer, in an order that follows from themselves alone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeAlias

import numpy as np

from atoll.core.errors import DataError, SessionError
from atoll.secure.garbled import Gates, Wires, blank_rows, compact_rows, join_wires, read_numbers

from ..secure.costs import WITHHELD, leaf_layout
from ..secure.operators import (
    Expanded,
    Filtered,
    GroupedRows,
    LeafRows,
    Limited,
    PlanLeaf,
    Ranked,
    SecurePlan,
    Stored,
    walk_operators,
)
from ..slices import HERE
from .wire_values import WORD, WireTable, one_bit, stack_tables
from .wires import UNSIGNED, VALID, Turned, WireTables, order_terms

__all__ = [
    "Own",
    "RowChecks",
    "leaf_orders",
    "measure_bits",
    "play_shapes",
    "read_wires",
    "release_wires",
    "share_columns",
    "share_leaves",
    "shown_names",
    "sort_own",
]


def leaf_orders(plan: SecurePlan) -> dict[int, tuple[tuple[str, Turned], ...]]:
    """The order in which owners sort their own rows of a leaf, of those that the owners together sort first of all: they merge then (Bater et al. 2017, section 5)."""
    found: dict[int, tuple[tuple[str, Turned], ...]] = {}
    shown = shown_names(plan)
    for op in [*walk_operators(plan.root), *(walk_operators(plan.withheld) if plan.withheld is not None else ())]:
        if not isinstance(op, GroupedRows | Ranked | Limited):
            continue
        source = op.source
        while isinstance(source, Expanded):
            source = source.source
        if not isinstance(source, LeafRows) or source.place in found:
            continue
        names = [name for one in plan.leaves[source.place].columns for name in (one.name, f"{one.name}?")]
        if isinstance(op, GroupedRows):
            terms = order_terms(tuple((key, False, False) for key in op.keys))
            first = next((one.value for one in op.columns if one.distinct and one.operation in ("count", "sum")), None)
            terms += [(f"{first.name}?", "all"), (first.name, "")] if isinstance(first, Stored) else []
        elif isinstance(op, Ranked):
            terms = order_terms((*((key, False, False) for key in op.partition), *op.order))
        else:
            terms = [*order_terms(op.order), *((name, "") for name in ([one for one in names if one in shown] or names))]  # fmt: skip
        kept = [one for k, one in enumerate(terms) if all(one[0] != other for other, _ in terms[:k])]
        if kept and all(name in names for name, _ in kept):
            found[source.place] = tuple(kept)
    return found


def sort_own(rows: Mapping[str, Any], order: Sequence[tuple[str, Turned]]) -> dict[str, Any]:
    """An owner's rows of a leaf in an order, as `LocalRows.encode` makes them."""
    keys = []
    for name, turned in order:
        names = [name] if name in rows else [f"{name}.{w}" for w in range(len(rows)) if f"{name}.{w}" in rows]
        mask = np.uint64(UNSIGNED[turned])
        keys += [_unsigned(rows[one]) ^ (mask & np.uint64(1) if name.endswith("?") else mask) for one in names]
    places = np.lexsort(keys[::-1])
    return {name: np.asarray(values)[places] for name, values in rows.items()}


def _unsigned(values: Any) -> Any:
    made = np.asarray(values)
    return made.view(np.uint64) if made.dtype == np.int64 else made.astype(np.uint64)


class RowChecks(Protocol):
    """What a party that may cheat is checked for, before its rows are used."""

    async def inspect(self, owners: Sequence[str], place: int, table: WireTable, *, ordered: bool = True) -> WireTable:
        """The rows that owners have given of a leaf, as they are used: one of them its own, several what they computed among themselves. Without ``ordered`` they have any order."""
        ...

    async def notice(self, owners: Sequence[str], what: str, bits: Wires, there: Wires | None = None) -> None:
        """Note that these owners cheat where a bit is 1, of rows that are there."""
        ...

    async def require_honest(self) -> None:
        """Go on only if all rows were as they should be."""
        ...


Own: TypeAlias = "Callable[[str, int], tuple[int, Mapping[str, Any]] | None]"
"""Of an owner and a leaf the number of rows, and their columns as `LocalRows.encode` makes them, if they are this party's own; else ``None``."""


async def share_leaves(gates: Gates, plan: SecurePlan, sizes: Mapping[str, Sequence[int]], widths: Mapping[str, int], bits: Mapping[str, int], own: Own, checks: RowChecks | None = None, runs: Mapping[int, Sequence[WireTable]] | None = None, placed: Collection[int] = ()) -> list[WireTable]:  # fmt: skip
    """The rows of each leaf, of all owners, filled up to the sizes that everyone knows.

    Args:
        gates: this party's side.
        plan: the plan.
        sizes: rows of each leaf at each owner.
        widths: words of each column of text.
        bits: bits of each column of whole numbers, if fewer than 64.
        own: this party's rows.
        checks: what is checked of the rows of each owner; ``None`` for nothing.
        runs: leaf -> sorted rows that are shared already, of other owners.
        placed: leaves whose rows lie at places that everyone knows, so that nobody sorts them.
    """
    parts: list[list[WireTable]] = [list((runs or {}).get(place, ())) for place in range(len(plan.leaves))]
    layouts, orders = [leaf_layout(leaf, widths) for leaf in plan.leaves], leaf_orders(plan)
    orders = {place: order for place, order in orders.items() if place not in placed}
    for owner, counts in sizes.items():
        places = [(place, int(count)) for place, count in enumerate(counts) if count]
        asked: list[tuple[int, str, int, int]] = []
        for place, count in places:
            whole = {column.name if column.number else f"{column.name}.0": bits.get(column.name, WORD) for column in plan.leaves[place].columns if column.code.kind == "whole"}  # fmt: skip
            asked += [(place, name, whole.get(name, width or WORD), count) for name, width in [*layouts[place].items(), (VALID, 1)]]  # fmt: skip
        rows = {place: own(owner, place) for place, _ in places}
        rows = {place: held if held is None or place not in orders else (held[0], sort_own(held[1], orders[place])) for place, held in rows.items()}  # fmt: skip
        found = await share_columns(gates, owner, rows, asked)
        for place, _ in places:
            made = _leaf_table(plan.leaves[place], {name: found[place, name] for name in [*layouts[place], VALID]})
            parts[place].append(made if checks is None else await checks.inspect([owner], place, made))
    if checks is not None:
        await checks.require_honest()
    for place, leaf in enumerate(plan.leaves):
        if not parts[place]:  # no owner has a row: one that does not count stands for them
            whole = {column.name: bits.get(column.name, WORD) for column in leaf.columns if column.code.kind == "whole"}
            empty = {name: gates.zeros((whole.get(name.partition(".")[0], width or WORD) if width != 1 else 1, 1)) for name, width in layouts[place].items()}  # fmt: skip
            parts[place].append(_leaf_table(leaf, {**empty, VALID: gates.zeros((1, 1))}))
    return [replace(stack_tables(one), runs=tuple(map(len, one)) if place in orders else (), sorted_by=orders.get(place, ())) for place, one in enumerate(parts)]  # fmt: skip


async def share_columns(gates: Gates, owner: str, rows: Mapping[int, tuple[int, Mapping[str, Any]] | None], asked: Sequence[tuple[int, str, int, int]]) -> dict[tuple[int, str], Wires]:  # fmt: skip
    """Columns of an owner's tables, ``(bits, rows)`` each: all of one width go in one message.

    Args:
        gates: this party's side.
        owner: whose they are.
        rows: number of a table -> its rows, as `Own` has them.
        asked: of each column the table, the name, the bits, and the rows up to which it is filled.
    """
    widths: dict[int, list[tuple[int, str, int]]] = {}
    for place, name, width, count in asked:
        widths.setdefault(width, []).append((place, name, count))
    found: dict[tuple[int, str], Wires] = {}
    for width, columns in sorted(widths.items()):
        filled = [_fill_column(held, name, count, width) for place, name, count in columns if (held := rows[place]) is not None]  # fmt: skip
        total = sum(count for _, _, count in columns)
        shared = await gates.share(np.concatenate(filled) if filled else None, owner=owner, bits=width, rows=total)
        ends = np.cumsum([0, *(count for _, _, count in columns)])
        for (place, name, _), a, b in zip(columns, ends, ends[1:], strict=False):
            found[place, name] = shared[:, a:b]
    return found


def _fill_column(rows: tuple[int, Mapping[str, Any]], name: str, count: int, width: int) -> Any:
    """A column of so many bits, filled up with zeros; where rows lie in slices, some are none."""
    here, columns = rows
    made = np.asarray(columns.get(HERE, np.ones(here, np.uint64)) if name == VALID else columns[name])
    if width not in (1, WORD):  # numbers as they are, and words with another top bit
        number = made.dtype == np.int64
        signed = made if number else (made ^ np.uint64(1 << (WORD - 1))).view(np.int64)
        most = 1 << (width - 1)
        there = np.ones(here, bool) if number else columns[f"{name.removesuffix('.0')}?"] != 0
        if ((signed < -most) | (signed >= most))[there].any():
            raise DataError(f"a number of more than {width} bits", where="circuit", remedy="ask again: rows have changed since their sizes were told")  # fmt: skip
        made = np.where(there, (signed.astype(np.uint64) ^ np.uint64(0 if number else most)) & np.uint64((1 << width) - 1), np.uint64(0))  # fmt: skip
    return np.concatenate([_unsigned(made), np.zeros(count - here, np.uint64)])


def measure_bits(leaf: PlanLeaf, rows: Mapping[str, Any], *, strict: bool) -> dict[str, int]:
    """Bits of the largest number of each column of whole numbers, in steps of 8. A site's number is in the number of a row.

    Args:
        leaf: the leaf.
        rows: as `LocalRows.encode` makes them.
        strict: whether few rows must not show: then the plan alone says how large numbers may be.
    """
    found = {}
    for column in leaf.columns:
        if column.code.kind != "whole" or column.row:
            continue
        if strict:
            known = column.checked and column.bound.most
            found[column.name] = min(WORD, 8 * -(-(column.bound.most[0].bit_length() + 1) // 8)) if known else WORD
            continue
        values, there = (rows[column.name], rows[f"{column.name}?"]) if column.number else ((rows[f"{column.name}.0"] ^ np.uint64(1 << (WORD - 1))).view(np.int64), rows[f"{column.name}?"])  # fmt: skip
        here = np.asarray(values)[np.asarray(there) != 0]
        most = max((int(value).bit_length() for value in (here.min(), here.max())), default=0) if len(here) else 0
        found[column.name] = min(WORD, 8 * -(-(most + 1) // 8))
    return found


def _leaf_table(leaf: PlanLeaf, shared: Mapping[str, Wires]) -> WireTable:
    columns = {}
    for column in leaf.columns:
        limbs = [x for name, x in shared.items() if name == column.name or name.rpartition(".")[0] == column.name]
        columns[column.name] = join_wires(limbs[::-1])
        columns[f"{column.name}?"] = shared[f"{column.name}?"]
    return WireTable(columns, one_bit(shared[VALID]))


def shown_names(plan: SecurePlan) -> list[str]:
    """The columns of the answer, and the bits beside them."""
    return list(dict.fromkeys(name for column in plan.shown for name in (column.name, f"{column.name}?")))


async def release_wires(plan: SecurePlan, tables: WireTables) -> list[tuple[Wires, dict[str, int]]]:
    """The rows of the answer as they leave, ``(bits, rows)``: whether a row counts, and its columns, zeros where it does not; and the bits of each column. A second table has the number of groups that are left out, if any can be.

    Args:
        plan: the plan.
        tables: makes its tables, of the columns that `shown_names` says.
    """
    shown = shown_names(plan)
    root = (await tables.make(plan.root)).keep_columns(shown)
    if plan.ordered or len(root) == 1 or _is_sorted(plan):
        valid, records = await compact_rows(root.valid, join_wires(list(root.columns.values())))
    else:
        # Rows leave in the order of their own values: nobody sees whose they were, nor how many rows a group has.
        root = await tables.sort_by_all(root)
        valid, records = root.valid, await blank_rows(root.valid, join_wires(list(root.columns.values())))
    found = [(join_wires([one_bit(valid), records]), {name: len(x) for name, x in root.columns.items()})]
    if plan.withheld is not None:
        few = (await tables.make(plan.withheld)).keep_columns([WITHHELD])
        number = await blank_rows(few.valid, few.columns[WITHHELD])
        found.append((join_wires([one_bit(few.valid), number]), {WITHHELD: len(number)}))
    return found


def play_shapes(work: Coroutine[Any, Any, Any]) -> None:
    """Run circuits on shapes to their end.

    Raises:
        SessionError: they wait for somebody; shapes have nobody to wait for.
    """
    try:
        work.send(None)
    except StopIteration:
        return
    work.close()
    raise SessionError("circuits that wait", where="circuit", remedy="await nothing but the gates")


def _is_sorted(plan: SecurePlan) -> bool:
    """Whether the rows are groups in the order of keys that they show."""
    op = plan.root
    while isinstance(op, Filtered | Expanded):
        op = op.source
    shown = {column.name for column in plan.key_columns}
    return isinstance(op, GroupedRows) and all(key.name in shown for key in op.keys)


def read_wires(plan: SecurePlan, bits: Any, layout: Mapping[str, int]) -> dict[str, Any]:
    """The rows that count, by column, of what `release_wires` lets leave: as numbers and words.

    Args:
        plan: the plan.
        bits: ``(bits, rows)``.
        layout: the bits of each column.
    """
    here = np.flatnonzero(bits[0])
    numbers = {WITHHELD, *(one.name for one in plan.shown if one.number)}
    wholes = {one.name for one in plan.shown if one.code.kind == "whole"} - numbers
    found: dict[str, Any] = {}
    at = 1
    for name, width in layout.items():
        own = bits[at : at + width][:, here]
        at += width
        if name in numbers:
            found[name] = read_numbers(own, signed=True)
        elif name.endswith("?"):
            found[name] = own[0].astype(np.uint8)
        elif name in wholes:
            own[-1] ^= True
            found[f"{name}.0"] = read_numbers(own, signed=True).view(np.uint64) ^ np.uint64(1 << (WORD - 1))
        else:
            for w in range(width // WORD):
                found[f"{name}.{w}"] = read_numbers(own[width - (w + 1) * WORD : width - w * WORD])
    return found
