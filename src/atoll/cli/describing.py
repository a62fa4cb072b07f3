"""Statistics on the command line: words that become settings, tables of a summary, and what the pooled rows say."""

from __future__ import annotations

import math
import re
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.markup import escape

from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError, nearest
from atoll.core.redaction import private
from atoll.data import DataTable
from atoll.data.readers._words import MISSING, hold_moments, read_truths
from atoll.data.readers.tables import name_files
from atoll.statistics.columns import columns_of
from atoll.statistics.plan import rows_where
from atoll.statistics.summary import ColumnSummary, format_number

__all__ = [
    "conditions_of",
    "dropped_of",
    "lists_of",
    "max_error",
    "ranges_of",
    "shares_of",
    "tables_of",
    "tables_of_summary",
    "words_of",
]


# The words of ``atoll stats`` as settings of the job.


_VALUES = 12
"""Values that an error lists."""
_CONDITION = re.compile(r"\s*(.+?)\s*(==|!=|<=|>=|<|>)\s*(.+?)\s*")


def tables_of(files: Sequence[Path], **options: Any) -> dict[str, DataTable]:
    """One table a site, named as `atoll.data.readers.tables.name_files` says.

    Raises:
        DataError: a file is not there, is given twice, or cannot be read.
    """
    return {name: DataTable.read(file, **options).named(str(file)) for name, file in name_files(files).items()}


def warn_of_likely_keys(tables: Mapping[str, Any], columns: Sequence[str], key: Any) -> list[Any]:
    """Warn of keys of all files that differ in capitals or zeros alone, as no party could; return the keys of each.

    Raises:
        DataError: a column is unknown, or holds two texts of one number and ``key`` does not say what they are.
    """
    from atoll.secure.psi import RowKeys

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the roles warn of their own
        keys = [RowKeys.of(one, columns, key=key, where=f"table of {name!r}") for name, one in tables.items()]
    both = " and ".join(tables)
    plain = set.intersection(*(set(one.names) for one in keys))
    folds = {"capitals": str.casefold, "zeros, as in 007 and 7, or 7.0 and 7": _without_zeros}
    for what, fold in folds.items():
        rows = [{fold(name): row + one.row_offset for name, row in zip(one.names, one.places.tolist(), strict=True)} for one in keys]  # fmt: skip
        apart = set.intersection(*(set(row) for row in rows)) - {fold(name) for name in plain}
        if apart:
            first = min(apart, key=rows[0].__getitem__)
            at = " and ".join(f"row {row[first]} of {name}" for name, row in zip(tables, rows, strict=True))
            many = f"1 key of {both} differs" if len(apart) == 1 else f"{len(apart)} keys of {both} differ"
            warnings.warn(f"{many} in {what} alone, first in {at}; they are different keys", UserWarning, stacklevel=2)
    return keys


def _without_zeros(key: str) -> str:
    """A key of digits as programs write it that took it for a number: without zeros before it, and without ``.0``."""
    digits = key.removesuffix(".0")
    return (digits.lstrip("0") or "0") if digits.isdecimal() else key


def words_of(text: str | None) -> list[str]:
    """``a,b`` as a list."""
    return [word.strip() for word in text.split(",") if word.strip()] if text else []


def dropped_of(given: str | Sequence[str] | None) -> list[str]:
    """``a,b``, or several such texts, as names of columns to leave out; ``''``, and a comma in front, name a column without a name, such as the index of a frame."""
    texts = [given] if isinstance(given, str) else given or ()
    return [name for text in texts for name in ([] if text.split(",")[0].strip() else [""]) + words_of(text)]


def shares_of(text: str | None) -> list[float]:
    """``0.25,0.5`` as numbers.

    Raises:
        ConfigError: a word is no number.
    """
    return [
        _parse_number(word, "--quantiles", "give shares from 0 to 1, such as 0.25,0.5,0.75") for word in words_of(text)
    ]


def ranges_of(texts: Sequence[str]) -> dict[str, list[float]]:
    """``age=0:120`` as a mapping.

    Raises:
        ConfigError: it is written otherwise.
    """
    found = {}
    for text in texts:
        column, _, ends = text.rpartition("=")
        low, colon, high = ends.partition(":")
        if not column or not colon:
            raise ConfigError(f"--range {text}", remedy="write COLUMN=LOW:HIGH, such as age=0:120")
        found[column] = [_parse_number(end, f"--range {text}", "write COLUMN=LOW:HIGH") for end in (low, high)]
    return found


def lists_of(texts: Sequence[str]) -> dict[str, list[str]]:
    """``ward=surgery,internal`` as a mapping.

    Raises:
        ConfigError: it is written otherwise.
    """
    found = {}
    for text in texts:
        column, equals, values = text.partition("=")
        if not equals or not words_of(values):
            raise ConfigError(f"--categories {text}", remedy="write COLUMN=VALUE,VALUE, such as ward=surgery,internal")
        found[column.strip()] = words_of(values)
    return found


def conditions_of(texts: Sequence[str], tables: Mapping[str, DataTable]) -> list[list[Any]]:
    """``age >= 18`` as conditions; a value is a number where the column of the first file that has it holds numbers, and text may stand between quotes.

    Raises:
        ConfigError: it is written otherwise, or no site has a text that must be equal.
    """
    found: list[list[Any]] = []
    for text in texts:
        match = _CONDITION.fullmatch(text)
        if match is None:
            raise ConfigError(f"--where {text!r}", remedy="write a condition such as 'age >= 18' or 'ward == surgery'")
        column, sign, value = match.groups()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        full = [t[column] for t in tables.values() if column in t and not t.missing(column).all()]
        truths = all(values.dtype.kind == "b" or read_truths(values) is not None for values in full)
        if full and truths and value.lower() in ("true", "false"):
            found.append([column, sign, value])
            continue
        numeric = bool(full) and full[0].dtype.kind in "biuf"
        if not numeric and sign in ("==", "!="):
            _require_known(value, column, text, tables)
        found.append(
            [column, sign, _parse_number(value, f"--where {text!r}", "compare it with a number") if numeric else value]
        )
    return found


def _require_known(value: str, column: str, text: str, tables: Mapping[str, DataTable]) -> None:
    """Refuse a text that no site has: the answer would be about no row, or about all."""
    texts = [np.unique(t[column].astype(np.str_)).tolist() for t in tables.values() if column in t]
    known = sorted({word for words in texts for word in words} - set(MISSING))
    if texts and value not in known:
        shown = ", ".join(map(private, known[:_VALUES])) + (", …" if len(known) > _VALUES else "")
        raise ConfigError(
            f"--where {text!r}: no site has {value!r} in column {column!r}.{nearest(value, known)}",
            remedy=f"the values are {shown}",
        )


def _parse_number(word: str, where: str, remedy: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"{where}: {word!r} is not a number", remedy=remedy) from None


# Statistics as tables of a terminal.


def tables_of_summary(summary: Any, error: float | None, tables: Mapping[str, DataTable] | None = None) -> Group:
    """All rows, groups and periods, histograms, correlations, then drift and what is withheld.

    Args:
        summary: the result.
        error: the largest error against pooled rows.
        tables: the sites' tables, which say what are moments.
    """
    moments = {name for table in (tables or {}).values() for name in table.readable if hold_moments(table[name])}
    shown: list[Any] = [_table_numbers(summary.whole, moments), *_table_categories(summary.whole)]
    for family, parts in summary.groups.items():
        shown += ["", f"[bold]By {escape(family)}[/bold]"]
        names = dict.fromkeys(name for part in parts.values() for name in part)
        rows = {f"{name}, {label}": part[name] for name in names for label, part in parts.items() if name in part}
        of = {key: name for name in names for key in rows if key.startswith(f"{name}, ")}
        shown += [_table_numbers(rows, {key for key, name in of.items() if name in moments}), *_table_categories(rows)]
    shown += [*_table_bins(summary, moments), *_table_correlations(summary), *_table_drift(summary)]
    if error is not None:
        shown.append(f"Largest error against pooled rows: {error:.3g}")
    shown += [f"[dim]{escape(name)}: {escape(text)}[/dim]" for name, text in summary.errors.items()]
    if summary.withheld:
        shown.append(f"Withheld: {len(summary.withheld)}")
        shown += [f"  {escape(line)}" for line in summary.withheld[:20]]
        if len(summary.withheld) > 20:
            shown.append(f"  and {len(summary.withheld) - 20} more: see --json")
    return Group(*shown)


def _table_numbers(columns: Mapping[str, Any], moments: Collection[str] = ()) -> PlainTable:
    table = PlainTable(header_style="bold")
    shares = next((list(one.quantiles) for one in columns.values() if one.quantiles), [])
    for name in ("column", "count", "missing", "mean", "std", "min", *[f"q{share:g}" for share in shares], "max"):
        table.add_column(name, justify="left" if name == "column" else "right")
    for name, one in columns.items():
        if one.kind == "number":
            inner = [(one.quantiles or {}).get(share) for share in shares]
            cells = [_cell(value, one.std, name in moments) for value in (one.mean, one.min, *inner, one.max)]
            std = (
                "-"
                if one.std is None or one.std != one.std
                else f"{one.std / _DAY:.5g} days"
                if name in moments
                else f"{one.std:.5g}"
            )
            table.add_row(escape(name), f"{one.count:,}", _format_value(one.missing), cells[0], std, *cells[1:])
    return table


_DAY = 86400.0


def _cell(value: float | None, std: float | None, moment: bool) -> str:
    """A number of a column, or a moment as a date."""
    if moment and value is not None and math.isfinite(value):
        return str(np.datetime64(round(value), "s").astype("datetime64[m]" if value % _DAY else "datetime64[D]"))
    return format_number(value, std)


def _table_bins(summary: Any, moments: Collection[str]) -> list[Any]:
    """The counts of each histogram, of all rows."""
    shown: list[Any] = []
    for name, one in summary.whole.items():
        if one.histogram is not None:
            edges = [_cell(edge, one.std, name in moments) for edge in one.histogram.edges.tolist()]
            counts = one.histogram.counts.tolist()
            table = PlainTable(header_style="bold")
            table.add_column(escape(name))
            table.add_column("rows", justify="right")
            table.add_column("")
            for low, high, count in zip(edges, edges[1:], counts, strict=False):
                table.add_row(f"{low} to {high}", f"{count:,}", "█" * round(24 * count / max(1, *counts)))
            shown += ["", table]
    return shown


def _table_correlations(summary: Any) -> list[Any]:
    if summary.correlations is None:
        return []
    names, matrix = summary.correlations
    table = PlainTable(header_style="bold")
    table.add_column("correlation")
    for name in names:
        table.add_column(escape(name), justify="right")
    for name, row in zip(names, matrix.tolist(), strict=True):
        table.add_row(escape(name), *("-" if value != value else f"{value:.3f}" for value in row))
    return ["", table]


def _table_categories(columns: Mapping[str, Any]) -> list[PlainTable]:
    table = PlainTable(header_style="bold")
    for name in ("column", "count", "missing", "values"):
        table.add_column(name, justify="right" if name in ("count", "missing") else "left")
    rows = [(name, one) for name, one in columns.items() if one.kind != "number"]
    for name, one in rows:
        top = sorted((one.values or {}).items(), key=lambda pair: (-pair[1], pair[0]))
        text = ", ".join(f"{value} {count:,}" for value, count in top[:6]) + (", …" if len(top) > 6 else "")
        table.add_row(escape(name), f"{one.count:,}", _format_value(one.missing), escape(text))
    return [table] if rows else []


def _table_drift(summary: Any) -> list[PlainTable]:
    table = PlainTable(header_style="bold")
    for name in ("site", "column", "PSI", "KS", "JS", "drift"):
        table.add_column(name, justify="right" if name in ("PSI", "KS", "JS") else "left")
    for site, columns in summary.drift.items():
        for name, one in columns.items():
            table.add_row(
                escape(site),
                escape(name),
                _format_value(one.psi),
                _format_value(one.ks),
                _format_value(one.js),
                one.verdict,
            )
    return [table] if summary.drift else []


def _format_value(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"


# The comparison of federated statistics with those of all rows in one place, which this machine has.


_MOMENTS = ("mean", "std", "variance", "sum", "min", "max")


def max_error(summary: Any, tables: Mapping[str, DataTable], where: Sequence[Any]) -> float | None:
    """The largest error of a moment, ``|found - pooled| / max(1, |pooled|)``; ``None`` if nothing can be compared.

    A column is compared with the rows of the sites that told it: what a site withholds is in no sum.

    Args:
        summary: the federated result.
        tables: the sites' tables.
        where: conditions that every row meets.
    """
    errors: list[float] = []
    for name, found in summary.whole.items():
        if found.kind != "number":
            continue
        parts = [
            _values_where(table, name, where)
            for site, table in tables.items()
            if name in table and (not summary.sites or name in summary.sites[site])
        ]
        if parts and sum(map(len, parts)):
            errors += _errors_of_column(found, np.concatenate(parts))
    return max(errors, default=None)


def _values_where(table: DataTable, name: str, where: Sequence[Any]) -> Any:
    values = columns_of(table, [name])[name].numbers(rows_where(table, where)).astype(np.float64)
    return values[np.isfinite(values)]


def _errors_of_column(found: ColumnSummary, x: Any) -> list[float]:
    pooled = {"mean": x.mean(), "std": x.std(), "variance": x.var(), "sum": x.sum(), "min": x.min(), "max": x.max()}
    pairs = [(getattr(found, name), float(pooled[name])) for name in _MOMENTS]
    made = [abs(one - other) / max(1.0, abs(other)) for one, other in pairs if one is not None]
    return [*made, abs(found.count - len(x)) / len(x)]
