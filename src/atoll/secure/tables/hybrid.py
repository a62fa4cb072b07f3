"""Joins and groups whose keys one of the three parties reads, in an order that no party knows (Volgushev et al. 2019, section 5.3): in the clear, matching and sorting cost nothing.

A *reader* is a party that all owners of the keys trust with them, or all three, where keys are public. Rows are shuffled, the reader gets their keys and finds which rows belong together, and what it found
goes back so that the other two see nothing in it: bits as shares, and orders through two passes of which each of them knows one (`KeyReader.arrange`). So the reader learns the keys of rows that count, without
their owners; the other parties learn the number of rows of a table, and of a join of many with many the number of pairs, up to a power of two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from atoll.core.errors import ConfigError, DataError

from ..shares.computation import SharedArray
from ..shares.trio import Array, SharedWords, Trio, pack_bits, unpack_bits
from .grouping import RowAggregate, group_in_order, table_keys
from .joins import copy_leads, lengthen, usable_rows
from .rearrangement import Column, Pass, Rearrangement
from .sorting import SortKey, key_fields
from .table import SharedTable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["KeyReader", "attach_rows_by_reader", "group_rows_by_reader", "join_many_by_reader"]

_NONE = -1
"""No row."""


@dataclass(frozen=True)
class KeyReader:
    """Who reads keys.

    Attributes:
        trio: the three parties.
        place: the place of one of them; ``None`` for all three, where keys are public.

    Raises:
        ConfigError: there is no such place.
    """

    trio: Trio
    place: int | None = None

    def __post_init__(self) -> None:
        if self.place not in (None, 0, 1, 2):
            raise ConfigError(f"place={self.place!r}", where="KeyReader", remedy="use 0, 1 or 2, or None for all three")

    @property
    def reads(self) -> bool:
        """Whether this party is a reader."""
        return self.place is None or self.place == self.trio.place

    def shuffle(self, n: int) -> Rearrangement:
        """An order that no party knows; for public keys the order as it is."""
        return Rearrangement(self.trio, n) if self.place is None else Rearrangement.draw(self.trio, n)

    async def read(self, columns: Sequence[SharedWords]) -> list[Array]:
        """Words in the clear at a reader, in one message; at the others nothing."""
        trio = self.trio
        mine = np.concatenate([_packed(x.parts[0], x.bits) for x in columns])
        parties = trio.numbers.parties
        if self.place is None:
            missing = await trio.pass_on(mine, trio.numbers.after, trio.numbers.before)
        elif self.reads:
            missing = await trio.receive(trio.numbers.before, mine.shape, mine.dtype)
        else:
            if trio.numbers.after == parties[self.place]:
                await trio.numbers.peers.send(parties[self.place], mine)
            return []
        found, at = [], 0
        for x in columns:
            size = len(_packed(x.parts[0], x.bits))
            found.append(x.parts[0] ^ x.parts[1] ^ _unpacked(missing[at : at + size], x))
            at += size
        return found

    async def share(self, bits: Array | None, shape: tuple[int, ...]) -> SharedWords:
        """Bits that a reader has, as shared words of that shape."""
        if self.place is None:
            return self.trio.constant(bits, 1)
        return await self.trio.share(bits, owner=self.trio.numbers.parties[self.place], shape=shape, bits=1)

    async def announce_order(self, order: Array | None, n: int) -> Array:
        """An order of ``n`` rows that a reader shows to all. Of shuffled rows it says nothing."""
        if self.place is None and order is not None:
            return order
        source = self._source
        if self.reads and order is not None:
            await self._tell(order.astype(np.uint32))
            return order
        return await self.trio.receive_order(source, n)

    async def announce_rows(self, rows: int, usual: int, most: int) -> int:
        """A number of rows that a reader shows to all.

        Args:
            rows: the number, at a reader.
            usual: what a rehearsal takes in its place.
            most: the largest that the parties make.

        Raises:
            DataError: there are more.
        """
        if self.reads and rows > most:
            raise DataError(f"a join of {rows:,} rows, and parties make {most:,}", where="join", remedy="join by further columns, or filter the rows before")  # fmt: skip
        if self.place is not None and self.reads:
            await self._tell(np.array([rows], np.uint64))
        return self.trio.settled(rows, usual) if self.reads else await self.trio.receive_rows(self._source, usual, most)

    @property
    def _source(self) -> str:
        return self.trio.numbers.parties[self.place or 0]

    async def _tell(self, message: Array) -> None:
        for party in self.trio.numbers.parties:
            if party != self.trio.numbers.me:
                await self.trio.numbers.peers.send(party, message)

    async def arrange(self, order: Array | None, n: int) -> Rearrangement:
        """An order of ``n`` rows that a reader chooses: ``new[i] = old[order[i]]``.

        Two passes: in the first the reader and the party after it apply a uniform order that they draw in common. In the second the reader and the party before it apply what is left to do, which is uniform
        to that party, since it does not know the first.
        """
        trio = self.trio
        if self.place is None:
            return Rearrangement(trio, n, [np.arange(n) if order is None else order])
        before = (self.place + 2) % 3
        at = (trio.place - self.place) % 3
        if at == 0 and order is not None:
            first = trio.with_after.draw_order(n)
            undone = np.empty_like(first)
            undone[first] = np.arange(n)
            second = undone[order]
            await trio.numbers.peers.send(trio.numbers.parties[before], second.astype(np.uint32))
        elif at == 1:
            first, second = trio.with_before.draw_order(n), None
        else:
            first, second = None, await trio.receive_order(self._source, n)
        return Rearrangement(trio, n, [Pass(self.place, first), Pass(before, second)])

    async def gather(self, columns: Sequence[Column], rows: Array | None, m: int) -> tuple[SharedWords, list[Column]]:
        """``m`` rows, each a copy of one that a reader chooses, or zeros; and a bit that says which are copies.

        Args:
            columns: of the rows to choose from.
            rows: at a reader, the numbers of the rows, -1 for zeros.
            m: how many.
        """
        trio, n = self.trio, len(columns[0])
        if self.place is None and rows is not None:
            return trio.constant(rows >= 0, 1), [_taken(x, rows) for x in columns]
        whole = max(n, m)
        order, bits, back = None, None, None
        if rows is not None:
            order, bits, back = _plan_copies(rows, n, whole)
        moved = await (await self.arrange(order, whole)).move([lengthen(x, whole - n) for x in columns])
        both = await self.share(bits, (2, m))
        copied = await copy_leads(both[0], both[1], [x[:m] for x in moved])
        matched, *found = await (await self.arrange(back, m)).move(copied)
        if not isinstance(matched, SharedWords):
            raise ConfigError("numbers in place of bits", where="gather", remedy="use words of one bit")
        return matched, found


def _plan_copies(rows: Array, n: int, whole: int) -> tuple[Array, Array, Array]:
    """How rows are chosen: an order that puts each chosen row to the place where its copies begin, bits that say where copies begin and which of these have a row, and the order of the copies."""
    by = np.argsort(np.where(rows < 0, n, rows), kind="stable")
    ordered = rows[by]
    firsts = np.ones(len(rows), bool)
    firsts[1:] = ordered[1:] != ordered[:-1]
    leads = firsts & (ordered >= 0)
    order = np.full(whole, _NONE)
    order[: len(rows)][leads] = ordered[leads]
    rest = np.ones(whole, bool)
    rest[ordered[leads]] = False
    order[order < 0] = np.flatnonzero(rest)
    back = np.empty(len(rows), np.int64)
    back[by] = np.arange(len(rows))
    return order, np.stack([firsts, leads]).astype(np.uint8), back


def _taken(x: Column, rows: Array) -> Column:
    """A part's rows by their numbers, zeros for none: what all parties know costs no message."""
    parts = []
    for part in x.parts:
        made = part[np.maximum(rows, 0)]
        made[rows < 0] = 0
        parts.append(made)
    return x.with_parts(parts[0], parts[1]) if isinstance(x, SharedWords) else SharedArray(x.by, tuple(parts))


def _packed(part: Array, bits: int) -> Array:
    flat = np.ascontiguousarray(part).reshape(-1)
    return pack_bits(flat) if bits == 1 else flat.view(np.uint8)


def _unpacked(raw: Array, like: SharedWords) -> Array:
    flat = unpack_bits(raw, like.parts[0].size) if like.bits == 1 else raw.copy().view(like.parts[0].dtype)
    return np.asarray(flat.reshape(like.shape))


# ---------------------------------------------------------------- keys in the clear


async def _gated(table: SharedTable, keys: Sequence[SortKey], widths: Sequence[int]) -> list[SharedWords]:
    """The bits of rows that count and miss no key, and the keys, which are 0 in all others."""
    usable = await usable_rows(table.valid, keys)
    pairs = [(usable.spread(bits), key.words.widened(bits)) for key, bits in zip(keys, widths, strict=True)]
    return [usable, *await table.trio.conjoin_all(pairs)]


def _number_keys(columns: Sequence[Array]) -> Array:
    """Each row's tuple of keys as a number: equal where tuples are, and ascending with the first of them."""
    numbers = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        _, rank = np.unique(column, return_inverse=True)
        _, numbers = np.unique(numbers * (int(rank.max(initial=0)) + 1) + rank, return_inverse=True)
    return np.asarray(numbers)


def _number_both(one: Sequence[Array], other: Sequence[Array]) -> tuple[Array, Array]:
    """The keys of two tables as numbers, by what `_gated` shows of them; of rows that match nothing, numbers of which the other table has none."""
    numbers = _number_keys([np.concatenate(pair) for pair in zip(one[1:], other[1:], strict=True)])
    n = len(one[0])
    return np.where(one[0] == 1, numbers[:n], -1), np.where(other[0] == 1, numbers[n:], -2)


async def _read_both(
    reader: KeyReader, one: SharedTable, other: SharedTable, on: Sequence[tuple[SortKey, SortKey]]
) -> tuple[SharedTable, SharedTable, tuple[Array, Array] | None]:
    """Both tables in orders that no party knows, and at a reader the numbers of their keys."""
    if not on:
        raise ConfigError("no key", where="join", remedy="name one pair of columns or more to join by")
    widths = [max(a.words.bits, b.words.bits) for a, b in on]
    shuffled, shown = [], list[SharedWords]()
    for side, table in enumerate((one, other)):
        gated = await _gated(table, [pair[side] for pair in on], widths)
        names = list(table.columns)
        moved = await reader.shuffle(len(table)).move([*gated, table.valid, *table.columns.values()])
        words = [x for x in moved[: len(gated) + 1] if isinstance(x, SharedWords)]
        shown += words[:-1]
        shuffled.append(SharedTable(dict(zip(names, moved[len(gated) + 1 :], strict=True)), words[-1]))
    opened = await reader.read(shown)
    half = 1 + len(on)
    return shuffled[0], shuffled[1], _number_both(opened[:half], opened[half:]) if opened else None


# ---------------------------------------------------------------- operators


async def attach_rows_by_reader(
    reader: KeyReader,
    one: SharedTable,
    other: SharedTable,
    on: Sequence[tuple[SortKey, SortKey]],
    names: Sequence[str],
) -> tuple[SharedTable, dict[str, Column], SharedWords, SharedWords]:
    """What `atoll.secure.tables.attach_unique_rows` finds, for ``other`` in an order that no party knows; the number of rows stays.

    Args:
        reader: who reads the keys.
        one: the table whose keys are looked up.
        other: the table whose rows look for them.
        on: pairs of keys, one of each table. Missing values match nothing.
        names: columns of ``one``.

    Returns:
        ``other``, the columns of each row's match, a bit that says whether there is one, and one bit: whether two rows of ``one`` have equal keys.

    Raises:
        ConfigError: there is no key.
    """
    looked, table, keys = await _read_both(reader, one.keep_columns(names), other, on)
    rows, twice = None, None
    if keys is not None:
        mine, theirs = keys
        known, first = np.unique(mine[mine >= 0], return_index=True)
        twice = np.array([len(known) < np.count_nonzero(mine >= 0)], np.uint8)
        at = np.searchsorted(known, theirs)
        hit = (at < len(known)) & (theirs >= 0)
        hit[hit] = known[at[hit]] == theirs[hit]
        rows = np.full(len(theirs), _NONE)
        rows[hit] = np.flatnonzero(mine >= 0)[first[at[hit]]]
    matched, found = await reader.gather([looked.valid, *looked.columns.values()], rows, len(table))
    repeated = await reader.share(twice, (1,))
    return table, dict(zip(names, found[1:], strict=True)), matched, repeated


async def join_many_by_reader(
    reader: KeyReader,
    left: SharedTable,
    right: SharedTable,
    on: Sequence[tuple[SortKey, SortKey]],
    *,
    most: int,
    usual: float = 1.0,
) -> SharedTable:
    """All pairs of rows with equal keys, in a table of as many rows, up to the next power of two.

    Args:
        reader: who reads the keys.
        left: one table.
        right: the other one.
        on: pairs of keys of both.
        most: the largest number of rows that the parties make.
        usual: what a rehearsal takes for the number of pairs, as a multiple of the rows of the longer table.

    Raises:
        ConfigError: there is no key, or a column is in both tables.
        DataError: there are more pairs.
    """
    double = sorted({*left.columns} & {*right.columns})
    if double:
        raise ConfigError(f"columns {double} are in both tables", where="join", remedy="give them other names")
    one, other, keys = await _read_both(reader, left, right, on)
    count, places = 0, None
    if keys is not None:
        count, places = _match_many(*keys)
    expected = max(1, round(usual * max(len(left), len(right))))
    size = await reader.announce_rows(1 << max(0, count - 1).bit_length(), 1 << (expected - 1).bit_length(), most)
    chosen: list[Array | None] = [None, None]
    if places is not None:
        chosen = [np.concatenate([rows, np.full(size - min(size, count), _NONE)])[:size] for rows in places(size)]
    matched, mine = await reader.gather([one.valid, *one.columns.values()], chosen[0], size)
    _, theirs = await reader.gather([other.valid, *other.columns.values()], chosen[1], size)
    columns = dict(zip([*left.columns, *right.columns], [*mine[1:], *theirs[1:]], strict=True))
    return SharedTable(columns, matched)


def _match_many(mine: Array, theirs: Array) -> tuple[int, Callable[[int], tuple[Array, Array]]]:
    """How many pairs have equal keys, and the first so many of them: the rows of one and of the other."""
    by = np.argsort(theirs, kind="stable")
    ordered = theirs[by]
    begin, end = (np.searchsorted(ordered, mine, side=side) for side in ("left", "right"))
    counts = np.where(mine >= 0, end - begin, 0)

    def places(size: int) -> tuple[Array, Array]:
        rows = np.repeat(np.arange(len(mine)), counts)
        behind = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        return rows[:size], by[np.repeat(begin, counts) + behind][:size]

    return int(counts.sum()), places


async def group_rows_by_reader(
    reader: KeyReader,
    table: SharedTable,
    keys: Sequence[SortKey],
    aggregates: Mapping[str, RowAggregate],
    *,
    keep: Sequence[str] = (),
) -> SharedTable:
    """One row that counts for each group of equal keys: what `atoll.secure.tables.group_rows` gives.

    A reader sorts the shuffled rows, and all move theirs in its order; where groups begin it shares. The table has as many rows as before; of public keys, one a group.

    Args:
        reader: who reads the keys.
        table: the table.
        keys: keys of the table's rows.
        aggregates: name -> what the new column has.
        keep: further columns, of which the group's last row stays.

    Raises:
        ConfigError: a column is missing or of the wrong kind, or there is no key.
    """
    n = len(table)
    fields = await key_fields(table_keys(table, keys))
    gated = [table.valid, *await table.trio.conjoin_all([(table.valid.spread(x.bits), x) for x in fields])]
    shuffle = reader.shuffle(n)
    opened = await reader.read([x for x in await shuffle.move(gated) if isinstance(x, SharedWords)])
    order, firsts = None, None
    if opened:
        numbers = np.where(opened[0] == 1, _number_keys(opened[1:]), n)
        order = np.argsort(numbers, kind="stable")
        ordered = numbers[order]
        firsts = np.ones(n, np.uint8)
        firsts[1:] = ordered[1:] != ordered[:-1]
    by = shuffle.then(await reader.announce_order(order, n))
    found = await group_in_order(table, by, await reader.share(firsts, (n,)), aggregates, keep=keep)
    if reader.place is None and firsts is not None and order is not None:
        lasts = np.flatnonzero(np.append(firsts[1:], 1) & opened[0][order])
        return found.take_rows(lasts if len(lasts) else slice(n - 1, n))
    return found
