"""Rows that stand twice: one file given under two names, a client whose rows another client has too, a file joined to itself, test rows on which clients train.

A repeated file counts twice in every sum, and a model scores well on test rows that it has seen. Rows are compared by digests: two rows are one if they have the same value
in every column, by name. Only data that one process holds can be compared, so a simulation says it, and a federation of organisations does not: nobody sees the rows of two sites.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import hash64, hash_names, mix64
from atoll.core.errors import DataError
from atoll.core.requests.cohort import Community

__all__ = ["name_repeated_rows", "name_shared_rows"]

Digests = NDArray[np.uint64]
_CLIENTS, _CELLS, _ROWS = 1000, 10_000_000, 1000
"""Clients and numbers that are looked at, and of more numbers so many first rows of each client at least."""
_FEW, _PART = 5, 10
"""Different rows that equal tables have, and a table that is part of another: fewer are equal by chance."""
_SAME, _DISTINCT = 0.05, 0.25
"""Share of test rows that are named if they are rows of the training too, and of different rows that a table has at least: with few columns, people may be alike."""
_DIFFERENT, _SHARE = 0.9, 0.9
"""A part must have so many rows without an equal in itself, and so many of them must stand in the other table."""
_SHOWN, _PARTS = 5, 20
_BLOCK, _ODD = 1 << 17, np.uint64(0xBF58476D1CE4E5B9)


def name_repeated_rows(population: Any) -> list[str]:
    """Return in words which clients have the same rows, or each row several times, and whether test rows are training rows, where each client's rows came as a table of its own.

    Args:
        population: `Islands`, or clients with a `DataTable`, a data frame or a dict of columns.
    """
    if len(population) > _CLIENTS or not getattr(population, "separate", isinstance(population, Community)):
        return []
    clients = {str(name): population.shard(k) for k, name in enumerate(population.names)}
    test, held = getattr(population, "test", None), getattr(population, "held_out", None)
    apart = {} if held is None else {str(name): held.shard(k) for k, name in enumerate(held.names)}
    return _compare(clients, {} if test is None else {"test rows": test}, apart)


def name_shared_rows(train: NDArray[Any], held: Mapping[str, NDArray[Any]]) -> list[str]:
    """Say that rows to score on are rows that the model was trained on, as with doubled rows in a file, or a test file among the sites'.

    Args:
        train: rows with their labels, ``(rows, numbers)``, or their digests, ``(rows,)``.
        held: rows to score on, by what they are called, in the same form.
    """
    if not held or not len(train):
        return []
    rows = _as_digests(train)
    known, told = np.unique(rows), list[str]()
    if len(known) < _DISTINCT * len(rows):
        return []
    for whose, one in held.items():
        own = _as_digests(one)
        shared = int(np.isin(own, known).sum())
        if shared and shared >= _SAME * len(own):
            told.append(
                f"{shared} of {len(own)} {whose} equal rows of the training, label included: if these are the same people, the measures are too good"
            )
    return told


def _as_digests(rows: NDArray[Any]) -> Digests:
    return rows if rows.ndim == 1 else _digest_rows({"row": rows}, len(rows))


def _compare(clients: Mapping[str, Any], tests: Mapping[str, Any], held: Mapping[str, Any]) -> list[str]:
    """Compare clients' rows, with those that they hold out, with each other, and test rows with all that are trained on."""
    if not clients:
        return []
    found = _digests_of([*clients.values(), *tests.values(), *held.values()])
    if found is None:
        return []
    rows = dict(zip(clients, found, strict=False))
    others = found[len(rows) :]
    kept = dict(zip(held, others[len(tests) :], strict=True))
    apart = dict(zip((*tests, *(f"rows held out by {name!r}" for name in held)), others, strict=True))
    whole = {name: np.concatenate([own, kept.get(name, own[:0])]) for name, own in rows.items()}
    distinct = {name: np.unique(own, return_counts=True) for name, own in whole.items()}
    return (
        _name_equal(whole, {name: values for name, (values, _) in distinct.items()})
        + _name_doubled({name: counts for name, (_, counts) in distinct.items()})
        + name_shared_rows(np.concatenate(list(rows.values())), apart)
    )


def _name_equal(rows: Mapping[str, Digests], distinct: Mapping[str, Digests]) -> list[str]:
    """Say which clients have the same rows, in any order, and which have rows of another client, from their rows and their different ones."""
    told, twins = list[str](), dict[tuple[int, int], str]()
    sums = {name: (len(own), int(np.add.reduce(own))) for name, own in rows.items()}
    first = dict[str, Digests]()
    for name, own in rows.items():
        other = twins.setdefault(sums[name], name)
        if other == name or not np.array_equal(np.sort(own), np.sort(rows[other])):
            first[name] = own
        elif len(distinct[name]) >= _FEW:
            told.append(
                f"clients {other!r} and {name!r} have the same {len(own):,} rows, and each row counts twice: is one table given under two names?"
            )
    names = sorted(first, key=lambda name: (len(first[name]), name))
    values, counts = np.unique(np.concatenate([distinct[name] for name in first]), return_counts=True)
    shared = values[counts > 1]
    parts = [
        name
        for name in names
        if len(shared)
        and len(distinct[name]) >= max(_PART, _DIFFERENT * len(first[name]))  # fewer are equal by chance
        and _share_in(first[name], shared) is not None
    ]
    for name in parts[:_PARTS]:
        larger = ((other, _share_in(first[name], first[other])) for other in names[names.index(name) + 1 :])
        told += [
            f"{share} of the {len(first[name]):,} rows of client {name!r} are also rows of {other!r}, and count twice"
            for other, share in larger
            if share is not None
        ]
    return told[:_SHOWN] + ([f"{len(told) - _SHOWN} more pairs of clients share rows"] if len(told) > _SHOWN else [])


def _name_doubled(times: Mapping[str, NDArray[Any]]) -> list[str]:
    """Say which clients have each row as often as any other, from how often each different row stands: so has a file that was joined to itself. Single rows that are equal may be different people."""
    told = []
    for name, counts in times.items():
        if len(counts) >= _PART and counts[0] > 1 and (counts == counts[0]).all():
            told.append(
                f"each of the {len(counts):,} different rows of client {name!r} stands {counts[0]} times, and counts as often: was a file joined to itself?"
            )
    return told[:_SHOWN] + ([f"{len(told) - _SHOWN} more clients have such rows"] if len(told) > _SHOWN else [])


def _share_in(rows: Digests, others: Digests) -> str | None:
    """How many rows stand among others, in words; ``None`` if that is not nearly all."""
    there = int(np.isin(rows, others).sum())
    if there < _SHARE * len(rows):
        return None
    return "all" if there == len(rows) else f"{there:,}"


def _digests_of(tables: Sequence[Any]) -> list[Digests] | None:
    """The digest of each row of each table, over the columns that all have; ``None`` if most columns are not everywhere."""
    names = [_names_of(table) for table in tables]
    shared = set.intersection(*map(set, names))
    found = [_read_columns(table, shared) for table in tables]
    common = set.intersection(*map(set, found))
    if 2 * len(common) <= max(map(len, names)) - len(shared - common):
        return None
    read = [{name: columns[name] for name in common} for columns in found]
    width = sum(int(np.prod(column.shape[1:])) for column in read[0].values())
    return [_digest_rows(one, max(_ROWS, _CELLS // max(1, width * len(read)))) for one in read]


def _read_columns(table: Any, names: Iterable[str]) -> dict[str, NDArray[Any]]:
    """Those of the columns that can be read: one of lists, which the job may not use, must not end it here."""
    found = {}
    for name in names:
        with contextlib.suppress(DataError):
            found[name] = np.asarray(table[name])
    return found


def _names_of(table: Any) -> list[str]:
    """Names of the columns of a client's data that every form of it has; of a data set, the features and the label."""
    if "x" in table and hasattr(table, "about"):
        return [name for name in ("x", "y") if name in table]
    names: Any = table if isinstance(table, Mapping) else getattr(table, "columns", ())
    return [str(name) for name in names]


def _digest_rows(columns: Mapping[str, NDArray[Any]], most: int) -> Digests:
    """A number for each row, the sum of a number for each of its values, which depends on the value and the column's name."""
    rows = min(most, *map(len, columns.values()))
    made = np.zeros(rows, np.uint64)
    for name, column in columns.items():
        flat = column[:rows].reshape(rows, -1) if rows else np.zeros((0, 1))
        keys = mix64(np.uint64(hash64(name)) + np.arange(flat.shape[1], dtype=np.uint64))
        step = max(1, _BLOCK // max(1, flat.shape[1]))
        for at in range(0, rows, step):
            words = _words_of(flat[at : at + step]) ^ keys[None, :]
            words ^= words >> np.uint64(29)
            words *= _ODD
            words ^= words >> np.uint64(32)
            made[at : at + step] += words.sum(axis=1, dtype=np.uint64)
    return mix64(made)


def _words_of(values: NDArray[Any]) -> Digests:
    """Numbers as their bits in double precision, with one zero and one NaN; anything else by its text."""
    if values.dtype.kind in "biuf":
        numbers = values.astype(np.float64)
        numbers += 0.0
        if values.dtype.kind == "f":
            numbers[np.isnan(numbers)] = np.nan
        return numbers.view(np.uint64)
    known, places = np.unique(values.astype(np.str_), return_inverse=True)
    return hash_names(known.tolist())[places].reshape(values.shape)
