"""Groups: rows of equal keys as one row each, in a table of as many rows as before.

Rows are sorted by their keys, values are carried along each group, and the last row of a group stays. So the result has a row for each row of its input, of which
one a group counts; how many that are stays hidden.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from atoll.core.errors import ConfigError

from ..shares.computation import SharedArray
from ..shares.trio import SharedWords
from ..shares.word_circuits import choose_words, lift_bits, pack_fields, words_to_numbers
from .rearrangement import Column, Rearrangement
from .scans import copy_words, find_firsts, find_lasts, scan_least, scan_sums
from .sorting import SortKey, find_order_of_fields, key_fields
from .table import SharedTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["RowAggregate", "WindowAggregate", "distinct_rows", "group_in_order", "group_rows", "mark_firsts", "table_keys", "total_rows", "window_columns", "window_rows"]  # fmt: skip

Operation = Literal["count", "sum", "min", "max"]


@dataclass(frozen=True)
class RowAggregate:
    """What becomes of a group's rows. An average is a sum and a count, divided after they are opened.

    Attributes:
        operation: ``count``, ``sum``, ``min`` or ``max``. Counts and sums are numbers modulo ``2^64``; the least and the largest are words of the column's length.
        column: whose values; a count has none. The least and the largest are of words.
        where: a column of one bit; a row takes part where it is 1. A least word of no row is the largest word, a largest one 0: count the rows to tell.
    """

    operation: Operation
    column: str | None = None
    where: str | None = None

    def __post_init__(self) -> None:
        if self.operation not in get_args(Operation):
            shown = ", ".join(get_args(Operation))
            raise ConfigError(f"operation={self.operation!r}", where="RowAggregate", remedy=f"use one of {shown}")
        if (self.column is None) != (self.operation == "count"):
            raise ConfigError(
                f"{self.operation} of column {self.column!r}",
                where="RowAggregate",
                remedy="name a column, or for a count none: its rows are chosen with where=",
            )


def table_keys(table: SharedTable, names: Sequence[str | SortKey]) -> list[SortKey]:
    """Columns as ascending keys; what is a key already stays."""
    return [SortKey(table.words(name)) if isinstance(name, str) else name for name in names]


async def group_rows(
    table: SharedTable,
    keys: Sequence[str | SortKey],
    aggregates: Mapping[str, RowAggregate],
    *,
    keep: Sequence[str] = (),
) -> SharedTable:
    """One row that counts for each group of equal keys, in a table of as many rows. Missing keys are one group, as in SQL.

    Args:
        table: the table.
        keys: columns of words, or keys of the table's rows.
        aggregates: name -> what the new column has.
        keep: further columns, of which the group's last row stays: those of the keys, for example, are kept already.

    Raises:
        ConfigError: a column is missing or of the wrong kind, or there is no key: `total_rows` is for all rows together.
    """
    if not keys:
        raise ConfigError("no key", where="group_rows", remedy="name one column or more, or use total_rows")
    kept = list(dict.fromkeys([*(name for name in keys if isinstance(name, str)), *keep]))
    fields = [table.valid.inverted(), *(await key_fields(table_keys(table, keys)))]
    order = await find_order_of_fields(fields)
    limbs, inputs = pack_fields(fields), await _inputs(table, aggregates)
    columns: list[Column] = [table.valid, *limbs, *(table[name] for name in kept), *inputs.values()]
    valid, *moved = await order.move(columns)
    firsts = await find_firsts(_all_words(moved[: len(limbs)]))
    begin = len(limbs) + len(kept)
    made = await _scanned(firsts, aggregates, dict(zip(inputs, moved[begin:], strict=True)))
    stays = await table.trio.conjoin(_all_words([valid])[0], find_lasts(firsts))
    return SharedTable({**dict(zip(kept, moved[len(limbs) : begin], strict=True)), **made}, stays)


async def group_in_order(table: SharedTable, order: Rearrangement, firsts: SharedWords, aggregates: Mapping[str, RowAggregate], *, keep: Sequence[str] = ()) -> SharedTable:  # fmt: skip
    """What `group_rows` gives, where it is known how rows lie in groups.

    Args:
        table: the table.
        order: an order in which the rows of each group follow each other, and those that count are no group's with others.
        firsts: where groups begin in this order.
        aggregates: name -> what the new column has.
        keep: columns of which the group's last row stays.
    """
    kept, inputs = list(dict.fromkeys(keep)), await _inputs(table, aggregates)
    valid, *moved = await order.move([table.valid, *(table[name] for name in kept), *inputs.values()])
    made = await _scanned(firsts, aggregates, dict(zip(inputs, moved[len(kept) :], strict=True)))
    stays = await table.trio.conjoin(_all_words([valid])[0], find_lasts(firsts))
    return SharedTable({**dict(zip(kept, moved[: len(kept)], strict=True)), **made}, stays)


async def window_rows(
    table: SharedTable,
    partition: Sequence[str | SortKey],
    order: Sequence[str | SortKey],
    aggregates: Mapping[str, RowAggregate],
) -> SharedTable:
    """Running aggregates: over the rows of a partition up to each row, this one included, as SQL's ``ROWS UNBOUNDED PRECEDING``. A count is the row's number.

    Rows of equal keys follow each other as they lie in the table. The rows stay where they are; what a row has that does not count means nothing.

    Args:
        table: the table.
        partition: columns of words, or keys, whose equal values make a partition; none for one of all rows.
        order: by what the rows of a partition are ordered.
        aggregates: name -> what the new column has.

    Raises:
        ConfigError: a column is missing or of the wrong kind, or there is no key to order by.
    """
    fields = [table.valid.inverted()]
    if partition:
        fields += await key_fields(table_keys(table, partition))
    limbs, inputs = pack_fields(fields), await _inputs(table, aggregates)
    by = await find_order_of_fields([*fields, *(await key_fields(table_keys(table, order)))])
    moved = await by.move([*limbs, *inputs.values()])
    firsts = await find_firsts(_all_words(moved[: len(limbs)]))
    made = await _scanned(firsts, aggregates, dict(zip(inputs, moved[len(limbs) :], strict=True)))
    return table.with_columns(dict(zip(made, await by.undo(list(made.values())), strict=True)))


@dataclass(frozen=True)
class WindowAggregate:
    """A column of `window_columns`.

    Attributes:
        operation: ``row_number``, ``rank``, ``dense_rank``, ``count``, ``sum`` (numbers), ``min``, ``max`` (words) or ``lag`` (words of the row ``offset`` above; below, if it is negative).
        column: whose values; numbers, of rows that take no part 0.
        where: of ``min`` and ``max``: a column of one bit that says which rows take part.
        frame: ``rows``: up to this row; ``peers``: up to the last row that is equal in the order; ``whole``: the partition.
        offset: see above.
    """

    operation: Literal["row_number", "rank", "dense_rank", "count", "sum", "min", "max", "lag"]
    column: str | None = None
    where: str | None = None
    frame: Literal["rows", "peers", "whole"] = "whole"
    offset: int = 1


async def window_columns(
    table: SharedTable,
    partition: Sequence[SortKey],
    order: Sequence[SortKey],
    columns: Mapping[str, WindowAggregate],
) -> SharedTable:
    """Window functions of SQL beside the rows, which stay where they are; what a row has that does not count means nothing.

    Args:
        table: the table.
        partition: whose equal values make a partition; none for one of all rows.
        order: by what the rows of a partition are ordered; none for any order, in which all rows are equal.
        columns: name -> what the new column has. A ``lag`` of no row is 0.

    Raises:
        ConfigError: a column is missing or of the wrong kind.
    """
    trio = table.trio
    fields = [table.valid.inverted(), *(await key_fields(partition) if partition else [])]
    ordered = [*fields, *(await key_fields(order) if order else [])]
    inputs: dict[str, Column] = {}
    for name, one in columns.items():
        if one.operation in ("min", "max"):
            gate = table.valid if one.where is None else await trio.conjoin(table.valid, table.words(one.where))
            inputs[name] = await _bounded(table.words(one.column or ""), gate, "min" if one.operation == "min" else "max")  # fmt: skip
        elif one.column is not None:
            inputs[name] = table[one.column]
    by = await find_order_of_fields(ordered)
    limbs, peer_limbs = pack_fields(fields), pack_fields(ordered)
    moved = await by.move([*limbs, *peer_limbs, *inputs.values()])
    firsts = await find_firsts(_all_words(moved[: len(limbs)]))
    peers = await find_firsts(_all_words(moved[len(limbs) : len(limbs) + len(peer_limbs)]))
    values = dict(zip(inputs, moved[len(limbs) + len(peer_limbs) :], strict=True))
    made = {name: await _windowed(one, values.get(name), firsts, peers) for name, one in columns.items()}
    return table.with_columns(dict(zip(made, await by.undo(list(made.values())), strict=True)))


async def _windowed(one: WindowAggregate, values: Column | None, firsts: SharedWords, peers: SharedWords) -> Column:
    """One window function over sorted rows."""
    by, n = firsts.trio.numbers, len(firsts)
    if one.operation == "lag" and isinstance(values, SharedWords):
        return await _lagged(values, firsts, one.offset)
    if one.operation in ("row_number", "rank", "dense_rank"):
        ones = await lift_bits(peers, by) if one.operation == "dense_rank" else by.constant(np.ones(n, dtype=np.int64))
        (found,) = await scan_sums(firsts, [ones])
        return found if one.operation != "rank" else (await _copied_numbers(peers, found))
    if isinstance(values, SharedWords):
        (least,) = await scan_least(firsts, [values])
        if one.frame != "rows":
            lasts = find_lasts(firsts if one.frame == "whole" else peers)
            (back,) = await copy_words(lasts[::-1], [least[::-1]])
            least = back[::-1]
        return least if one.operation == "min" else least.inverted()
    sums = by.constant(np.ones(n, dtype=np.int64)) if values is None else values
    (found,) = await scan_sums(firsts, [sums])
    if one.frame == "rows":
        return found
    lasts = find_lasts(firsts if one.frame == "whole" else peers)
    return (await _copied_numbers(lasts[::-1], found[::-1]))[::-1]


async def _copied_numbers(firsts: SharedWords, x: SharedArray) -> SharedArray:
    """Each row's number as that of the first row of its segment."""
    by = firsts.trio.numbers
    (found,) = await scan_sums(firsts, [await by.mul(await lift_bits(firsts, by), x)])
    return found


async def _lagged(x: SharedWords, firsts: SharedWords, offset: int) -> SharedWords:
    """Words of the row some places above in the segment; below, if the offset is negative."""
    if offset < 0:
        return (await _lagged(x[::-1], find_lasts(firsts)[::-1], -offset))[::-1]
    inside = firsts.inverted()
    for _ in range(offset):
        x = x.moved_down()
    for _ in range(offset - 1):
        inside = await firsts.trio.conjoin(inside.moved_down(), firsts.inverted())
    return x if offset == 0 else await firsts.trio.conjoin(inside.spread(x.bits), x)


async def mark_firsts(
    table: SharedTable, partition: Sequence[SortKey], order: Sequence[SortKey] = (), *, where: SharedWords | None = None
) -> SharedWords:
    """A bit a row: whether it is the first of its partition, of the rows that count and of which ``where`` is 1.

    Args:
        table: the table.
        partition: whose equal values make a partition; none for one of all rows.
        order: which row is the first; by default any.
        where: bits of rows that take part.
    """
    gate = table.valid if where is None else await table.trio.conjoin(table.valid, where)
    fields = [gate.inverted(), *(await key_fields(partition) if partition else [])]
    by = await find_order_of_fields([*fields, *(await key_fields(order) if order else [])])
    moved = _all_words(await by.move([*pack_fields(fields), gate]))
    firsts = await table.trio.conjoin(await find_firsts(moved[:-1]), moved[-1])
    return _all_words(await by.undo([firsts]))[0]


async def distinct_rows(table: SharedTable, keys: Sequence[str | SortKey], *, keep: Sequence[str] = ()) -> SharedTable:
    """One row that counts for each value of the keys: `group_rows` without aggregates."""
    return await group_rows(table, keys, {}, keep=keep)


async def total_rows(table: SharedTable, aggregates: Mapping[str, RowAggregate]) -> SharedTable:
    """A table of one row, which counts: the aggregates of all rows that count, none if there are none."""
    trio, n = table.trio, len(table)
    inputs = await _inputs(table, aggregates)
    made: dict[str, Column] = {name: x.reshape(1, n).sum(1) for name, x in inputs.items() if isinstance(x, SharedArray)}
    firsts = trio.constant(np.arange(n) == 0, 1)
    least = {name: aggregate for name, aggregate in aggregates.items() if name not in made}
    for name, x in (await _scanned(firsts, least, {name: inputs[name] for name in least})).items():
        made[name] = x[n - 1 :]
    return SharedTable({name: made[name] for name in aggregates}, trio.constant(np.ones(1, dtype=np.uint8), 1))


def _all_words(columns: Sequence[Column]) -> list[SharedWords]:
    return [x for x in columns if isinstance(x, SharedWords)]


async def _inputs(table: SharedTable, aggregates: Mapping[str, RowAggregate]) -> dict[str, Column]:
    """What each aggregate runs over: values of rows that take part, and of others what changes nothing."""
    gates: dict[str | None, SharedWords] = {None: table.valid}
    chosen = list(dict.fromkeys(one.where for one in aggregates.values() if one.where is not None))
    if chosen:
        made = await table.trio.conjoin_all([(table.valid, table.words(name)) for name in chosen])
        gates.update(zip(chosen, made, strict=True))
    lifted = {where: await lift_bits(gates[where], table.trio.numbers) for where in _lifted(aggregates)}
    found: dict[str, Column] = {}
    for name, one in aggregates.items():
        if one.operation == "count":
            found[name] = lifted[one.where]
        elif one.operation == "sum":
            x = table[one.column or ""]
            numbers = await words_to_numbers(x) if isinstance(x, SharedWords) else x
            found[name] = await table.trio.numbers.mul(lifted[one.where], numbers)
        else:
            found[name] = await _bounded(table.words(one.column or ""), gates[one.where], one.operation)
    return found


def _lifted(aggregates: Mapping[str, RowAggregate]) -> list[str | None]:
    return list(dict.fromkeys(one.where for one in aggregates.values() if one.operation in ("count", "sum")))


async def _bounded(x: SharedWords, gate: SharedWords, operation: Operation) -> SharedWords:
    """Words whose least one is looked for, with the largest word where a row takes no part; the largest is the least of inverted words."""
    nothing = x.trio.constant(np.full(x.shape, (1 << x.bits) - 1, dtype=np.uint64), x.bits)
    (found,) = await choose_words(gate, [(x if operation == "min" else x.inverted(), nothing)])
    return found


async def _scanned(
    firsts: SharedWords, aggregates: Mapping[str, RowAggregate], inputs: Mapping[str, Column]
) -> dict[str, Column]:
    """Each group's aggregates, in its last row."""
    numbers = {name: x for name, x in inputs.items() if isinstance(x, SharedArray)}
    words = {name: x for name, x in inputs.items() if isinstance(x, SharedWords)}
    found: dict[str, Column] = dict(zip(numbers, await scan_sums(firsts, list(numbers.values())), strict=True))
    for name, least in zip(words, await scan_least(firsts, list(words.values())), strict=True):
        found[name] = least if aggregates[name].operation == "min" else least.inverted()
    return {name: found[name] for name in inputs}
