"""The page of statistics: tables and pictures as plain data, which the report draws (`atoll.report.page`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .aggregates.drift import largest
from .summary import ColumnSummary, RowsSummary, Summary

__all__ = ["sections_of"]

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
        _said(summary),
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
        [site, column, _shown(one.psi), _shown(one.ks), _shown(one.js), one.verdict] for site, column, one in ranked
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


def _said(summary: Summary) -> Section:
    rows = [["withheld", line] for line in summary.withheld]
    rows += [[f"error of {name}", text] for name, text in summary.errors.items()]
    rows += [[name, _shown(value)] for name, value in (summary.privacy or {}).items()]
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
        inner = [_shown((one.quantiles or {}).get(share)) for share in shares]
        told = [_shown(value) for value in (one.count, one.missing, one.mean, one.std, one.skewness, one.min)]
        values = ", ".join(f"{label} {count:,}" for label, count in list((one.values or {}).items())[:_TOP])
        rows.append([name, *told, *inner, _shown(one.max), values])
    return {"head": head, "rows": rows}


def _shown(value: Any) -> str:
    if value is None or value != value:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.7g}" if isinstance(value, float) else str(value)
