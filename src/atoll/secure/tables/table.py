"""Shared tables: columns of one length and a hidden bit a row that says whether the row counts.

Owners fill their rows up to a public number, so that nobody learns how many they have. Operators keep the number of rows, or make one that follows from those of
their inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from atoll.core.errors import ConfigError, DataError, LetterError
from atoll.core.message.words import word_dtype

from ..keystream import SEED
from ..shares.computation import SharedArray, concatenated
from ..shares.domain import WordRing
from ..shares.trio import Array, CommonStream, SharedWords, Trio, join_words
from ..shares.word_circuits import lift_bits, negative_bits
from .rearrangement import Column, Rearrangement
from .sorting import SortKey, find_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from atoll.core.execution.session import Peers
    from atoll.core.requests.island import Secret

__all__ = [
    "Layout",
    "SharedTable",
    "collect_table",
    "compact_rows",
    "concatenate_tables",
    "deliver_table",
    "join_parts",
    "open_table",
    "outward_rows",
    "send_table",
    "share_table",
    "sort_table",
]

Layout: TypeAlias = Mapping[str, "int | None"]
"""Columns of a table: bits of a word, 1 to 64, or ``None`` for numbers modulo ``2^64``."""
_VALID = ""
"""The name under which the rows' bits travel."""


@dataclass(frozen=True, eq=False)
class SharedTable:
    """A party's share of a table.

    Attributes:
        columns: name -> words or numbers.
        valid: a bit a row: whether the row counts.

    Raises:
        ConfigError: columns have other lengths, or there is no row.
    """

    columns: Mapping[str, Column]
    valid: SharedWords

    def __post_init__(self) -> None:
        sizes = {name: len(x) for name, x in self.columns.items() if len(x) != len(self.valid)}
        if sizes or len(self.valid) < 1:
            raise ConfigError(
                f"columns of {sizes} rows in a table of {len(self.valid)}" if sizes else "a table of 0 rows",
                where="SharedTable",
                remedy="use columns of one length, 1 or more: fill a table up with rows that do not count",
            )

    def __len__(self) -> int:
        return len(self.valid)

    def __getitem__(self, name: str) -> Column:
        if name not in self.columns:
            raise ConfigError(f"no column {name!r}", where="SharedTable", remedy=f"use one of {sorted(self.columns)}")
        return self.columns[name]

    @property
    def trio(self) -> Trio:
        """The three parties."""
        return self.valid.trio

    def words(self, name: str) -> SharedWords:
        """A column of words.

        Raises:
            ConfigError: there is none of the name, or it holds numbers.
        """
        found = self[name]
        if not isinstance(found, SharedWords):
            raise ConfigError(
                f"column {name!r} of numbers", where="SharedTable", remedy="share it as words, or use numbers_to_words"
            )
        return found

    def numbers(self, name: str) -> SharedArray:
        """A column of numbers.

        Raises:
            ConfigError: there is none of the name, or it holds words.
        """
        found = self[name]
        if isinstance(found, SharedWords):
            raise ConfigError(
                f"column {name!r} of words", where="SharedTable", remedy="share it as numbers, or use words_to_numbers"
            )
        return found

    @property
    def layout(self) -> dict[str, int | None]:
        """The columns as `Layout`."""
        return {name: x.bits if isinstance(x, SharedWords) else None for name, x in self.columns.items()}

    def with_columns(self, columns: Mapping[str, Column]) -> SharedTable:
        """The table with further columns, or others in their place."""
        return SharedTable({**self.columns, **columns}, self.valid)

    def keep_columns(self, names: Sequence[str]) -> SharedTable:
        """The table of some columns."""
        return SharedTable({name: self[name] for name in names}, self.valid)

    def take_rows(self, rows: slice | Array) -> SharedTable:
        """The table of some rows, which all parties know, such as the first ten."""
        return SharedTable({name: x[rows] for name, x in self.columns.items()}, self.valid[rows])

    async def filter_rows(self, condition: SharedWords) -> SharedTable:
        """The table in which rows count only if a condition is 1 too; the number of rows stays."""
        return SharedTable(self.columns, await self.trio.conjoin(self.valid, condition))

    async def move_rows(self, order: Rearrangement) -> SharedTable:
        """The table in another order."""
        valid, *columns = await order.move([self.valid, *self.columns.values()])
        return _table(dict(zip(self.columns, columns, strict=True)), valid)

    async def clear_rows(self) -> SharedTable:
        """The table with zeros in rows that do not count."""
        words = {name: x for name, x in self.columns.items() if isinstance(x, SharedWords)}
        made = await self.trio.conjoin_all([(self.valid.spread(x.bits), x) for x in words.values()]) if words else []
        cleared: dict[str, Column] = dict(zip(words, made, strict=True))
        numbers = {name: x for name, x in self.columns.items() if isinstance(x, SharedArray)}
        if numbers:
            by = self.trio.numbers
            gate = await lift_bits(self.valid, by)
            for name, x in numbers.items():
                cleared[name] = await by.mul(gate, x)
        return SharedTable({name: cleared[name] for name in self.columns}, self.valid)


def _table(columns: Mapping[str, Column], valid: Column) -> SharedTable:
    if not isinstance(valid, SharedWords):
        raise ConfigError("numbers in place of the rows' bits", where="SharedTable", remedy="use words of one bit")
    return SharedTable(columns, valid)


def concatenate_tables(tables: Sequence[SharedTable]) -> SharedTable:
    """The rows of all tables, one table after the other.

    Raises:
        ConfigError: their columns are not alike.
    """
    first = tables[0]
    for table in tables[1:]:
        if table.layout != first.layout:
            raise ConfigError(
                f"tables of {table.layout} and {first.layout}",
                where="concatenate_tables",
                remedy="keep the same columns, as words of the same length",
            )
    columns: dict[str, Column] = {}
    for name, bits in first.layout.items():
        if bits is None:
            columns[name] = concatenated([table.numbers(name) for table in tables])
        else:
            columns[name] = join_words([table.words(name) for table in tables])
    return SharedTable(columns, join_words([table.valid for table in tables]))


async def sort_table(table: SharedTable, keys: Sequence[SortKey], *, limit: int | None = None) -> SharedTable:
    """The table sorted by keys, rows that do not count last; with a limit its first rows only."""
    order = await find_order([SortKey(table.valid, descending=True), *keys])
    ordered = await table.move_rows(order)
    return ordered if limit is None else ordered.take_rows(slice(limit))


async def compact_rows(table: SharedTable, extra: SharedArray) -> SharedTable:
    """The rows that count and ``extra`` others, in a hidden order: the parties learn how many these are together, and nothing else.

    The first ``extra`` rows that do not count stay, so that ``min(count + extra, rows)`` do. Which places they have is shown after a shuffle. A table keeps one row at least.

    Args:
        table: the table.
        extra: one number, 0 or above, of which no party knows how much of the result it is.
    """
    trio, by, n = table.trio, table.trio.numbers, len(table)
    filling = table.valid.inverted()
    rest = await lift_bits(filling, by)
    left = SharedArray(by, tuple(np.cumsum(part, dtype=np.uint64) - more for part, more in zip(rest.parts, extra.parts, strict=True)))  # fmt: skip
    near = await trio.conjoin(filling, await negative_bits(left - np.ones(n, dtype=np.int64), trio))
    order = Rearrangement.draw(trio, n)
    kept, valid, *columns = await order.move([table.valid ^ near, table.valid, *table.columns.values()])
    shuffled = _table(dict(zip(table.columns, columns, strict=True)), valid)
    if not isinstance(kept, SharedWords):
        raise ConfigError("numbers in place of bits", where="compact_rows", remedy="use words of one bit")
    rows = np.flatnonzero(await trio.open(kept))
    return shuffled.take_rows(rows if len(rows) else np.arange(1))


# ------------------------------------------------------------------ in


def _with_valid(layout: Layout) -> dict[str, int | None]:
    return {**layout, _VALID: 1}


def _dtype_of(bits: int | None) -> Any:
    return word_dtype(64 if bits is None else bits)


def _filled(rows: Mapping[str, Any], layout: Layout, capacity: int) -> dict[str, Array]:
    """An owner's columns, filled up with zeros, and the bits that tell rows from filling."""
    sizes = {name: len(np.asarray(rows[name])) if name in rows else None for name in layout}
    if len(set(sizes.values())) > 1 or None in sizes.values():
        raise DataError(
            f"columns of {sizes} rows", where="share_table", remedy="give each column of the layout, all of one length"
        )
    n = next(iter(sizes.values()), 0) or 0
    if n > capacity:
        raise DataError(
            f"{n} rows", where="share_table", remedy=f"raise the capacity of {capacity}, which all parties know"
        )
    made = {}
    for name, bits in layout.items():
        values = np.asarray(rows[name])
        known = WordRing(64).of(values) if bits is None else Trio.check_words(values, bits)
        made[name] = np.concatenate([known, np.zeros(capacity - n, dtype=known.dtype)])
    made[_VALID] = (np.arange(capacity) < n).astype(np.uint8)
    return made


def _split(columns: Mapping[str, Array], layout: Layout, seeds: Sequence[bytes]) -> Array:
    """Part 2 of each column, as bytes: what is missing to the parts that follow from two seeds."""
    streams = [CommonStream(seed) for seed in seeds]
    parts = []
    for name, bits in layout.items():
        values = columns[name]
        one, other = (_drawn(stream, bits, len(values)) for stream in streams)
        parts.append((values - one - other if bits is None else values ^ one ^ other).view(np.uint8))
    return np.concatenate(parts) if parts else np.zeros(0, dtype=np.uint8)


def _drawn(stream: CommonStream, bits: int | None, n: int) -> Array:
    words = stream.draw(n, _dtype_of(bits))
    return words if bits is None else words & words.dtype.type((1 << bits) - 1)


async def send_table(
    peers: Peers,
    parties: Sequence[str],
    secret: Secret,
    rows: Mapping[str, Any],
    *,
    layout: Layout,
    capacity: int,
) -> None:
    """Share an owner's rows among three parties, from a role outside: two get the rows' size once, and the third a seed.

    Args:
        peers: the owner's session.
        parties: the three.
        secret: the owner's.
        rows: name -> whole numbers, all of one length. Words are 0 and above; numbers have a sign.
        layout: the columns, which everyone knows.
        capacity: rows that the table is filled up to, which everyone knows.

    Raises:
        DataError: rows are too many, or do not fit the layout.
    """
    for party, message in zip(parties, _messages(rows, layout, capacity, secret), strict=True):
        await peers.send(party, message)


def _messages(rows: Mapping[str, Any], layout: Layout, capacity: int, secret: Secret) -> list[list[Any]]:
    """What each party gets: of the parts that it holds, the seed or the bytes."""
    seeds = [secret.bytes(SEED) for _ in range(2)]
    rest = _split(_filled(rows, layout, capacity), _with_valid(layout), seeds)
    held = [seeds[0], seeds[1], rest]
    return [[held[place], held[(place + 1) % 3]] for place in range(3)]


async def share_table(
    trio: Trio, owner: str, *, layout: Layout, capacity: int, rows: Mapping[str, Any] | None = None
) -> SharedTable:
    """A table of an owner's rows, at the three parties.

    Args:
        trio: the three parties.
        owner: the role that has the rows: one of the three, or another one, which calls `send_table`.
        layout: the columns.
        capacity: rows that the table is filled up to.
        rows: at the owner, if it is one of the three: see `send_table`.

    Raises:
        DataError: rows are too many, or do not fit the layout.
        LetterError: the owner sent something else than shares of such a table.
    """
    computation = trio.numbers
    if owner == computation.me:
        messages = _messages(rows or {}, layout, capacity, computation.island.secret)
        for party, message in zip(computation.parties, messages, strict=True):
            if party != owner:
                await computation.peers.send(party, message)
        found: Any = messages[trio.place]
    else:
        found = await computation.peers.recv(owner)
    if not isinstance(found, list | tuple) or len(found) != 2:
        raise LetterError(f"a {type(found).__name__} in place of a table", remedy=f"look at {owner}, which sent it")
    whole = _with_valid(layout)
    parts = [_part(held, whole, capacity, owner) for held in found]
    columns: dict[str, Column] = {}
    for name, bits in whole.items():
        both = (parts[0][name], parts[1][name])
        columns[name] = SharedArray(computation, both) if bits is None else SharedWords(trio, both, bits)
    return _table({name: columns[name] for name in layout}, columns[_VALID])


def _part(held: Any, layout: Layout, n: int, owner: str) -> dict[str, Array]:
    """One part of every column, from a seed or from bytes."""
    if isinstance(held, bytes) and len(held) == SEED:
        stream = CommonStream(held)
        return {name: _drawn(stream, bits, n) for name, bits in layout.items()}
    size = sum(n * _dtype_of(bits).itemsize for bits in layout.values())
    if not isinstance(held, np.ndarray) or held.dtype != np.uint8 or held.shape != (size,):
        shown = f"{held.dtype}{list(held.shape)}" if isinstance(held, np.ndarray) else type(held).__name__
        raise LetterError(f"{shown} in place of {size} bytes of shares", remedy=f"look at {owner}, which sent them")
    made, at = {}, 0
    for name, bits in layout.items():
        dtype = _dtype_of(bits)
        part = held[at : at + n * dtype.itemsize].copy().view(dtype)
        made[name] = part if bits is None else part & dtype.type((1 << bits) - 1)
        at += n * dtype.itemsize
    return made


# ------------------------------------------------------------------ out


async def open_table(table: SharedTable, *, ordered: bool = False) -> dict[str, Array]:
    """The rows that count, shown to all three parties: words as they are, numbers with their sign.

    The rows are shuffled first, so that their places tell nothing; all parties learn how many count.

    Args:
        table: the table.
        ordered: whether to keep the order, for a table that has just been sorted with rows that do not count last.
    """
    trio, shown = table.trio, table
    if not ordered:
        shown = await table.move_rows(Rearrangement.draw(trio, len(table)))
    rows = np.flatnonzero(await trio.open(shown.valid))
    found: dict[str, Array] = {}
    for name, x in shown.columns.items():
        if isinstance(x, SharedWords):
            found[name] = await trio.open(x[rows])
        else:
            found[name] = x.by.domain.signed(await trio.open_numbers(x[rows]))
    return found


async def deliver_table(table: SharedTable, to: str, *, ordered: bool = False) -> None:
    """Send a table to a role outside, which calls `collect_table`; the three parties do not learn how many rows count.

    Rows that do not count arrive as zeros.
    """
    message = await outward_rows(table, ordered=ordered)
    if message is not None:
        await table.trio.numbers.peers.send(to, message)


async def outward_rows(table: SharedTable, *, ordered: bool = False) -> Array | None:
    """What a party gives to whom the rows that count are for, who puts two parts together by `join_parts`; ``None`` at the third party.

    Args:
        table: the table.
        ordered: whether its order is shown too; if not, the rows are shuffled first.
    """
    trio = table.trio
    shown = table if ordered else await table.move_rows(Rearrangement.draw(trio, len(table)))
    shown = await shown.clear_rows()
    if trio.place == 2:
        return None
    columns: list[Column] = [*shown.columns.values(), shown.valid]
    return np.concatenate([_outward(x, trio.place) for x in columns])


def _outward(x: Column, place: int) -> Array:
    """Of the first party both parts together, of the second its second one."""
    if place == 1:
        return np.ascontiguousarray(x.parts[1]).view(np.uint8).reshape(-1)
    both = x.parts[0] ^ x.parts[1] if isinstance(x, SharedWords) else x.parts[0] + x.parts[1]
    return np.ascontiguousarray(both).view(np.uint8).reshape(-1)


async def collect_table(peers: Peers, parties: Sequence[str], *, layout: Layout, rows: int) -> dict[str, Array]:
    """The rows that count of a table that the three parties deliver, at a role outside.

    Args:
        peers: the session.
        parties: the three.
        layout: the table's columns.
        rows: its rows, those that do not count too.

    Raises:
        LetterError: a party sent something else.
    """
    return join_parts({party: await peers.recv(party) for party in parties[:2]}, layout=layout, rows=rows)


def join_parts(parts: Mapping[str, Any], *, layout: Layout, rows: int) -> dict[str, Array]:
    """The rows that count, of what the first two of three parties give of a table.

    Args:
        parts: party -> what `outward_rows` gave there, the first party first.
        layout: the table's columns.
        rows: its rows, those that do not count too.

    Raises:
        LetterError: a party gave something else.
    """
    whole = _with_valid(layout)
    halves = [_part(part, whole, rows, party) for party, part in parts.items()]
    found = {
        name: halves[0][name] + halves[1][name] if bits is None else halves[0][name] ^ halves[1][name]
        for name, bits in whole.items()
    }
    at = found.pop(_VALID).astype(bool)
    return {name: found[name][at].view(np.int64) if bits is None else found[name][at] for name, bits in layout.items()}
