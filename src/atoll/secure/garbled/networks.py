"""Networks over rows: they merge, sort and compact whole records, and join the rows of groups, by steps that follow from the number of rows alone.

| network of n rows | steps |
| --- | --- |
| `merge_rows` | log n exchanges of pairs: those of `less_wires` of the key, and the bits of a record |
| `sort_rows` | about (log n)^2 / 2 of these |
| `scan_groups`, `sum_groups` | 2 log n joints of numbers, under 2 n in all |
| `reduce_rows`, `sum_rows` | log n joints, n in all |
| `compact_rows` | log n choices of a record |

`merge_rows` merges two sorted tables by a bitonic network (Batcher 1968), which is how SMCQL joins and groups what two owners sorted themselves (Bater et al. 2017): n / 2 log n exchanges of n rows,
where `sort_rows` takes n / 4 log n (log n + 1). Rows beyond a power of two are not there: an exchange with one would leave the largest record in place.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from .circuits import add_wires, blank_rows, conjoin_spread, less_wires
from .wires import Wires, join_wires

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from .wires import Array

__all__ = ["compact_rows", "merge_rows", "reduce_rows", "scan_groups", "sort_rows", "sum_groups", "sum_rows"]

Join: TypeAlias = "Callable[[Wires, Wires], Awaitable[Wires]]"
"""Joins two numbers into one of the same bits, in any order; of a number and 0 it makes the number."""


# ------------------------------------------------------------------ networks over records ``(w, rows)``, of which the lowest bits are the key


class _Pairs:
    """Pairs of rows that a level of a network compares: ``(i, i + stride)`` in blocks of two strides, or the first with the last and so on (``mirrored``). Rows without a partner stay.

    Slices in place of lists of places: a level moves whole runs of rows.
    """

    def __init__(self, rows: int, stride: int, mirrored: bool = False) -> None:
        self._stride, self._mirrored = stride, mirrored
        self._whole = rows - rows % (2 * stride)  # rows of whole blocks
        self._tail = max(0, rows % (2 * stride) - stride)  # pairs of the last block, if it is not whole
        self.count = self._whole // 2 + self._tail

    def _views(self, data: Array) -> list[tuple[Array, slice]]:
        """The low rows of whole blocks, the high ones, and those of the last block; and where they lie in an array of pairs."""
        lead, s, whole, tail = data.shape[:-1], self._stride, self._whole, self._tail
        blocks = data[..., :whole].reshape(*lead, whole // (2 * s), 2, s)
        highs = data[..., whole + s : whole + s + tail]
        first = whole + (s - tail if self._mirrored else 0)
        high = blocks[..., 1, ::-1] if self._mirrored else blocks[..., 1, :]
        main, rest = slice(0, whole // 2), slice(whole // 2, None)
        return [(blocks[..., 0, :], main), (data[..., first : first + tail], rest), (high, main), (highs[..., ::-1] if self._mirrored else highs, rest)]  # fmt: skip

    def split(self, x: Wires) -> tuple[Wires, Wires]:
        """The low and the high rows of all pairs."""
        made = [np.empty((*x.data.shape[:-1], self.count), dtype=np.uint64) for _ in range(2)]
        for i, (view, place) in enumerate(self._views(x.data)):
            made[i // 2][..., place].reshape(view.shape)[...] = view
        return Wires(x.by, made[0]), Wires(x.by, made[1])

    def join(self, x: Wires, low: Wires, high: Wires) -> Wires:
        """The rows with other low and high ones."""
        made = x.data.copy()
        for i, (view, place) in enumerate(self._views(made)):
            view[...] = (low, high)[i // 2].data[..., place].reshape(view.shape)
        return Wires(x.by, made)


async def _exchange(records: Wires, pairs: _Pairs, key: int) -> Wires:
    """Put the record with the smaller key of each pair at its low place."""
    if not pairs.count:
        return records
    low, high = pairs.split(records)
    swap = await less_wires(high[:key], low[:key])
    change = await conjoin_spread(swap, low ^ high)
    return pairs.join(records, low ^ change, high ^ change)


async def merge_rows(first: Wires, second: Wires, key: int) -> Wires:
    """Merge two tables of records ``(w, rows)`` that are sorted by their lowest ``key`` bits."""
    backwards = first[:, ::-1]
    records = join_wires([backwards, second], axis=1)  # falls, then rises
    n = records.shape[1]
    stride = 1 << max(0, (n - 1).bit_length() - 1)
    while stride:
        records = await _exchange(records, _Pairs(n, stride), key)
        stride //= 2
    return records


async def sort_rows(records: Wires, key: int, *, block: int | None = None) -> Wires:
    """Sort records ``(w, rows)`` by their lowest ``key`` bits; equal keys in any order.

    Args:
        records: the records.
        key: bits of the key.
        block: a power of two: each so many rows are sorted by themselves; by default all together.
    """
    n, run = records.shape[1], 1
    while run < (n if block is None else min(n, block)):
        records = await _exchange(records, _Pairs(n, run, mirrored=True), key)  # two sorted runs, the second backwards
        stride = run // 2
        while stride:
            records = await _exchange(records, _Pairs(n, stride), key)
            stride //= 2
        run *= 2
    return records


# ------------------------------------------------------------------ sums of rows and of groups


async def sum_rows(x: Wires, *, bits: int | None = None) -> Wires:
    """The sum of all rows, ``(bits, 1)``, by default exactly; of one bit a row ``(1, rows)`` it is their number."""
    most = len(x) + max(0, x.shape[1] - 1).bit_length() if bits is None else bits
    while x.shape[1] > 1:
        half, width = x.shape[1] // 2, min(len(x) + 1, most)
        made = await add_wires(x[:, :half], x[:, half : 2 * half], bits=width)
        rest = x[:, 2 * half :]
        if rest.shape[1]:
            rest = join_wires([rest, x.by.zeros((width - len(x), rest.shape[1]))])
        x = join_wires([made, rest], axis=1) if rest.shape[1] else made
    return x if len(x) == most else join_wires([x, x.by.zeros((most - len(x), 1))])


async def reduce_rows(x: Wires, join: Join) -> Wires:
    """All rows joined into one, ``(k, 1)``, as a tree."""
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        x = join_wires([await join(x[:, :half], x[:, half : 2 * half]), x[:, 2 * half :]], axis=1)
    return x


async def sum_groups(x: Wires, follows: Wires | None = None) -> Wires:
    """Running sums modulo ``2^k`` in groups of neighbouring rows: the last row of a group has its sum. See `scan_groups`."""
    return await scan_groups(x, add_wires, follows)


async def scan_groups(x: Wires, join: Join, follows: Wires | None = None) -> Wires:
    """Each row joined with all rows before it in its group of neighbours: running sums with `add_wires`, the largest so far with `larger_wires`.

    A tree up and down (Brent, Kung 1982): under 2 n joins and as many ANDs of ``k`` bits, in ``2 log n`` steps.

    Args:
        x: numbers, ``(k, rows)``.
        join: joins two of them.
        follows: 1 where a row belongs to the group of the row before it, ``(rows,)``; that of the first row does not count. By default all rows are one group.
    """
    n, stride = x.shape[1], 1
    rows = np.arange(n)
    steps: list[tuple[NDArray[np.int64], int, bool]] = []
    while stride < n:
        steps.append((rows[2 * stride - 1 :: 2 * stride], stride, True))
        stride *= 2
    while stride > 1:
        stride //= 2
        steps.append((rows[3 * stride - 1 :: 2 * stride], stride, False))
    for to, distance, joins in steps:
        if not len(to):
            continue
        terms = x.take(to - distance)
        if follows is not None:
            # A run that will be joined again must know whether it is of one group.
            more = [follows.take(to - distance).reshape(1, -1)] if joins else []
            kept = await conjoin_spread(follows.take(to), join_wires([terms, *more]))
            terms, follows = kept[: len(x)], _put(follows, to, kept[-1]) if joins else follows
        x = _put(x, to, await join(x.take(to), terms))
    return x


async def compact_rows(counts: Wires, records: Wires) -> tuple[Wires, Wires]:
    """Move the rows that count to the front, in their order; return the bits and the records, which are 0 behind them.

    Each row moves up by the number of rows before it that do not count, bit by bit of this number, lowest first (Goodrich 2011, "Data-oblivious external-memory algorithms"): about ``n log n`` choices of a
    record.

    Args:
        counts: 1 where a row counts, ``(rows,)``.
        records: ``(w, rows)``.
    """
    n = records.shape[1]
    if n < 2:
        return counts, await blank_rows(counts, records)
    places = (n - 1).bit_length()
    gone = join_wires([(~counts).reshape(1, -1), records.by.zeros((places - 1, n))])
    kept = await blank_rows(counts, join_wires([await sum_groups(gone), records]))
    for stride in 1 << np.arange(places):
        moving = join_wires([kept[1:], counts.reshape(1, -1)])
        leaving = await conjoin_spread(kept[0], moving)
        made = (moving ^ leaving).data
        made[..., : n - stride] ^= leaving.data[..., stride:]  # nobody is where a row arrives
        kept, counts = Wires(records.by, made[:, :-1]), Wires(records.by, made[:, -1])
    return counts, kept


def _put(x: Wires, places: NDArray[np.int64], values: Wires) -> Wires:
    made = x.data.copy()
    made[..., places] = values.data
    return Wires(x.by, made)
