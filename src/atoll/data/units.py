"""Columns in other units: what a column's name says of its unit, and how large its numbers are, to a power of ten.

A party that has grams where the others have tonnes sends updates of the right form, and the model never recovers. Two names that differ only in the unit between
brackets, such as ``age [years]`` and ``age [months]``, are refused. Without a unit in the name, numbers that are far off are named: the scale of a column is
``round(log10(RMS))``, with the root mean square of its values. In one process the result says so, and also names a column whose median lies outside nearly all values of the
others and is at least twice or half theirs, such as days in place of years. Between organisations, the whole number is all that leaves a
site. A site keeps it to itself with ``scales: false``, and it does not leave for a job that promises privacy, because its ledger would not count it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import DataError
from atoll.core.requests.cohort import Community

from .missing import labelled_rows

__all__ = [
    "EMPTY",
    "FAR",
    "MOST_COLUMNS",
    "name_other_units",
    "name_units_of_test",
    "numbers_of",
    "other_units",
    "require_one_unit",
    "scales_of",
]

_NAMED = re.compile(r"(.*\S)\s*(?:\[\s*(\S[^\]]*)\]|\(\s*(\S[^)]*)\))")
"""A name that ends with its unit between brackets."""

FAR = 2
"""Powers of ten that a column may lie from the median of the sites."""
MOST_COLUMNS = 100_000
_CLIENTS, _ROWS = 1000, 10_000  # looked at
_FEW, _SHOWN = 10, 5
"""Values of a column that a scale of a simulation's client needs, and sentences that a result has at most."""
_TIMES = 2
"""How many times larger a median must be at least, if it lies outside nearly all other values."""
EMPTY = -1000
"""The scale of a column of zeros, which is not compared."""


def require_one_unit(here: Iterable[str], there: Iterable[str], where: str, other: str) -> None:
    """Refuse two tables of which one has a column in another unit than the other, as their names say between brackets.

    Args:
        here: names of the columns of one table.
        there: of the other.
        where: the first table, for errors.
        other: the second, in words.

    Raises:
        DataError: names both columns.
    """
    own, theirs = list(here), list(there)
    known = {_stem(name): name for name in theirs if _stem(name) and name not in own}
    for name in own:
        if name not in theirs and _stem(name) in known:
            twin = known[_stem(name)]
            raise DataError(
                f"column {name!r} is in another unit than column {twin!r} of {other}",
                where=where,
                remedy=f"convert its values and call it {twin!r}; or give both columns names of their own",
            )


def _stem(name: str) -> str:
    """A name without its unit, in lower case; empty for a name without a unit."""
    found = _NAMED.fullmatch(name)
    return found[1].strip().lower() if found else ""


def name_other_units(population: Any) -> list[str]:
    """Return in words which client of a population is far off in which column, where each client's rows came as a table of its own.

    Rows that one data set gave to several clients have one unit. Columns without names, columns of text, and those with fewer than ten values are not compared.

    Args:
        population: `Islands`, or clients with a `DataTable`, a data frame or a dict of columns.
    """
    # A population of one's own may make rows when they are asked for, and nobody has asked for those of clients that are not selected.
    if len(population) > _CLIENTS or not getattr(population, "separate", isinstance(population, Community)):
        return []
    about, test = getattr(population, "about", None), getattr(population, "test", None)
    found: dict[str, dict[str, _Extent]] = {}
    for place, client in enumerate(population.names):
        for column, extent in _measure_columns(population.shard(place), about).items():
            found.setdefault(column, {})[str(client)] = extent
    held = {} if test is None else _measure_columns(test, about)
    told = []
    for column, rows in found.items():
        name = "the target" if column == _TARGET else f"column {column!r}"
        # Test rows may be the clients' own, and hold several units then.
        told += _name_far(rows, name) or (_name_far_test(rows, held[column], name) if column in held else [])
    return _name_infinite(population, about) + _shorten(told)


def name_units_of_test(tables: Mapping[str, Any], test: Any) -> list[str]:
    """Return in words which columns of test rows are far off those of all sites.

    Args:
        tables: the sites' tables, frames, or dicts of columns, by name.
        test: the test rows, in the same form.
    """
    sites = {site: _measure_columns(rows, None) for site, rows in tables.items()}
    told: list[str] = []
    for column, extent in _measure_columns(test, None).items():
        rows = {site: each[column] for site, each in sites.items() if column in each}
        told += _name_far_test(rows, extent, f"column {column!r}", "site") if rows else []
    return _shorten(told)


def _shorten(told: Sequence[str]) -> list[str]:
    lines = [f"{words}: is it in another unit?" for words in told[:_SHOWN]]
    return lines + ([f"{len(told) - _SHOWN} more columns are as far off"] if len(told) > _SHOWN else [])


def _name_infinite(population: Any, about: Any) -> list[str]:
    """Say which columns have infinite values, which count as missing, and numbers that may say so: -99 and 999, twice or more and far from all other values."""
    found = []
    for place, client in enumerate(population.names):
        for column, values in numbers_of(population.shard(place), about).items():
            many = int(np.isinf(values).sum()) if values.dtype.kind == "f" else 0
            if many:
                found.append(f"column {column!r} has {many} infinite values at client {str(client)!r}: they count as missing")  # fmt: skip
            for value, times in _find_signs(values):
                found.append(f"column {column!r} has {value:g} in {times} rows of client {str(client)!r}, far from all other values: if it says that a value is missing, leave these cells empty")  # fmt: skip
    return found[:_SHOWN]


def _find_signs(values: Any) -> list[tuple[float, int]]:
    """Numbers such as -99 and 999 that several rows have, farther from the other values than these from each other, and how many rows."""
    known, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    found = []
    for place, side in ((0, known[1:]), (-1, known[:-1])) if len(known) > 2 else ():
        value, digits = float(known[place]), f"{abs(float(known[place])):.17g}"
        away = abs(value - float(side[place]))
        signs = digits in ("9" * len(digits), "8" * len(digits)) and (len(digits) > 1 or value < 0)
        if signs and counts[place] > 1 and away > float(side[-1]) - float(side[0]):
            found.append((value, int(counts[place])))
    return found


_TARGET = "y"


@dataclass(frozen=True)
class _Extent:
    """The scale of a column, between what nearly all of its values lie (a wrong one must not hide the others), its median, and whether it has more than two values."""

    scale: int
    low: float
    high: float
    median: float
    many: bool


def _measure_columns(data: Any, about: Any) -> dict[str, _Extent]:
    """The extent of each column with enough values, and of the target of a regression."""
    found, known_about = {}, getattr(data, "about", about)
    columns = numbers_of(data, about)
    if known_about is not None and known_about.task == "regression" and "y" in data and np.ndim(data["y"]) == 1:
        columns = {**columns, _TARGET: np.asarray(data["y"])[labelled_rows(data)]}
    for column, values in columns.items():
        known = values[:_ROWS][np.isfinite(values[:_ROWS])].astype(np.float64)
        if len(known) >= _FEW and (mean := float(np.sqrt(np.mean(known * known)))) > 0 and math.isfinite(mean):
            wrong, rows = 1 + len(known) // 100, np.sort(known)
            low, high, middle = float(rows[wrong]), float(rows[-1 - wrong]), float(np.median(known))
            found[column] = _Extent(round(math.log10(mean)), low, high, middle, len(np.unique(known)) > 2)
    return found


def _name_far(rows: Mapping[str, _Extent], column: str) -> list[str]:
    """Say which client is far off in a column."""
    told = _off({client: extent.scale for client, extent in rows.items()}, column, "client")
    if told or len(rows) < 2:
        return told
    for client, extent in rows.items():
        others = [other for name, other in rows.items() if name != client]
        if _lies_apart(extent, others) and (len(others) > 1 or _lies_apart(others[0], [extent])):
            low, high = min(other.low for other in others), max(other.high for other in others)
            told.append(f"{column} of client {client!r} lies around {extent.median:.4g}, and nearly all at the other clients between {low:.4g} and {high:.4g}")  # fmt: skip
            if len(rows) == 2:
                break
    return told


def _name_far_test(rows: Mapping[str, _Extent], test: _Extent, column: str, who: str = "client") -> list[str]:
    """Say that test rows are far off those of all clients."""
    told = _off({**{name: extent.scale for name, extent in rows.items()}, "test": test.scale}, column, who)
    if told or not _lies_apart(test, list(rows.values())):
        return told
    low, high = min(extent.low for extent in rows.values()), max(extent.high for extent in rows.values())
    return [f"{column} of the test rows lies around {test.median:.4g}, and nearly all at the {who}s between {low:.4g} and {high:.4g}"]  # fmt: skip


def _lies_apart(own: _Extent, others: Sequence[_Extent]) -> bool:
    """Whether a median lies outside nearly all values of the others, and is at least twice or half theirs: the factors of units are."""
    low, high = min(other.low for other in others), max(other.high for other in others)
    middle = float(np.median([other.median for other in others]))
    small, large = sorted((abs(own.median), abs(middle)))
    many = own.many and all(other.many for other in others)  # two numbers are codes
    return many and not low <= own.median <= high and large >= _TIMES * small > 0


def numbers_of(data: Any, about: Any) -> dict[str, Any]:
    """Return the columns of numbers of a client that have names.

    Args:
        data: what the client has: a shard, a table, a frame, or a dict of columns.
        about: the description of the population, if it has one.
    """
    about = getattr(data, "about", about)
    if about is not None:
        x: Any = np.asarray(data["x"]) if about.features and "x" in data else np.zeros(0)
        if x.ndim != 2 or x.shape[1] != len(about.features) or x.shape[1] > MOST_COLUMNS or x.dtype.kind not in "fiu":
            return {}
        return {name: x[:, k] for k, name in enumerate(about.features) if name not in about.categories}
    columns = (
        getattr(data, "readable", data.columns)
        if hasattr(data, "iloc") or hasattr(data, "without")
        else data
        if isinstance(data, Mapping)
        else ()
    )
    rows = {str(name): np.asarray(data[name]) for name in columns}
    return {name: values for name, values in rows.items() if values.ndim == 1 and values.dtype.kind in "fiu"}


def scales_of(data: Any) -> tuple[int, ...]:
    """Return the scale of each feature of a site's data, from its first rows; nothing for data other than tables of numbers."""
    parts = [data] if hasattr(data, "row_bytes") else [data.shard(i) for i in range(min(len(data), _CLIENTS))]
    squares: Any = 0.0
    rows: Any = 0
    for part in parts:
        x: Any = np.asarray(part["x"][:_ROWS]) if "x" in part else np.zeros(0)
        if x.ndim != 2 or x.dtype.kind not in "fiub" or x.shape[1] > MOST_COLUMNS:
            return ()
        known = ~np.isnan(x) if x.dtype.kind == "f" else np.ones(x.shape, np.bool_)
        rows, x = rows + known.sum(axis=0), np.where(known, x, 0)
        squares = squares + np.einsum("ij,ij->j", x, x, dtype=np.float64, casting="unsafe")
    means = np.sqrt(np.atleast_1d(squares) / np.maximum(1, rows))
    return tuple(
        EMPTY if not mean > 0 or not math.isfinite(mean) else round(math.log10(mean)) for mean in means.tolist()
    )


def other_units(scales: Mapping[str, Sequence[int]], names: Sequence[str] = ()) -> list[str]:
    """Return in words which site is far off in which column; of two sites nobody can say which one it is.

    Args:
        scales: site -> its scales; nothing for a site that does not tell them.
        names: of the features.
    """
    told = {site: each for site, each in scales.items() if each}
    widths = {len(each) for each in told.values()}
    if len(told) < 2 or len(widths) != 1:
        return []
    found = []
    for at in range(widths.pop()):
        rows = {site: each[at] for site, each in told.items() if each[at] != EMPTY}
        name = f"column {names[at]!r}" if at < len(names) else f"feature {at + 1}"
        found += _off(rows, name)
    return found


def _off(rows: Mapping[str, int], column: str, who: str = "site") -> list[str]:
    if len(rows) == 2 and max(rows.values()) - min(rows.values()) > FAR:
        (one, low), (other, high) = sorted(rows.items(), key=lambda item: item[1])
        return [f"{column} is about 10^{high - low} times larger at {who} {other!r} than at {who} {one!r}"]
    if len(rows) < 3:
        return []
    middle = _median(list(rows.values()))
    return [
        f"{column} of {who} {site!r} is about 10^{abs(scale - middle):g} times {'larger' if scale > middle else 'smaller'} than the median of the {who}s'"
        for site, scale in rows.items()
        if abs(scale - middle) > FAR
    ]


def _median(values: Sequence[int]) -> float:
    return float(np.median(values))
