"""The result of statistics: what people read, and the page of it as plain data, which the report draws (`atoll.report.page`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.errors import ConfigError, nearest

from .histogram import Drift, largest

__all__ = ["BinCounts", "ColumnSummary", "RowsSummary", "Summary", "format_number", "sections_of"]


@dataclass(frozen=True)
class BinCounts:
    """Counts over bins.

    Attributes:
        edges: ``(bins + 1,)``.
        counts: ``(bins,)``; 0 where a count is withheld.
        withheld: number of withheld bins, over all sites.
    """

    edges: NDArray[np.float64]
    counts: NDArray[np.int64]
    withheld: int = 0


@dataclass(frozen=True, kw_only=True)
class ColumnSummary:
    """One column over some rows; what is withheld or not asked for is ``None``.

    Attributes:
        kind: ``"number"``, ``"category"`` or ``"words"``.
        count: values that are there.
        missing: values that are not.
        sum: of the values.
        mean: of the values.
        std: standard deviation of these values, ``sqrt(sum (x - mean)^2 / n)``.
        sample_std: that of the population they are a sample of, with ``n - 1``.
        variance: ``std^2``.
        skewness: ``sqrt(n) M_3 / M_2^1.5``.
        min: the smallest value.
        max: the largest value.
        quantiles: by share.
        histogram: over common bins.
        values: how many rows have each category or word.
    """

    kind: str
    count: int
    missing: int | None = None
    sum: float | None = None
    mean: float | None = None
    std: float | None = None
    sample_std: float | None = None
    variance: float | None = None
    skewness: float | None = None
    min: float | None = None
    max: float | None = None
    quantiles: Mapping[float, float] | None = None
    histogram: BinCounts | None = None
    values: Mapping[str, int] | None = None

    def plain(self) -> dict[str, Any]:
        """The description as JSON has it; ``null`` for what is not a number."""
        made: dict[str, Any] = {"kind": self.kind, "count": self.count, "missing": self.missing}
        if self.kind == "number":
            names = ("sum", "mean", "std", "sample_std", "variance", "skewness", "min", "max")
            made |= {name: _finite(getattr(self, name)) for name in names}
        if self.histogram is not None:
            edges, counts = self.histogram.edges.tolist(), self.histogram.counts.tolist()
            made["histogram"] = {"edges": edges, "counts": counts, "withheld": self.histogram.withheld}
        if self.quantiles is not None:
            made["quantiles"] = {f"{share:g}": _finite(value) for share, value in self.quantiles.items()}
        if self.values is not None:
            made["values"] = dict(self.values)
        return made


@dataclass(frozen=True)
class RowsSummary(Mapping[str, ColumnSummary]):
    """Descriptions of the columns of some rows, by name.

    Attributes:
        rows: number of rows; ``None`` if it is private.
        columns: the columns.
    """

    rows: int | None
    columns: Mapping[str, ColumnSummary] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ColumnSummary:
        if name not in self.columns:
            raise ConfigError(
                f"{name!r} is not described.{nearest(name, self.columns)}",
                where="Summary",
                remedy=f"use one of {', '.join(self.columns)}",
            )
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)

    def __len__(self) -> int:
        return len(self.columns)

    def __contains__(self, name: object) -> bool:
        return name in self.columns

    def plain(self) -> dict[str, Any]:
        """TableColumn -> description, as JSON has it."""
        return {name: column.plain() for name, column in self.columns.items()}


@dataclass(frozen=True, kw_only=True)
class Summary:
    """The result of `Statistics`.

    Attributes:
        whole: all rows of all sites.
        sites: each site's own rows, where single replies may be seen.
        groups: of each dividing column, each group or period over all sites.
        correlations: names of columns, and their matrix of Pearson's correlations.
        drift: site -> column -> how far it is from all sites.
        withheld: what is not told, and why, in words.
        errors: what is not exact: name of the statistic -> its error, in words.
        privacy: unit, neighbours, epsilon and noise, if noise was added.
        contacts: how often each site was asked.
    """

    whole: RowsSummary
    sites: Mapping[str, RowsSummary] = field(default_factory=dict)
    groups: Mapping[str, Mapping[str, RowsSummary]] = field(default_factory=dict)
    correlations: tuple[Sequence[str], NDArray[np.float64]] | None = None
    drift: Mapping[str, Mapping[str, Drift]] = field(default_factory=dict)
    withheld: Sequence[str] = ()
    errors: Mapping[str, str] = field(default_factory=dict)
    privacy: Mapping[str, Any] | None = None
    contacts: int = 0

    @property
    def rows(self) -> int | None:
        """Number of rows of all sites."""
        return self.whole.rows

    def __getitem__(self, column: str) -> ColumnSummary:
        """A column over all rows.

        Raises:
            ConfigError: it is not described.
        """
        return self.whole[column]

    def array(self, statistic: str, columns: Sequence[str]) -> NDArray[np.float64]:
        """One statistic of several columns over all rows, ``(columns,)``: ``summary.array("mean", features)``.

        Raises:
            ConfigError: a column is not described, or not a column of numbers.
        """
        found = [getattr(self.whole[name], statistic) for name in columns]
        for name, value in zip(columns, found, strict=True):
            if value is None:
                raise ConfigError(f"{name!r} has no {statistic}", where="Summary", remedy="see `summary.withheld`")
        return np.array(found, dtype=np.float64)

    def plain(self) -> dict[str, Any]:
        """The whole result as JSON has it."""
        made: dict[str, Any] = {
            "rows": self.rows,
            "sites": {name: part.plain() for name, part in self.sites.items()},
            "global": self.whole.plain(),
            "withheld": list(self.withheld),
        }
        if self.groups:
            made["groups"] = {
                family: {label: {"rows": part.rows, "columns": part.plain()} for label, part in parts.items()}
                for family, parts in self.groups.items()
            }
        if self.correlations is not None:
            names, matrix = self.correlations
            made["correlations"] = {
                "columns": list(names),
                "matrix": [[_finite(r) for r in row] for row in matrix.tolist()],
            }
        if self.drift:
            made["drift"] = {
                site: {name: one.plain() for name, one in columns.items()} for site, columns in self.drift.items()
            }
        made["errors"] = dict(self.errors)
        if self.privacy is not None:
            made["privacy"] = dict(self.privacy)
        return made


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


# ---------------------------------------------------------------- the page of statistics

_PICTURES = 24
"""Most pictures of one kind."""
_TOP = 12
"""Most categories of a picture."""

Section = dict[str, Any]


def sections_of(summary: Summary) -> list[Section]:
    """The sections of the page, those that have something to say."""
    made = [
        _whole(summary),
        _sites(summary),
        _drift(summary),
        *(_family(name, parts) for name, parts in summary.groups.items()),
        _correlations(summary),
        _make_section(summary),
    ]
    found = [section for section in made if section.get("tables") or section.get("figures")]
    if found:
        found[0]["tiles"] = _tiles(summary)
    return found


def _tiles(summary: Summary) -> list[list[str]]:
    """Headline numbers: rows, columns, the largest drift, and how much is withheld."""
    empty = sum(one.missing or 0 for one in summary.whole.values())
    tiles = [
        ["rows", "private" if summary.rows is None else f"{summary.rows:,}", f"of {len(summary.sites) or 'all'} sites"],
        ["columns", f"{len(summary.whole):,}", f"{empty:,} cells are missing" if empty else ""],
    ]
    ranked = largest(summary.drift)
    if ranked:
        site, column, one = ranked[0]
        tiles.append(["largest drift", one.verdict, f"{column} at {site}"])
    if summary.withheld:
        tiles.append(["withheld", f"{len(summary.withheld):,}", "see What to know"])
    return tiles


def _whole(summary: Summary) -> Section:
    figures = [_picture(name, one) for name, one in summary.whole.items()]
    kept = [figure for figure in figures if figure is not None]
    return {
        "title": "All sites",
        "text": f"{summary.rows:,} rows." if summary.rows is not None else "The number of rows is private.",
        "tables": [_numbers([(name, one) for name, one in summary.whole.items()], "column")],
        "figures": kept[:_PICTURES],
    }


def _picture(name: str, one: ColumnSummary) -> dict[str, Any] | None:
    if one.histogram is not None:
        edges = one.histogram.edges.tolist()
        return {
            "name": name,
            "kind": "histogram",
            "edges": edges,
            "series": [{"name": "rows", "values": one.histogram.counts.tolist()}],
        }
    if one.values:
        top = sorted(one.values.items(), key=lambda pair: (-pair[1], pair[0]))[:_TOP]
        return {
            "name": name,
            "kind": "bars",
            "labels": [label for label, _ in top],
            "series": [{"name": "rows", "values": [n for _, n in top]}],
        }
    return None


def _sites(summary: Summary) -> Section:
    rows = [
        (f"{name}, {site}", part[name])
        for name in summary.whole
        for site, part in summary.sites.items()
        if name in part
    ]
    return {"title": "Each site", "tables": [_numbers(rows, "column, site")] if rows else []}


def _drift(summary: Summary) -> Section:
    ranked = largest(summary.drift)
    figures = [
        {
            "name": f"{column} at {site}: {one.verdict} (PSI {one.psi:.3g})",
            "kind": "bars",
            "labels": list(one.labels),
            "series": [
                {"name": site, "values": one.site.tolist()},
                {"name": "all sites", "values": one.whole.tolist()},
            ],
        }
        for site, column, one in ranked[:_PICTURES]
    ]
    head = ["site", "column", "PSI", "Kolmogorov-Smirnov", "Jensen-Shannon", "drift"]
    rows = [
        [site, column, _format_value(one.psi), _format_value(one.ks), _format_value(one.js), one.verdict]
        for site, column, one in ranked
    ]
    return {
        "title": "Drift",
        "text": "How far the distribution at a site is from that of all sites, the farthest first. A PSI below 0.1 is stable, above 0.25 large.",
        "tables": [{"head": head, "rows": rows}] if rows else [],
        "figures": figures,
    }


def _family(family: str, parts: Mapping[str, RowsSummary]) -> Section:
    rows = [(f"{name}, {label}", part[name]) for label, part in parts.items() for name in part]
    rows.sort(key=lambda row: row[0].rpartition(", ")[0])
    names = dict.fromkeys(name for part in parts.values() for name in part)
    figures = []
    for name in names:
        told = [
            (label, part[name].mean) for label, part in parts.items() if name in part and part[name].mean is not None
        ]
        if len(told) > 1:
            labels, means = [label for label, _ in told], [mean for _, mean in told]
            figures.append(
                {
                    "name": f"mean of {name} by {family}",
                    "kind": "points",
                    "labels": labels,
                    "series": [{"name": "mean", "values": means}],
                }
            )
    return {
        "title": f"By {family}",
        "tables": [_numbers(rows, f"column, {family}")] if rows else [],
        "figures": figures[:_PICTURES],
    }


def _correlations(summary: Summary) -> Section:
    if summary.correlations is None:
        return {}
    names, matrix = summary.correlations
    figure = {"name": "correlations", "kind": "matrix", "labels": list(names), "values": matrix.tolist()}
    return {"title": "Correlations", "tables": [], "figures": [figure]}


def _make_section(summary: Summary) -> Section:
    rows = [["withheld", line] for line in summary.withheld]
    rows += [[f"error of {name}", text] for name, text in summary.errors.items()]
    rows += [[name, _format_value(value)] for name, value in (summary.privacy or {}).items()]
    return {"title": "What to know", "tables": [{"head": ["", ""], "rows": rows}] if rows else []}


def _numbers(columns: Sequence[tuple[str, ColumnSummary]], first: str) -> dict[str, Any]:
    shares = next((list(one.quantiles) for _, one in columns if one.quantiles), [])
    head = [
        first,
        "count",
        "missing",
        "mean",
        "std",
        "skewness",
        "min",
        *[f"q {share:g}" for share in shares],
        "max",
        "values",
    ]
    rows = []
    for name, one in columns:
        inner = [format_number((one.quantiles or {}).get(share), one.std) for share in shares]
        counts = [_format_value(value) for value in (one.count, one.missing)]
        told = [
            *counts,
            format_number(one.mean, one.std),
            _format_value(one.std),
            _format_value(one.skewness),
            format_number(one.min, one.std),
        ]
        values = ", ".join(f"{label} {count:,}" for label, count in list((one.values or {}).items())[:_TOP])
        rows.append([name, *told, *inner, format_number(one.max, one.std), values])
    return {"head": head, "rows": rows}


def format_number(value: float | None, std: float | None, digits: int = 5) -> str:
    """Return a number of a column with enough digits to tell it from others a deviation away: 100,000,012.3 and not 1e+08.

    Args:
        value: the number.
        std: the column's standard deviation.
        digits: significant digits, where these are enough.
    """
    if value is None or not math.isfinite(value):
        return "-"
    if std and math.isfinite(std) and abs(value) > std:
        digits = min(15, max(digits, math.ceil(math.log10(abs(value) / std)) + 3))
    text = f"{value:.{digits}g}"
    return f"{float(text):,.{max(0, digits - 1 - math.floor(math.log10(abs(value))))}f}" if digits > 7 else text


def _format_value(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}" if isinstance(value, float) else str(value)
