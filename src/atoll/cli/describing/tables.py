"""Statistics as tables of a terminal."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.markup import escape

from atoll.cli.output import PlainTable

__all__ = ["tables_of_summary"]


def tables_of_summary(summary: Any, error: float | None) -> Group:
    """All rows, then drift and what is withheld."""
    shown: list[Any] = [_numbers(summary), *_categories(summary), *_drift(summary)]
    if error is not None:
        shown.append(f"Largest error against pooled rows: {error:.3g}")
    shown += [f"[dim]{escape(name)}: {escape(text)}[/dim]" for name, text in summary.errors.items()]
    if summary.withheld:
        shown.append(f"Withheld: {len(summary.withheld)}")
        shown += [f"  {escape(line)}" for line in summary.withheld[:20]]
        if len(summary.withheld) > 20:
            shown.append(f"  and {len(summary.withheld) - 20} more: see --json")
    return Group(*shown)


def _numbers(summary: Any) -> PlainTable:
    table = PlainTable(header_style="bold")
    shares = next((list(one.quantiles) for one in summary.whole.values() if one.quantiles), [])
    for name in ("column", "count", "missing", "mean", "std", "min", *[f"q{share:g}" for share in shares], "max"):
        table.add_column(name, justify="left" if name == "column" else "right")
    for name, one in summary.whole.items():
        if one.kind == "number":
            inner = [_shown((one.quantiles or {}).get(share)) for share in shares]
            ends = [_shown(one.min), *inner, _shown(one.max)]
            table.add_row(escape(name), f"{one.count:,}", _shown(one.missing), _shown(one.mean), _shown(one.std), *ends)
    return table


def _categories(summary: Any) -> list[PlainTable]:
    table = PlainTable(header_style="bold")
    for name in ("column", "count", "missing", "values"):
        table.add_column(name, justify="right" if name in ("count", "missing") else "left")
    rows = [(name, one) for name, one in summary.whole.items() if one.kind != "number"]
    for name, one in rows:
        top = sorted((one.values or {}).items(), key=lambda pair: (-pair[1], pair[0]))
        text = ", ".join(f"{value} {count:,}" for value, count in top[:6]) + (", …" if len(top) > 6 else "")
        table.add_row(escape(name), f"{one.count:,}", _shown(one.missing), escape(text))
    return [table] if rows else []


def _drift(summary: Any) -> list[PlainTable]:
    table = PlainTable(header_style="bold")
    for name in ("site", "column", "PSI", "KS", "JS", "drift"):
        table.add_column(name, justify="right" if name in ("PSI", "KS", "JS") else "left")
    for site, columns in summary.drift.items():
        for name, one in columns.items():
            table.add_row(escape(site), escape(name), _shown(one.psi), _shown(one.ks), _shown(one.js), one.verdict)
    return [table] if summary.drift else []


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
