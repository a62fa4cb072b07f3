"""Joins of shared tables by equal keys, whose sizes follow from public numbers alone.

`attach_rows` is the ground of all of them: it sorts the keys of both tables together, rows of the first one before those of the second, copies what the first row
of each group has to the others, and undoes the sort. So each row of the second table has the columns of its match beside it, in the place where it lay; which one
that was, and whether there was one, stays hidden. Keys that are missing match nothing, as in SQL.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError

from ..shares.computation import SharedArray, concatenated
from ..shares.trio import SharedWords, join_words
from ..shares.word_circuits import (
    less_words,
    lift_bits,
    match_limbs,
    numbers_to_words,
    pack_fields,
    words_to_numbers,
)
from .rearrangement import Column
from .scans import copy_words, find_firsts, find_lasts, scan_sums
from .sorting import SortKey, find_order, find_order_of_fields
from .table import SharedTable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..shares.trio import Trio

__all__ = [
    "attach_rows",
    "attach_unique_rows",
    "cross_rows",
    "find_repeated_keys",
    "join_many",
    "join_unique",
    "semi_join",
]

_PLACE, _START, _END, _COUNT, _BEFORE = (f"\0{name}" for name in ("place", "start", "end", "count", "before"))
"""Columns on the way, whose names no caller has."""
MATCHED = "matched"


async def attach_rows(
    one: SharedTable,
    other: SharedTable,
    on: Sequence[tuple[SortKey, SortKey]],
    columns: Mapping[str, Column],
) -> tuple[dict[str, Column], SharedWords]:
    """Columns of ``one`` for each row of ``other`` that has its keys, zeros for the rest; and a bit that says which have a match.

    Of several rows of ``one`` with equal keys the first that counts is taken.

    Args:
        one: the table whose keys are looked up.
        other: the table whose rows look for them.
        on: pairs of keys, one of each table. Missing values match nothing; the direction of a key does not matter.
        columns: name -> column of ``one``.

    Raises:
        ConfigError: there is no key.
    """
    found, matched, _ = await attach_unique_rows(one, other, on, columns)
    return found, matched


async def attach_unique_rows(
    one: SharedTable,
    other: SharedTable,
    on: Sequence[tuple[SortKey, SortKey]],
    columns: Mapping[str, Column],
) -> tuple[dict[str, Column], SharedWords, SharedWords]:
    """What `attach_rows` returns, and bits in a hidden order, of which one is 1 for each row of ``one`` whose keys an earlier one has.

    So whoever believes that keys are unique finds out, for the price of one AND a row.
    """
    if not on:
        raise ConfigError("no key", where="join", remedy="name one pair of columns or more to join by")
    trio, n, m = one.trio, len(one), len(other)
    sides = [await usable_rows(table.valid, [pair[i] for pair in on]) for i, table in enumerate((one, other))]
    widths = [max(a.words.bits, b.words.bits) for a, b in on]
    keys = [join_words([a.words.widened(bits), b.words.widened(bits)]) for (a, b), bits in zip(on, widths, strict=True)]
    # Rows that match nothing lie apart, behind all others. Rows of `one` have the lower numbers, so they lead their groups.
    fields = [join_words(sides).inverted(), *keys]
    source = join_words([sides[0], _zeros(trio, m, 1)])
    order = await find_order_of_fields(fields)
    limbs = pack_fields(fields)
    longer = [lengthen(x, m) for x in columns.values()]
    source, *moved = await order.move([source, *limbs, *longer])  # type: ignore[assignment]
    firsts = await find_firsts([x for x in moved[: len(limbs)] if isinstance(x, SharedWords)])
    leads = await trio.conjoin(firsts, source)
    copied = await copy_leads(firsts, leads, moved[len(limbs) :])
    found, *back = await order.undo([*copied])
    rows = slice(n, n + m)
    if not isinstance(found, SharedWords):
        raise ConfigError("numbers in place of bits", where="join", remedy="join words")
    # A row of `one` that leads no group has the keys of the one before it.
    return {name: x[rows] for name, x in zip(columns, back, strict=True)}, found[rows], source ^ leads


async def find_repeated_keys(table: SharedTable, keys: Sequence[SortKey], most: int) -> SharedWords:
    """Bits in a hidden order, of which one is 1 if and only if more than ``most`` rows that count have one key; missing keys have none.

    Args:
        table: the table, of more than ``most`` rows.
        keys: its keys.
        most: how many rows may have one.
    """
    usable, words = await usable_rows(table.valid, keys), [key.words for key in keys]
    order = await find_order_of_fields([usable.inverted(), *words])
    limbs = pack_fields([usable, *words])
    moved = [x for x in await order.move([usable, *limbs]) if isinstance(x, SharedWords)]
    same = await match_limbs([x[most:] for x in moved[1:]], [x[: len(table) - most] for x in moved[1:]])
    return await table.trio.conjoin(same, moved[0][most:])


async def usable_rows(valid: SharedWords, keys: Sequence[SortKey]) -> SharedWords:
    """Rows that count and miss no key."""
    for key in keys:
        if key.null is not None:
            valid = await valid.trio.conjoin(valid, key.null.inverted())
    return valid


def _zeros(trio: Trio, n: int, bits: int) -> SharedWords:
    return trio.constant(np.zeros(n, dtype=np.uint64), bits)


def lengthen(x: Column, rows: int) -> Column:
    """A column with further rows of zeros."""
    if isinstance(x, SharedWords):
        return join_words([x, _zeros(x.trio, rows, x.bits)])
    return concatenated([x, x.by.constant(np.zeros(rows, dtype=np.int64))])


async def copy_leads(firsts: SharedWords, leads: SharedWords, columns: Sequence[Column]) -> list[Column]:
    """Whether a group's first row leads it, and its columns if it does, in all rows of the group."""
    trio = firsts.trio
    words = [x for x in columns if isinstance(x, SharedWords)]
    led = await trio.conjoin_all([(leads.spread(x.bits), x) for x in words]) if words else []
    matched, *copies = await copy_words(firsts, [leads, *led], cleared=True)
    numbers = [x for x in columns if isinstance(x, SharedArray)]
    sums = iter(await _copied_numbers(firsts, leads, numbers))
    rest = iter(copies)
    return [matched, *(next(rest) if isinstance(x, SharedWords) else next(sums) for x in columns)]


async def _copied_numbers(firsts: SharedWords, leads: SharedWords, columns: Sequence[SharedArray]) -> list[SharedArray]:
    """Numbers of rows that lead a group, in all of its rows: the sum, once all others are 0."""
    if not columns:
        return []
    by = firsts.trio.numbers
    gate = await lift_bits(leads, by)
    return await scan_sums(firsts, [await by.mul(gate, x) for x in columns])


def _pairs(
    one: SharedTable, other: SharedTable, on: Sequence[tuple[str | SortKey, str | SortKey]]
) -> list[tuple[SortKey, SortKey]]:
    def key(table: SharedTable, name: str | SortKey) -> SortKey:
        return SortKey(table.words(name)) if isinstance(name, str) else name

    return [(key(one, a), key(other, b)) for a, b in on]


def _joined(other: SharedTable, found: Mapping[str, Column]) -> dict[str, Column]:
    both = sorted(set(other.columns) & set(found))
    if both:
        raise ConfigError(f"columns {both} in both tables", where="join", remedy="rename them in one of the tables")
    return {**other.columns, **found}


async def cross_rows(left: SharedTable, right: SharedTable) -> SharedTable:
    """All pairs of rows, those of the first row of ``left`` first, for one AND a pair: which row of which table stands where is public.

    Raises:
        ConfigError: a column is in both tables.
    """
    _joined(right, left.columns)
    n, m = len(left), len(right)
    one, other = np.repeat(np.arange(n), m), np.tile(np.arange(m), n)
    columns = {**{name: x[one] for name, x in left.columns.items()}, **{name: x[other] for name, x in right.columns.items()}}  # fmt: skip
    return SharedTable(columns, await left.trio.conjoin(left.valid[one], right.valid[other]))


async def join_unique(
    one: SharedTable,
    other: SharedTable,
    on: Sequence[tuple[str | SortKey, str | SortKey]],
    columns: Sequence[str],
    *,
    outer: bool = False,
) -> SharedTable:
    """The rows of ``other`` with columns of the row of ``one`` that has their keys: as many rows as ``other`` has.

    Args:
        one: the table whose keys are unique among rows that count; if they are not, the first row is taken.
        other: the table with the foreign keys.
        on: pairs of columns, or of keys, of ``one`` and of ``other``.
        columns: columns of ``one`` to keep.
        outer: whether rows of ``other`` without a match count too; then a column ``matched`` says which have one, and the others have zeros.

    Raises:
        ConfigError: a column is missing or in both tables, or there is no key.
    """
    taken = {name: one[name] for name in columns}
    _joined(other, {**taken, **({MATCHED: one.valid} if outer else {})})
    found, matched = await attach_rows(one, other, _pairs(one, other, on), taken)
    if outer:
        return SharedTable(_joined(other, {**found, MATCHED: matched}), other.valid)
    return SharedTable(_joined(other, found), await other.trio.conjoin(other.valid, matched))


async def semi_join(
    other: SharedTable, one: SharedTable, on: Sequence[tuple[str | SortKey, str | SortKey]], *, anti: bool = False
) -> SharedTable:
    """The rows of ``other`` whose keys ``one`` has (with ``anti``, has not), however often.

    Args:
        other: the table whose rows stay.
        one: the table whose keys are looked up.
        on: pairs of columns, or of keys, of ``other`` and of ``one``.
        anti: NOT EXISTS in place of EXISTS: a row whose key is missing stays.
    """
    _, matched = await attach_rows(one, other, [(b, a) for a, b in _pairs(other, one, on)], {})
    return await other.filter_rows(matched.inverted() if anti else matched)


async def join_many(
    left: SharedTable,
    right: SharedTable,
    on: Sequence[tuple[str | SortKey, str | SortKey]],
    *,
    bound: int | Callable[[SharedWords], Awaitable[int]],
    outer: bool = False,
) -> tuple[SharedTable, SharedWords]:
    """All pairs of rows with equal keys, in a table of ``bound`` rows (Krastnikov, Kerschbaum, Stebila 2020).

    Three lookups: each row of ``right`` learns where its matches begin among the sorted rows of ``left`` and how many there are; each place of the result learns whose
    copy it is; and each copy learns its match.

    Args:
        left: one table.
        right: the other one.
        on: pairs of columns, or of keys, of both.
        bound: rows of the result, which everyone knows; or what says them for the number of pairs, by opening it: then the result has no row more, and everyone knows how many pairs there are.
        outer: whether rows of ``right`` without a match stay as one row; then a column ``matched`` says which have one, and the others have zeros.

    Returns:
        The result, and one bit: whether there were more pairs than the bound. Open it first; if it is 1, the result lacks rows.

    Raises:
        ConfigError: the bound is not 1 to ``2^31``, a column is in both tables, or there is no key.
    """
    if isinstance(bound, int) and not 1 <= bound <= 1 << 31:
        raise ConfigError(f"bound={bound}", where="join_many", remedy="use 1 to 2^31 rows")
    _joined(right, {**left.columns, **({MATCHED: left.valid} if outer else {})})
    trio, pairs = left.trio, _pairs(left, right, on)
    ordered, spans = await _spans(left, [pair[0] for pair in pairs])
    found, matched = await attach_rows(
        ordered, right, [(spans.keys[i], b) for i, (_, b) in enumerate(pairs)], spans.columns
    )
    counts = _number(found[_END]) - _number(found[_START])
    if outer:
        alone = await trio.conjoin(right.valid, matched.inverted())
        counts = counts + await lift_bits(alone, trio.numbers)
    expanded, total, rows_made = await _expanded(
        right.with_columns({_START: found[_START], MATCHED: matched}), counts, bound
    )
    place = _number(expanded[_START]) + _number(expanded[_PLACE])
    slots = expanded.with_columns({_PLACE: (await numbers_to_words(place, trio)).widened(32)})
    rows = trio.constant(np.arange(len(ordered)), 32)
    looking = await slots.filter_rows(slots.words(MATCHED))
    taken, _ = await attach_rows(
        ordered, looking, [(SortKey(rows), SortKey(slots.words(_PLACE)))], dict(ordered.columns)
    )
    columns = {name: slots[name] for name in right.columns}
    made = {**columns, **taken, **({MATCHED: slots[MATCHED]} if outer else {})}
    overflow = await less_words(trio.constant(np.array([rows_made], dtype=np.uint64), 64), total)
    return SharedTable(made, slots.valid), overflow


class _Spans:
    """The keys of sorted rows, and the columns that a lookup of a group finds: where it begins, and behind it ends."""

    def __init__(self, keys: list[SortKey], columns: dict[str, Column]) -> None:
        self.keys, self.columns = keys, columns


async def _spans(table: SharedTable, keys: Sequence[SortKey]) -> tuple[SharedTable, _Spans]:
    """A table sorted by its keys, rows that match nothing last, and each row's group as a span of places."""
    trio, n = table.trio, len(table)
    usable = await usable_rows(table.valid, keys)
    plain = [SortKey(key.words) for key in keys]
    order = await find_order([SortKey(usable, descending=True), *plain])
    limbs = pack_fields([usable, *(key.words for key in plain)])
    names = list(table.columns)
    moved = await order.move([usable, *(key.words for key in plain), *limbs, *(table[name] for name in names)])
    words = [x for x in moved[: 1 + len(plain) + len(limbs)] if isinstance(x, SharedWords)]
    firsts = await find_firsts(words[1 + len(plain) :])
    # Seen from below, a group's last row is its first one.
    places = trio.constant(np.arange(1, n + 1)[::-1].copy(), 32)
    (ends,) = await copy_words(find_lasts(firsts)[::-1], [places])
    by = trio.numbers
    end = await words_to_numbers(ends[::-1])
    ordered = SharedTable(dict(zip(names, moved[len(words) :], strict=True)), words[0])
    start = by.constant(np.arange(n))
    return ordered, _Spans([SortKey(x) for x in words[1 : 1 + len(plain)]], {_START: start, _END: end})


def _number(x: Column) -> SharedArray:
    if isinstance(x, SharedWords):
        raise ConfigError("words in place of numbers", where="join", remedy="use words_to_numbers")
    return x


async def _expanded(table: SharedTable, counts: SharedArray, limit: int | Callable[[SharedWords], Awaitable[int]]) -> tuple[SharedTable, SharedWords, int]:  # fmt: skip
    """Each row as often as its count says, one after the other, in a table of so many rows as the limit says; the sum of all counts, and the limit.

    The column `_PLACE` has the number of the copy. The rows' first places ascend with them, so the copy in a place belongs to the last row that begins at or before it.
    """
    trio, by, m = table.trio, table.trio.numbers, len(table)
    sums = SharedArray(by, tuple(np.cumsum(part, dtype=np.uint64) for part in counts.parts))
    before = sums - counts
    both = await numbers_to_words(concatenated([before, sums[m - 1 :]]), trio)
    begins, total = both[:m].widened(32), both[m:]
    bound = limit if isinstance(limit, int) else await limit(total)
    slots = trio.constant(np.arange(bound), 32)
    order = await find_order([SortKey(join_words([begins, slots]))])
    names = list(table.columns)
    columns = [lengthen(x, bound) for x in (*(table[name] for name in names), before)]
    rows = join_words([trio.constant(np.ones(m, dtype=np.uint8), 1), _zeros(trio, bound, 1)])
    firsts, *moved = await order.move([rows, *columns])
    if not isinstance(firsts, SharedWords):
        raise ConfigError("numbers in place of bits", where="join", remedy="use words of one bit")
    copied = await copy_leads(firsts, firsts, moved)
    back = [x[m:] for x in await order.undo(copied[1:])]
    found = dict(zip([*names, _BEFORE], back, strict=True))
    place = by.constant(np.arange(bound)) - _number(found.pop(_BEFORE))
    wide = SharedWords(trio, (np.repeat(total.parts[0], bound), np.repeat(total.parts[1], bound)), 64)
    counts_too = await less_words(slots.widened(64), wide)
    return SharedTable({**found, _PLACE: place}, counts_too), total, bound
