"""What a party has answered: the sets of rows behind earlier replies, so that no two replies differ by fewer rows than the minimum count.

Two sums over nearly the same rows give away the few rows between them (differencing). Each party keeps, for every request that it has answered, which rows of
which version of its table were in which cell. Before it answers another that shares a column, it counts the rows in one cell and not in the other, both ways, and
refuses if that is 1 to ``min_count - 1``. Rows are compared by a hash of their content, so rows that were added to the table or changed are seen too.

This holds for pairs of requests. Combinations of three or more can isolate a row that no pair does: against those only noise with a budget helps (``epsilon``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import PolicyError
from atoll.data.table import DataTable

from ..cells import Cell

__all__ = ["NAME", "entry_of", "require_apart", "row_hashes", "with_entry"]

NAME = "statistics-answered"
"""Name of the record among the results that stay at a party."""

Hashes = NDArray[np.uint64]
_MULTIPLIER = np.uint64(0x9E37_79B9_7F4A_7C15)
_CHUNK = 1 << 16


def row_hashes(table: DataTable) -> Hashes:
    """A hash of each row's content, ``(rows,)``; it depends on the names of the columns and not on their order."""
    made = np.zeros(len(table), np.uint64)
    for name in sorted(table.columns):
        salt = np.uint64(int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little"))
        values = table[name]
        for start in range(0, len(table), _CHUNK):
            part = _words_of(values[start : start + _CHUNK])
            mixed = np.full(len(part), salt, np.uint64)
            for k in range(part.shape[1]):
                mixed = _mixed(mixed ^ part[:, k])
            made[start : start + _CHUNK] += mixed
    return made


def _words_of(values: NDArray[Any]) -> Hashes:
    """The values as 64-bit words, ``(rows, words)``."""
    if values.dtype.kind == "U":
        # Trailing zeros are no letters, so that a wider column of the same texts is the same.
        letters = np.ascontiguousarray(values).view(np.uint32).reshape(len(values), -1).astype(np.uint64)
        places = np.arange(1, letters.shape[1] + 1, dtype=np.uint64) * _MULTIPLIER | np.uint64(1)
        spread = _mixed(letters * places) * (letters > 0)
        return np.asarray(spread.sum(axis=1, dtype=np.uint64))[:, None]
    if values.dtype.kind in "Mm":
        return np.asarray(values.astype("datetime64[us]").astype(np.int64).view(np.uint64).reshape(len(values), -1))
    flat = np.ascontiguousarray(values, dtype=np.float64).reshape(len(values), -1) + 0.0
    return np.where(np.isnan(flat), np.nan, flat).view(np.uint64)


def _mixed(words: Hashes) -> Hashes:
    """Spread every bit over all (the finaliser of SplitMix64)."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58_476D_1CE4_E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D0_49BB_1331_11EB)
    return np.asarray(words ^ (words >> np.uint64(31)))


def entry_of(request: str, base: str, columns: Iterable[str], cells: Sequence[Cell], hashes: Hashes) -> dict[str, Any]:
    """The record of one answer.

    Args:
        request: what people know it by.
        base: the rows that it is about, in words.
        columns: the columns that were described.
        cells: the cells that were described.
        hashes: of the table's rows.
    """
    bits = []
    for cell in cells:
        inside = np.ones(len(hashes), bool) if cell.rows is None else np.zeros(len(hashes), bool)
        if cell.rows is not None:
            inside[cell.rows] = True
        bits.append(np.packbits(inside))
    names = [f"{base} with {cell.family}={cell.label}" if cell.family else base for cell in cells]
    order = np.sort(hashes)
    version = f"{int(_mixed(np.array([order.sum(dtype=np.uint64) ^ np.uint64(len(order))]))[0]):016x}"
    return {"request": request, "columns": sorted(columns), "cells": names, "bits": bits, "version": version}


def with_entry(record: Any, entry: Mapping[str, Any], hashes: Hashes) -> dict[str, Any]:
    """The record with one more answer; the same rows of the same columns again add nothing."""
    known = record or {"entries": [], "tables": {}}
    same = [one for one in known["entries"] if _same(one, entry)]
    tables = {**known["tables"], entry["version"]: hashes}
    return {"entries": [*known["entries"], *([] if same else [dict(entry)])], "tables": tables}


def _same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    if (
        one["version"] != other["version"]
        or one["columns"] != other["columns"]
        or len(one["bits"]) != len(other["bits"])
    ):
        return False
    return all(np.array_equal(a, b) for a, b in zip(one["bits"], other["bits"], strict=True))


def require_apart(record: Any, entry: Mapping[str, Any], hashes: Hashes, least: int, party: str) -> None:
    """Refuse a request whose difference from an answered one isolates fewer rows than the minimum count.

    Args:
        record: what the party has answered; ``None`` is nothing.
        entry: the new request.
        hashes: of the table's rows.
        least: the minimum count.
        party: its name.

    Raises:
        PolicyError: names the earlier request and both cells.
    """
    for earlier in (record or {"entries": []})["entries"]:
        shared = sorted(set(earlier["columns"]) & set(entry["columns"]))
        if not shared or _same(earlier, entry):  # a further contact of one request
            continue
        others = record["tables"][earlier["version"]]
        for name, bits in zip(entry["cells"], entry["bits"], strict=True):
            for before, old in zip(earlier["cells"], earlier["bits"], strict=True):
                isolated = _between(bits, hashes, old, others, same=earlier["version"] == entry["version"])
                if 0 < isolated < least:
                    raise PolicyError(
                        f"the difference between {name} and {before} of the earlier request {earlier['request']!r} is fewer than min_count={least} rows, "
                        f"and both describe {shared[0]!r}",
                        where=party,
                        remedy="ask for the same rows as before, for rows that differ by more, or with epsilon=, whose noise hides single rows",
                    )


def _between(bits: NDArray[np.uint8], hashes: Hashes, old: NDArray[np.uint8], others: Hashes, *, same: bool) -> int:
    """The smaller positive number of rows that are in one set and not in the other; 0 if each way it is none."""
    if same and np.array_equal(hashes, others):
        ways = [int(np.unpackbits(bits & ~old).sum()), int(np.unpackbits(old & ~bits).sum())]
    else:
        mine = hashes[np.unpackbits(bits, count=len(hashes)).astype(bool)]
        theirs = others[np.unpackbits(old, count=len(others)).astype(bool)]
        ways = [_more(mine, theirs), _more(theirs, mine)]
    return min((way for way in ways if way > 0), default=0)


def _more(ones: Hashes, others: Hashes) -> int:
    """How many rows are in one set and not in the other; rows that occur several times count several times."""
    keys, counts = np.unique(ones, return_counts=True)
    known, against = np.unique(others, return_counts=True)
    place = np.minimum(np.searchsorted(known, keys), max(0, len(known) - 1))
    found = np.where(known[place] == keys, against[place], 0) if len(known) else np.zeros(len(keys), np.int64)
    return int(np.maximum(counts - found, 0).sum())
