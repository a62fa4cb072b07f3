"""Groups of runs on paper: a plot with a band for each group, and a table as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.extras import need

if TYPE_CHECKING:
    from .groups import Difference, Group

__all__ = ["draw_bands", "plot_bands", "shown_difference", "shown_mean", "text_of"]


def plot_bands(groups: Sequence[Group], metric: str, axes: Any = None) -> Any:
    """Draw a metric by round: a line for the mean of each group, and a band of one standard deviation around it.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    if axes is None:
        axes = need("matplotlib.pyplot", "report", "a plot", where="atoll.report").subplots()[1]
    draw_bands(axes, groups, metric)
    axes.set_ylabel(metric)
    return axes


def draw_bands(axes: Any, groups: Sequence[Group], metric: str, colours: Sequence[str] | None = None) -> None:
    """Draw into axes."""
    for i, group in enumerate(groups):
        band = group.band(metric)
        if not band:
            continue
        rounds, means = [at for at, _, _ in band], [mean for _, mean, _ in band]
        own = {} if colours is None else {"color": colours[i % len(colours)]}
        (line,) = axes.plot(rounds, means, label=f"{group.label} ({len(group.runs)} runs)", **own)
        low, high = [m - sd for _, m, sd in band], [m + sd for _, m, sd in band]
        axes.fill_between(rounds, low, high, alpha=0.2, color=line.get_color(), linewidth=0)
    axes.set_xlabel("round")
    axes.legend(loc="best", fontsize=8.5)


def shown_mean(row: Mapping[str, Any]) -> str:
    """A mean with its standard deviation."""
    if row["mean"] is None:
        return "none"
    return f"{row['mean']:.4g}" + ("" if row["sd"] is None else f" ± {row['sd']:.2g}")


def shown_difference(one: Difference) -> str:
    """A difference with its interval and its test."""
    if one.mean is None:
        return "unknown"
    interval = "" if one.low is None or one.high is None else f" [{one.low:+.3g}, {one.high:+.3g}]"
    p = "" if one.p is None else f", p = {one.p:.2g} ({one.test}, {one.n} seeds)"
    return f"{one.mean:+.4g}{interval}{p}"


def text_of(rows: Sequence[Mapping[str, Any]], found: Sequence[Difference]) -> str:
    """The table as text."""
    metric = rows[0]["metric"] if rows else ""
    against = {one.group: shown_difference(one) for one in found}
    head = (
        "variant",
        f"{metric}, mean ± sd",
        "runs",
        f"difference from {rows[0]['group']} (95 % interval)" if found else "",
    )
    lines = [head]
    for row in rows:
        runs = f"{row['finished']}" + (f" ({len(row['failed'])} failed)" if row["failed"] else "")
        lines.append((row["group"], shown_mean(row), runs, against.get(row["group"], "")))
    widths = [max(len(line[i]) for line in lines) for i in range(4)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
