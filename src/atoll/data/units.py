"""Columns in other units: what a column's name says of its unit, and where its numbers lie.

A party that has grams where the others have tonnes sends updates of the right form, and the model never recovers. Two names that differ only in the unit between
brackets, such as ``age [years]`` and ``age [months]``, are refused. Without a unit in the name, numbers that are far off are named: the scale of a column is
``round(log10(RMS))``, with the root mean square of its values. A column is also named if its median lies outside nearly all values of the others and is at least twice or half
theirs, such as days in place of years. Between organisations a site tells that power of ten, and of a column with a name the median and two numbers between which nearly all values lie, each to half a
power of two, with at least its policy's ``min_count`` rows beyond either. A site keeps this to itself with ``scales: false``, and it does not leave for a job that promises privacy, because its ledger would
not count it. A fit whose server sees each site's sums, and so its means, asks for the same numbers; one whose reducer or noise hides single sites does not. A saved model has these numbers of its
training rows, with which new rows are compared.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.errors import DataError, MessageError
from atoll.core.requests.cohort import Community

from .missing import labelled_rows

__all__ = [
    "EMPTY",
    "FAR",
    "MOST_COLUMNS",
    "ColumnExtent",
    "compare_numbers",
    "extents_in",
    "extents_of",
    "measure_tables",
    "merge_extents",
    "name_far_rows",
    "name_other_units",
    "name_units_of_test",
    "numbers_of",
    "other_units",
    "require_one_unit",
    "tell_numbers",
]

_NAMED = re.compile(r"(.*\S)\s*(?:\[\s*(\S[^\]]*)\]|\(\s*(\S[^)]*)\))")
"""A name that ends with its unit between brackets."""

FAR = 2
"""Powers of ten that a column may lie from the median of the sites."""
MOST_COLUMNS = 100_000
_CLIENTS, _ROWS = 1000, 10_000  # looked at
_FEW, _SHOWN = 10, 5
"""Values of a column that a scale of a simulation's client needs, and sentences that a result has at most."""
_SIGNS = 4
"""Of the smallest and of the largest values of a column, how many may say that a value is missing."""
_TIMES = 2
"""How many times larger a median must be at least, if it lies outside nearly all other values."""
_MANY, _APART = 50, 0.99
"""Rows of a column that may number them, and the share of them with a value of their own."""
EMPTY = -1000
"""The scale of a column of zeros, which is not compared."""
_LARGEST = 400
"""A scale is below it, whatever the type of the numbers."""
_ZERO, _NUMBERS = 3000, 20_000_000
"""Where codes of numbers count from, and numbers of one site that are looked at."""


@dataclass(frozen=True)
class ColumnExtent:
    """Where the numbers of a column lie.

    Attributes:
        scale: ``round(log10(RMS))``, or `EMPTY`.
        low: nearly all values are at least this; a wrong one must not hide the others.
        high: nearly all values are at most this.
        median: of the values.
        many: whether there are more than two values, and enough rows; if not, the scale alone is known.
    """

    scale: int
    low: float = 0.0
    high: float = 0.0
    median: float = 0.0
    many: bool = False

    @classmethod
    def of(cls, known: Any, scale: int, least: int = 1) -> ColumnExtent:
        """Return the extent of the values of a column, ``(rows,)``, with at least so many of them below and above what it tells."""
        beyond, rows = max(1 + len(known) // 100, least), np.sort(known)
        if len(known) < max(_FEW, 2 * beyond + 1):
            return cls(scale)
        low, high, middle = float(rows[beyond]), float(rows[-1 - beyond]), float(np.median(rows))
        return cls(scale, low, high, middle, len(np.unique(rows)) > 2)

    def pack(self) -> list[int]:
        """Return the extent as whole numbers: the scale, and to half a power of two the others, of which ``low`` and ``high`` are not drawn in."""
        codes = [_code(self.low, math.floor), _code(self.high, math.ceil), _code(self.median, round)]
        return [self.scale, *(codes if self.many else ())]

    @classmethod
    def unpack(cls, numbers: Any) -> ColumnExtent:
        """Return the inverse of `pack`.

        Raises:
            ValueError: these are no such numbers.
        """
        given = list(numbers)
        if len(given) not in (1, 4) or any(type(n) is not int for n in given) or not EMPTY <= given[0] <= _LARGEST:
            raise ValueError(f"{given!r} is no extent of a column")
        if any(abs(n) > 2 * _ZERO for n in given[1:]):
            raise ValueError(f"{given!r} is no extent of a column")
        low, high, median = map(_number, given[1:] or (0, 0, 0))
        return cls(given[0], low, high, median, len(given) > 1)


def _code(value: float, rounded: Any) -> int:
    """A number to half a power of two: its sign, and above 0 where its power counts from."""
    if value == 0:
        return 0
    power = 2 * math.log2(abs(value))
    # Of a negative number, the lower one has the larger power.
    return int(rounded(power) + _ZERO if value > 0 else -(-rounded(-power) + _ZERO))


def _number(code: int) -> float:
    return 0.0 if code == 0 else math.copysign(2.0 ** min(1023.0, (abs(code) - _ZERO) / 2), code)


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
    found: dict[str, dict[str, ColumnExtent]] = {}
    for place, client in enumerate(population.names):
        for column, extent in _measure_columns(population.shard(place), about).items():
            found.setdefault(column, {})[str(client)] = extent
    held = {} if test is None else _measure_columns(test, about)
    told = []
    for column, rows in found.items():
        name = "the target" if column == _TARGET else f"column {column!r}"
        # Test rows may be the clients' own, and hold several units then.
        told += _name_far(rows, name) or (_name_far_test(rows, held[column], name) if column in held else [])
    return _name_infinite(population, about) + _shorten(told) + _name_numbering(population, about)


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
    """Say which columns, and targets of a regression, have infinite values, which count as missing, and numbers that may say so: -99 and 999, far from all other values."""
    found = []
    for place, client in enumerate(population.names):
        for column, values in _numbers_and_target(population.shard(place), about).items():
            name = "the target" if column == _TARGET else f"column {column!r}"
            many = int(np.isinf(values).sum()) if values.dtype.kind == "f" else 0
            if many:
                found.append(f"{name} has {many} infinite values at client {str(client)!r}: they count as missing")  # fmt: skip
            found += [_name_sign(name, value, times, f"client {str(client)!r}") for value, times in _find_signs(values)]
    return found[:_SHOWN]


def _name_numbering(population: Any, about: Any) -> list[str]:
    """Say which columns may number the rows although their names do not say so: whole numbers with the same digits, five or more, and another one in nearly every row.

    Amounts seldom are: among those of one size many repeat, or some have a digit more. Names that say it are refused where tables are read.
    """
    blocks: dict[str, list[Any]] = {}
    if about is None:
        return []  # of tables nobody knows here which column is the label
    for place in range(len(population)):
        for column, values in numbers_of(population.shard(place), about).items():
            blocks.setdefault(column, []).append(values)
    found = []
    for column, parts in blocks.items():
        known = np.concatenate(parts).astype(np.float64)
        known = np.abs(known[np.isfinite(known)])
        if len(known) < _MANY or known.min() < 1e4 or known.max() >= 2**53 or (known != np.rint(known)).any():
            continue
        low, high = (len(f"{number:.0f}") for number in (known.min(), known.max()))
        if low == high and len(np.unique(known)) >= _APART * len(known):
            found.append(f"column {column!r} has another whole number of {low} digits in nearly every row: if it names rows, leave it out, drop=[{column!r}] (--drop {column})")  # fmt: skip
    return found[:_SHOWN]


def _name_sign(column: str, value: float, times: int, owner: str) -> str:
    return f"{column} has {value:g} in {times} row{'s' * (times > 1)} of {owner}, unlike all other values: if it says that a value is missing, leave these cells empty"


def tell_numbers(columns: Mapping[str, Any], least: int = 1) -> dict[str, Any]:
    """Return what a site tells of columns of numbers: where they lie, and which numbers may say that a value is missing.

    Args:
        columns: name -> values, ``(rows,)``; those that are not finite do not count.
        least: the fewest rows below and above what is told, and with such a number.

    Returns:
        ``extents``: column -> `ColumnExtent.pack`; ``signs``: column -> pairs of a number and how many rows have it.
    """
    extents, signs = {}, {}
    for name, values in columns.items():
        known = np.asarray(values, np.float64)
        known = known[np.isfinite(known)]
        extent = _measure_numbers(known[:_ROWS], least)
        if extent is not None:
            extents[name] = extent.pack()
        found = [[value, times] for value, times in _find_signs(known) if times >= least]
        if found:
            signs[name] = found
    return {"extents": extents, "signs": signs}


def compare_numbers(told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say which site's columns may be in another unit, and which numbers may say that a value is missing.

    Args:
        told: site -> what it told; see `tell_numbers`.

    Raises:
        MessageError: a site sent something else.
    """
    extents = {site: extents_in(one.get("extents"), f"site {site!r}") for site, one in told.items()}
    found = []
    for site, one in told.items():
        for column, pairs in dict(one.get("signs") or {}).items():
            if not isinstance(column, str) or not all(
                isinstance(value, float) and type(times) is int for value, times in pairs
            ):
                raise MessageError(
                    "no numbers of columns", where=f"site {site!r}", remedy="use the same version of Atoll everywhere"
                )
            found += [_name_sign(f"column {column!r}", value, times, f"site {site!r}") for value, times in pairs]
    return _shorten(other_units(extents)) + found[:_SHOWN]


def extents_in(tree: Any, where: str) -> dict[str, ColumnExtent]:
    """Read what a site says of its columns.

    Raises:
        MessageError: they are not small whole numbers.
    """
    given = {} if tree is None else tree
    try:
        if (
            not isinstance(given, Mapping)
            or len(given) > MOST_COLUMNS
            or not all(isinstance(name, str) for name in given)
        ):
            raise ValueError(f"a {type(given).__name__}")
        return {name: ColumnExtent.unpack(numbers) for name, numbers in given.items()}
    except (TypeError, ValueError) as error:
        raise MessageError(
            "no extents of columns", where=where, remedy="use the same version of Atoll everywhere"
        ) from error


def _find_signs(values: Any) -> list[tuple[float, int]]:
    """Numbers such as -99 and 999, and in how many rows: farther from all that are no such numbers than these from each other, or in several rows the only ones below 0.

    One row is enough from three digits on. Of -1, the others must begin above 1: a scale may have a step below 0.
    """
    known, counts = np.unique(values[np.isfinite(values)], return_counts=True)
    signs = np.array([_may_say_missing(float(value)) for value in _ends(known)], bool)
    signs |= _ends(known) == -1
    places = _ends(np.arange(len(known)))[signs]
    others = np.delete(known, places)
    if len(others) < 2:
        return []
    low, high = float(others[0]), float(others[-1])
    found = [(float(known[k]), int(counts[k])) for k in places.tolist()]
    return [
        (value, times)
        for value, times in found
        if (times > 1 and _stands_apart(value, low, high))
        or (abs(value) > 100 and max(low - value, value - high) > high - low)
    ]


def _ends(values: Any) -> Any:
    """The few smallest and largest of sorted values: other values are no signs of missing ones."""
    return values if len(values) <= 2 * _SIGNS else np.concatenate([values[:_SIGNS], values[-_SIGNS:]])


def _may_say_missing(value: float) -> bool:
    digits = f"{abs(value):.17g}"
    return digits in ("9" * len(digits), "8" * len(digits)) and (len(digits) > 1 or value < 0)


_TARGET = "y"


def _measure_columns(data: Any, about: Any) -> dict[str, ColumnExtent]:
    """The extent of each column with enough values, and of the target of a regression."""
    found = {}
    for column, values in _numbers_and_target(data, about).items():
        extent = _measure_numbers(values[:_ROWS][np.isfinite(values[:_ROWS])].astype(np.float64))
        if extent is not None:
            found[column] = extent
    return found


def _measure_numbers(known: Any, least: int = 1) -> ColumnExtent | None:
    """The extent of finite numbers, ``(rows,)``; ``None`` for too few, and for zeros."""
    mean = float(np.sqrt(np.mean(known * known))) if len(known) >= max(_FEW, least) else 0.0
    return ColumnExtent.of(known, round(math.log10(mean)), least) if mean > 0 and math.isfinite(mean) else None


def _numbers_and_target(data: Any, about: Any) -> dict[str, Any]:
    """The columns of numbers, and of a data set the target of a regression."""
    about = getattr(data, "about", about)
    columns = numbers_of(data, about)
    if about is not None and about.task == "regression" and "y" in data and np.ndim(data["y"]) == 1:
        return {**columns, _TARGET: np.asarray(data["y"])[labelled_rows(data)]}
    return columns


def _name_far(rows: Mapping[str, ColumnExtent], column: str, who: str = "client") -> list[str]:
    """Say which client is far off in a column."""
    told = _off({client: extent.scale for client, extent in rows.items()}, column, who)
    if told or len(rows) < 2:
        return told
    for client, extent in rows.items():
        others = [other for name, other in rows.items() if name != client]
        if _lies_apart(extent, others) and (len(others) > 1 or _lies_apart(others[0], [extent])):
            low, high = min(other.low for other in others), max(other.high for other in others)
            told.append(f"{column} of {who} {client!r} lies around {extent.median:.4g}, and nearly all at the other {who}s between {low:.4g} and {high:.4g}")  # fmt: skip
            if len(rows) == 2:
                break
    return told


def _name_far_test(rows: Mapping[str, ColumnExtent], test: ColumnExtent, column: str, who: str = "client") -> list[str]:
    """Say that test rows are far off those of all clients."""
    told = _off({**{name: extent.scale for name, extent in rows.items()}, "test": test.scale}, column, who)
    if told or not _lies_apart(test, list(rows.values())):
        return told
    low, high = min(extent.low for extent in rows.values()), max(extent.high for extent in rows.values())
    return [f"{column} of the test rows lies around {test.median:.4g}, and nearly all at the {who}s between {low:.4g} and {high:.4g}"]  # fmt: skip


def _lies_apart(own: ColumnExtent, others: Sequence[ColumnExtent]) -> bool:
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


def extents_of(data: Any, least: int = 1) -> dict[str, ColumnExtent]:
    """Return the extent of each feature, from the first rows of each client; nothing for data other than tables of numbers.

    Of features without names (``x0``, ``x1``, ...) and of codes of text the scale alone.

    Args:
        data: `atoll.data.Islands`, or a data set.
        least: the fewest rows below and above what is told.
    """
    parts = [data] if hasattr(data, "row_bytes") else [data.shard(i) for i in range(min(len(data), _CLIENTS))]
    share, blocks = max(1, _ROWS // max(1, len(parts))), []
    for part in parts:
        x: Any = np.asarray(part["x"][:share]) if "x" in part else np.zeros(0)
        if x.ndim != 2 or x.dtype.kind not in "fiub" or x.shape[1] > MOST_COLUMNS:
            return {}
        blocks.append(x)
    if not blocks:
        return {}
    rows = np.concatenate(blocks)
    rows = rows[
        np.linspace(0, len(rows) - 1, min(len(rows), max(_FEW, _NUMBERS // max(1, rows.shape[1])))).astype(np.int64)
    ]
    known = ~np.isnan(rows) if rows.dtype.kind == "f" else np.ones(rows.shape, np.bool_)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = np.einsum("ij,ij->j", here := np.where(known, rows, 0), here, dtype=np.float64, casting="unsafe")
    means = np.sqrt(squares / np.maximum(1, known.sum(axis=0)))
    scales = [EMPTY if not mean > 0 or not math.isfinite(mean) else round(math.log10(mean)) for mean in means.tolist()]
    about = getattr(data, "about", None)
    if about is None or len(about.features) != len(scales):
        return {f"x{k}": ColumnExtent(scale) for k, scale in enumerate(scales)}
    found = {}
    for k, (name, scale) in enumerate(zip(about.features, scales, strict=True)):
        values = rows[known[:, k], k].astype(np.float64)
        told = name not in about.categories and scale != EMPTY
        found[name] = ColumnExtent.of(values, scale, least) if told else ColumnExtent(scale)
    return found


def measure_tables(tables: Sequence[Any], columns: Iterable[str]) -> dict[str, ColumnExtent]:
    """Return the extents of columns of numbers over all tables, from the first rows of each.

    Args:
        tables: they have these columns.
        columns: names.
    """
    share, found = max(1, _ROWS // max(1, len(tables))), {}
    for name in columns:
        parts = [np.asarray(table[name][:share]) for table in tables]
        if all(part.dtype.kind in "fiub" for part in parts):
            rows = np.concatenate(parts).astype(np.float64)
            found[name] = ColumnExtent.of(rows[np.isfinite(rows)], EMPTY)
    return found


def merge_extents(told: Iterable[Mapping[str, ColumnExtent]]) -> dict[str, ColumnExtent]:
    """Return the extent of each column over all parties that tell one."""
    found: dict[str, list[ColumnExtent]] = {}
    for each in told:
        for name, extent in each.items():
            if extent.many:
                found.setdefault(name, []).append(extent)
    return {
        name: ColumnExtent(
            max(one.scale for one in each), min(one.low for one in each), max(one.high for one in each), float(np.median([one.median for one in each])), True
        )
        for name, each in found.items()
    }  # fmt: skip


def name_far_rows(extents: Mapping[str, ColumnExtent], rows: Mapping[str, Any]) -> list[str]:
    """Return in words in which columns rows to predict lie outside nearly all rows of the training, by a factor of two or more, or have a number such as -99.

    Args:
        extents: of the training's columns.
        rows: column -> its numbers, ``(rows,)``.
    """
    told, signs = [], []
    for name, extent in extents.items():
        values = np.asarray(rows[name], np.float64) if name in rows else np.zeros(0)
        known = values[np.isfinite(values)]
        middle = float(np.median(known)) if len(known) else 0.0
        signs += [_name_sign(f"column {name!r}", *one, "those to predict") for one in _find_signs_beyond(known, extent)]
        if len(known) and _lies_apart(ColumnExtent(0, middle, middle, middle, True), [extent]):
            told.append(f"column {name!r} of the rows lies around {middle:.4g}, and nearly all that the model was trained on between about {extent.low:.2g} and {extent.high:.2g}")  # fmt: skip
    return _shorten(told) + signs[:_SHOWN]


def _find_signs_beyond(known: Any, extent: ColumnExtent) -> list[tuple[float, int]]:
    """Numbers such as -99 that lie beyond the rows of the training as `_find_signs` has it, and in how many rows; one row is enough."""
    found, counts = np.unique(known, return_counts=True)
    return [
        (value, times)
        for value, times in zip(found.tolist(), counts.tolist(), strict=True)
        if extent.many and (value == -1 or _may_say_missing(value)) and _stands_apart(value, extent.low, extent.high)
    ]


def _stands_apart(value: float, low: float, high: float) -> bool:
    """Whether a number is farther from others than these from each other, or below 0 where they are not."""
    return max(low - value, value - high) > high - low or (value < 0 and (low > 1 if value == -1 else low >= 0))


def other_units(sites: Mapping[str, Mapping[str, ColumnExtent]], *, fine: bool = True) -> list[str]:
    """Return in words which site is far off in which column; of two sites nobody can say which one it is.

    Args:
        sites: site -> the extents of its columns; none for a site that does not tell them.
        fine: whether a factor of two may be enough, which sites with other people may have too; if not, it takes powers of ten.
    """
    found: dict[str, dict[str, ColumnExtent]] = {}
    for site, columns in sites.items():
        for column, extent in columns.items():
            if extent.scale != EMPTY:
                found.setdefault(column, {})[site] = extent
    look = (
        _name_far
        if fine
        else lambda rows, column, who: _off({site: one.scale for site, one in rows.items()}, column, who)
    )
    return [words for column, rows in found.items() for words in look(rows, f"column {column!r}", "site")]


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
