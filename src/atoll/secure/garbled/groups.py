"""GROUP BY over the rows of two owners: each groups its own rows, and what both have of a group is joined under a garbled circuit.

This is how a plan uses it, at both roles alike; ``rows`` are this party's own:

    async with await begin_garbling(island.secret, peers, me, garbler="north", evaluator="south") as gates:
        found = await merge_sorted_groups(
            gates, rows, owners=("north", "south"), capacity={"north": 1000, "south": 800}, key="ward", key_bits=16,
            columns={"cost": OwnerColumn("sum", "cost", 48), "least": OwnerColumn("min", "cost", 32)}, min_count=5, to="north",
        )

``await GateCounter.measure(lambda gates: merge_sorted_groups(gates, None, ...), ("north", "south"))`` and `garbling_contract` say before what it costs and what each learns.

A group has at most one row at each owner once that owner has grouped its own, so after the merge of SMCQL (Bater et al. 2017) it is at most two neighbours: one comparison and one sum a row take the
place of a scan. A row of an owner that does not exist has the highest key. Groups below ``min_count`` do not count, and those that do move to the front, so that a group's place tells nothing.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from atoll.core.errors import ConfigError, DataError

from .circuits import (
    add_wires,
    all_wires,
    blank_rows,
    choose_wires,
    compact_rows,
    equal_wires,
    less_wires,
    merge_rows,
    sum_rows,
)
from .wires import Gates, Wires, join_wires, number_bits, read_numbers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["OwnerColumn", "MergedGroups", "merge_sorted_groups"]

_COUNT_BITS = 40
"""Bits of a group's number of rows."""


@dataclass(frozen=True)
class OwnerColumn:
    """A column of the result.

    Attributes:
        how: ``sum``, ``min`` or ``max``. Each group's number of rows is there anyway.
        column: the column of the owners' rows.
        bits: of the result, 2 to 63, in two's complement.
    """

    how: Literal["sum", "min", "max"]
    column: str
    bits: int


@dataclass(frozen=True)
class MergedGroups:
    """Groups in the order of their keys.

    Attributes:
        keys: a key a group.
        counts: its number of rows at both owners.
        columns: name -> a value a group.
        withheld: number of groups with fewer rows than ``min_count``.
    """

    keys: NDArray[np.uint64]
    counts: NDArray[np.uint64]
    columns: Mapping[str, NDArray[np.int64]]
    withheld: int


async def merge_sorted_groups(
    gates: Gates,
    rows: Mapping[str, Any] | None,
    *,
    owners: Sequence[str],
    capacity: Mapping[str, int],
    key: str,
    key_bits: int,
    columns: Mapping[str, OwnerColumn],
    min_count: int = 1,
    to: str | None = None,
) -> MergedGroups | None:
    """Group the rows of two owners; the other one learns the capacity, and of the groups what is shown to it.

    Args:
        gates: this party's side of a computation of both owners.
        rows: this party's own rows by column: whole numbers, in any order. None where shapes are counted.
        owners: both roles, in an order that both agree on.
        capacity: owner -> the most groups that it may have; everyone knows it, and it hides how many there are.
        key: the column whose values are the groups, unsigned numbers.
        key_bits: of a key, 1 to 63.
        columns: name in the result -> what it is.
        min_count: rows that a group must have at both owners together to be shown.
        to: the role that learns the groups; None for both.

    Returns:
        The groups, or None at a role that does not learn them.

    Raises:
        ConfigError: there are not two owners with a capacity each, or a width is out of range.
        DataError: this party's rows lack a column, hold other than whole numbers of these widths, or have more groups than the capacity.
        LetterError: a message was altered.
    """
    _require_plan(owners, capacity, key_bits, columns, min_count)
    widths = [key_bits + 1, _COUNT_BITS, *(one.bits for one in columns.values())]
    mine, tables = getattr(gates, "me", None), []
    for owner in owners:
        own = _group_own(rows, key, key_bits, columns, capacity[owner]) if owner == mine and rows is not None else None
        shared = [await gates.share(None if own is None else own[i], owner=owner, bits=bits, rows=capacity[owner]) for i, bits in enumerate(widths)]  # fmt: skip
        tables.append(join_wires(shared))
    merged = await merge_rows(tables[0], tables[1], widths[0])
    ends = np.cumsum([0, *widths])
    parts = [merged[a:b] for a, b in itertools.pairwise(ends)]
    keys, hows = parts[0], ["sum", *(one.how for one in columns.values())]
    again = await equal_wires(keys[:, 1:], keys[:, :-1])  # a row of the group of the row before it
    joined = [await _join_neighbours(again, part, how) for part, how in zip(parts[1:], hows, strict=True)]
    exists = ~keys[-1]
    last = await _conjoin(exists, join_wires([~again, gates.constant(np.ones(1, dtype=bool))]))
    shown, withheld = last, None
    if min_count > 1:
        least = gates.constant(np.broadcast_to(number_bits(np.array([min_count]), _COUNT_BITS), joined[0].shape))
        few = await less_wires(joined[0], least)
        shown = last ^ (hidden := await _conjoin(last, few))
        withheld = await sum_rows(hidden.reshape(1, -1))
    counts, records = await compact_rows(shown, join_wires([keys[:-1], *joined]))
    told = [await gates.reveal(counts.reshape(1, -1), to)]
    for a, b in itertools.pairwise(ends - 1):  # a key is shown without the bit that says whether it exists
        told.append(await gates.reveal(records[max(a, 0) : b], to))
    number = None if withheld is None else await gates.reveal(withheld, to)
    if told[0] is None:
        return None
    return _read(told, columns, 0 if number is None else int(number[0]))


def _read(told: list[Any], columns: Mapping[str, OwnerColumn], withheld: int) -> MergedGroups:
    here = int(told[0].sum())
    values = {
        name: read_numbers(number_bits(column[:here], one.bits), signed=True)
        for (name, one), column in zip(columns.items(), told[3:], strict=True)
    }
    return MergedGroups(told[1][:here], told[2][:here], values, withheld)


async def _join_neighbours(again: Wires, x: Wires, how: str) -> Wires:
    """The sum, the least or the most of a row and the one before it, where both are of one group."""
    before, here = x[:, :-1], x[:, 1:]
    if how == "sum":
        made = await add_wires(here, await blank_rows(again, before))
    else:
        wins = await (less_wires(before, here, signed=True) if how == "min" else less_wires(here, before, signed=True))
        made = await choose_wires(await _conjoin(again, wins), before, here)
    return join_wires([x[:, :1], made], axis=1)


async def _conjoin(x: Wires, y: Wires) -> Wires:
    return await all_wires(join_wires([x.reshape(1, -1), y.reshape(1, -1)]))


def _require_plan(owners: Sequence[str], capacity: Mapping[str, int], key_bits: int, columns: Mapping[str, OwnerColumn], min_count: int) -> None:  # fmt: skip
    where = "merge_sorted_groups"
    if len(owners) != 2 or any(capacity.get(owner, 0) < 1 for owner in owners):
        raise ConfigError(f"owners {list(owners)} with capacity {dict(capacity)}", where=where, remedy="name two owners, and a capacity of at least one group each")  # fmt: skip
    if not 1 <= key_bits <= 63:
        raise ConfigError(f"key_bits={key_bits}", where=where, remedy="use 1 to 63 bits")
    if not 1 <= min_count < 1 << _COUNT_BITS:
        raise ConfigError(f"min_count={min_count}", where=where, remedy="use 1 or more")
    for name, one in columns.items():
        if one.how not in ("sum", "min", "max") or not 2 <= one.bits <= 63:
            raise ConfigError(f"column {name!r} is {one}", where=where, remedy="use 'sum', 'min' or 'max', and 2 to 63 bits")  # fmt: skip


def _group_own(rows: Mapping[str, Any], key: str, key_bits: int, columns: Mapping[str, OwnerColumn], capacity: int) -> list[NDArray[np.uint64]]:  # fmt: skip
    """An owner's groups in the order of their keys, filled up with rows that do not exist: keys, counts and columns as unsigned numbers."""
    keys, places, counts = np.unique(_read_column(rows, key), return_inverse=True, return_counts=True)
    if len(keys) and (int(keys.min()) < 0 or int(keys.max()) >= 1 << key_bits):
        raise DataError(f"a key that does not fit {key_bits} bits in column {key!r}", where="merge_sorted_groups", remedy="use more key_bits, or number the groups from 0")  # fmt: skip
    if len(keys) > capacity:
        raise DataError(f"{len(keys)} groups at this party", where="merge_sorted_groups", remedy=f"raise its capacity, which is {capacity}")  # fmt: skip
    made = [keys.astype(np.uint64), counts.astype(np.uint64)]
    for name, one in columns.items():
        values, joins = _read_column(rows, one.column).astype(np.int64), {"sum": np.add, "min": np.minimum, "max": np.maximum}  # fmt: skip
        if len(values) != len(places):
            raise DataError(f"{len(values)} values in column {one.column!r} and {len(places)} keys", where="merge_sorted_groups", remedy="give as many of both")  # fmt: skip
        start = {"sum": 0, "min": np.iinfo(np.int64).max, "max": np.iinfo(np.int64).min}[one.how]
        joined = np.full(len(keys), start, dtype=np.int64)
        joins[one.how].at(joined, places, values)
        # Both owners' parts add up below the width, so neither the sums here nor the joint ones wrap around.
        size = np.abs(values.astype(np.float64)).sum() if one.how == "sum" else np.abs(values.astype(np.float64)).max(initial=0.0)  # fmt: skip
        if size >= 2.0 ** (one.bits - 2):
            raise DataError(f"column {one.column!r} does not fit the {one.bits} bits of {name!r}", where="merge_sorted_groups", remedy="use more bits, or a larger unit")  # fmt: skip
        made.append(joined.view(np.uint64) & np.uint64((1 << one.bits) - 1))
    absent = np.uint64(1 << key_bits)
    fill = [np.full(capacity - len(keys), absent if i == 0 else 0, dtype=np.uint64) for i in range(len(made))]
    return [np.concatenate(pair) for pair in zip(made, fill, strict=True)]


def _read_column(rows: Mapping[str, Any], name: str) -> NDArray[Any]:
    if name not in rows:
        raise DataError(
            f"there is no column {name!r}", where="merge_sorted_groups", remedy=f"choose from {sorted(rows)}"
        )
    made = np.asarray(rows[name])
    if made.ndim != 1 or made.dtype.kind not in "iub":
        raise DataError(f"column {name!r} of type {made.dtype} and shape {made.shape}", where="merge_sorted_groups", remedy="give one row of whole numbers; encode others in fixed point")  # fmt: skip
    if made.dtype.kind == "u" and made.size and int(made.max()) >= 1 << 63:
        raise DataError(
            f"a number of 64 bits in column {name!r}", where="merge_sorted_groups", remedy="use a larger unit"
        )
    return made
