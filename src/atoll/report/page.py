"""A page about one run, as HTML.

Sections that a job gives a report as plain data: a title, a text, tables and pictures.

``Prepared.sections`` returns a list of ``{"title", "text", "tables": [{"head", "rows"}], "figures": [...]}``. A figure has a ``"name"``, unique on the page, and a ``"kind"``. A section
may also have ``"tiles"``, headline numbers of what was found: ``[label, value, remark]``, which stand on top of the page.

==============  ==========================================================================
kind            what it has
==============  ==========================================================================
``histogram``   ``edges`` (bins + 1) and ``series`` of ``{"name", "values"}`` (bins)
``bars``        ``labels`` and ``series`` of ``{"name", "values"}``, side by side; with ``"flat": True`` one below the other, the first on top; ``whole`` for counts
``points``      ``labels`` in order and ``series`` of ``{"name", "values"}``, joined by lines
``intervals``   ``labels``, ``values``, ``low`` and ``high``; ``line``, a value to compare with; ``log``, whether the axis is
``steps``       ``series`` of ``{"name", "x", "values", "low", "high"}``, curves that step down; ``across`` and ``up`` name the axes
``matrix``      ``labels`` and ``values`` in [-1, 1], ``(labels, labels)``
``lines``       ``series`` of ``{"name", "x", "values"}`` and ``x``, the name of the axis; ``diagonal`` and ``bottom`` if wanted
==============  ==========================================================================
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CheckpointError, ConfigError
from atoll.core.extras import need
from atoll.core.overview import human_bytes
from atoll.core.persistence.files import write_bytes

from .facts import Facts, facts_of
from .figures import (
    GRID,
    INK,
    MUTED,
    SERIES,
    SURFACE,
    bands_figure,
    bytes_figure,
    clients_figure,
    comparison_figure,
    curves_figure,
    devices_figure,
    figure,
    meaning,
    overlay,
    partition_figure,
    privacy_figure,
    privacy_overlay,
)
from .groups import differences, grouped, main_metric, shown_difference, shown_mean, told_notices
from .trackers import flat

if TYPE_CHECKING:
    from atoll.runs import RunFolder

__all__ = ["compare_runs", "draw_sections", "render", "write_comparison", "write_report"]


# ------------------------------------------------------------------ a page about one run, as HTML


def draw_sections(sections: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same sections with pictures as SVG."""
    return [{**section, "pictures": [_draw_section(one) for one in section.get("figures", ())]} for section in sections]


def _draw_section(one: Mapping[str, Any]) -> str:
    kinds = {
        "histogram": _draw_histogram, "bars": _draw_bars, "points": _draw_points, "matrix": _draw_matrix, "intervals": _draw_intervals, "steps": _draw_steps,
        "lines": _draw_lines,
    }  # fmt: skip
    draw = kinds[one["kind"]]
    listed = one["kind"] == "intervals" or one.get("flat")
    size = (
        (5.3, 5.3)
        if one["kind"] == "matrix"
        else (5.3, max(1.6, 0.9 + 0.25 * len(one["labels"])))
        if listed
        else (5.3, 2.9)
    )

    def panel(axis: Any) -> None:
        draw(axis, one)
        axis.set_title(str(one["name"]))

    return figure(str(one["name"]), panel, size=size)


def _draw_histogram(axis: Any, one: Mapping[str, Any]) -> None:
    edges = np.asarray(one["edges"], dtype=np.float64)
    for k, series in enumerate(one["series"]):
        colour = SERIES[k % len(SERIES)]
        values = np.asarray(series["values"], dtype=np.float64)
        axis.bar(edges[:-1], values, np.diff(edges), align="edge", color=colour, edgecolor=SURFACE, linewidth=0.6)
    axis.set_ylabel(str(one["series"][0]["name"]))


def _draw_bars(axis: Any, one: Mapping[str, Any]) -> None:
    places, series = np.arange(len(one["labels"])), one["series"]
    if one.get("flat"):
        axis.barh(places, series[0]["values"], 0.7, color=SERIES[0])
        _label_rows(axis, one["labels"])
        axis.set_xlabel(str(series[0]["name"]))
        if one.get("whole"):
            axis.xaxis.get_major_locator().set_params(integer=True)
        return
    width = 0.8 / len(series)
    for k, each in enumerate(series):
        offset = (k - (len(series) - 1) / 2) * width
        axis.bar(places + offset, each["values"], width, color=SERIES[k % len(SERIES)], label=str(each["name"]))
    _label_ticks(axis, one["labels"])
    if len(series) > 1:
        axis.legend(fontsize=8)


def _draw_points(axis: Any, one: Mapping[str, Any]) -> None:
    for k, each in enumerate(one["series"]):
        axis.plot(range(len(one["labels"])), each["values"], color=SERIES[k % len(SERIES)], marker="o", markersize=4)
    _label_ticks(axis, one["labels"])


def _draw_intervals(axis: Any, one: Mapping[str, Any]) -> None:
    values, places = np.asarray(one["values"], dtype=np.float64), np.arange(len(one["labels"]))[::-1]
    ends = np.stack(
        [values - np.asarray(one["low"], dtype=np.float64), np.asarray(one["high"], dtype=np.float64) - values]
    )
    if one.get("log"):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axis.xaxis.set_minor_formatter(lambda value, _: f"{value:g}" if ends.max() < 4 * values.max() else "")
    axis.axvline(float(one.get("line", 0.0)), color=MUTED, linewidth=1.0, linestyle="--")
    axis.errorbar(values, places, xerr=ends, fmt="o", color=SERIES[0], markersize=5, capsize=3, linewidth=1.6)
    axis.set_yticks(places, [str(label)[:28] for label in one["labels"]], fontsize=8)
    axis.set_ylim(-0.6, len(places) - 0.4)


def _draw_steps(axis: Any, one: Mapping[str, Any]) -> None:
    for k, each in enumerate(one["series"]):
        colour = SERIES[k % len(SERIES)]
        x, *bands = (
            np.array([np.nan if v is None else v for v in each[name]], dtype=np.float64)
            for name in ("x", "values", "low", "high")
        )
        axis.step(x, bands[0], where="post", color=colour, label=str(each["name"]))
        # Each band goes on to the next time, also where nobody is left then and there is no interval.
        along, (_, low, high) = np.repeat(x, 2)[1:], (np.repeat(band, 2)[:-1] for band in bands)
        axis.fill_between(along, low, high, color=colour, alpha=0.15, linewidth=0)
    axis.set_ylim(0, 1.03)
    axis.set_xlim(left=0)
    axis.set_xlabel(str(one["across"]))
    axis.set_ylabel(str(one["up"]))
    if len(one["series"]) > 1:
        axis.legend(fontsize=8)


def _draw_lines(axis: Any, one: Mapping[str, Any]) -> None:
    for k, each in enumerate(one["series"]):
        colour = SERIES[k % len(SERIES)]
        axis.plot(each["x"], each["values"], color=colour, marker="o", markersize=4, label=str(each["name"]))
    if one.get("diagonal"):
        axis.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=":", label="as predicted")
    if "bottom" in one:
        axis.set_ylim(one["bottom"], 1.02)
    axis.set_xlabel(str(one.get("x", "")))
    if len(one["series"]) > 1 or one.get("diagonal"):
        axis.legend(fontsize=8)


def _label_rows(axis: Any, labels: Sequence[Any]) -> None:
    axis.set_yticks(range(len(labels)), [str(label)[:24] for label in labels], fontsize=7.5)
    axis.set_ylim(len(labels) - 0.5, -0.5)
    axis.grid(visible=False, axis="y")
    axis.grid(visible=True, axis="x", color=GRID)


def _draw_matrix(axis: Any, one: Mapping[str, Any]) -> None:
    values = np.array([[np.nan if r is None else r for r in row] for row in one["values"]], dtype=np.float64)
    for (i, j), r in np.ndenumerate(values):
        if np.isfinite(r):
            colour = SERIES[0] if r >= 0 else SERIES[2]
            axis.scatter(j, i, s=abs(r) * 260 / max(1.0, len(values) / 6), color=colour, alpha=0.8, linewidths=0)
            if len(values) <= 10:
                axis.annotate(f"{r:.2f}", (j, i), ha="center", va="center", fontsize=7, color=INK)
    axis.set_yticks(range(len(values)), [str(label)[:18] for label in one["labels"]], fontsize=7.5)
    axis.set_ylim(len(values) - 0.5, -0.5)
    axis.set_xlim(-0.5, len(values) - 0.5)
    _label_ticks(axis, one["labels"])


def _label_ticks(axis: Any, labels: Sequence[Any]) -> None:
    shown = [str(label)[:18] for label in labels]
    turn = 45 if sum(map(len, shown)) > 48 else 0
    axis.set_xticks(range(len(shown)), shown, rotation=turn, ha="right" if turn else "center", fontsize=7.5)


def write_report(source: Any, path: str | Path | None = None, *, more: Sequence[Mapping[str, Any]] = ()) -> Path:
    """Write the report of a run.

    Args:
        source: a ``Result``, a ``RunFolder``, or the path of a run folder.
        path: the file to write; by default ``report.html`` in the run folder, or ``atoll-report.html`` here.
        more: further sections, after those of the job, such as a comparison.

    Returns:
        The page's path.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.
        CheckpointError: the folder cannot be read, or the page cannot be written.
    """
    facts = facts_of(source)
    sections = [*(facts.sections or _told_result(facts)), *map(dict, more)]
    target = Path(path) if path is not None else _choose_place(source)
    page = render(
        "report.html.j2",
        facts=facts,
        figures=_draw_figures(facts),
        sections=draw_sections(sections),
        tiles=_make_tiles(facts),
        verdict=verdict(facts),
        audited=_describe_audit(facts),
        meaning=meaning(facts.privacy),
        caveat=CAVEAT,
        engine=_describe_engine(facts),
    )
    try:
        write_bytes(target, page.encode("utf-8", "replace"))
    except CheckpointError as error:
        raise CheckpointError(
            error.what, where=error.where, remedy="free space, or name a file in another folder"
        ) from error
    return target


def _choose_place(source: Any) -> Path:
    from atoll.runs import RunFolder

    folder = source if isinstance(source, RunFolder) else None
    if isinstance(source, str | Path):
        folder = RunFolder(source)
    return folder.report_file if folder is not None else Path("atoll-report.html")


def render(template: str, **values: Any) -> str:
    """Fill a template of this package. Text is escaped everywhere, also in attributes; a `InlineFigure` is put in as it is. No script runs in the page: its policy allows none."""
    jinja2 = need("jinja2", "report", "a report", where="atoll.report")
    loader = jinja2.PackageLoader("atoll.report", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {
        "bytes": human_bytes,
        "percent": _format_percent,
        "number": _format_number,
        "moment": _format_moment,
    }
    return str(environment.get_template(template).render(**values))


def _draw_figures(facts: Facts) -> dict[str, str | None]:
    return {
        "comparison": comparison_figure(facts),
        "curves": curves_figure(facts),
        "privacy": privacy_figure(facts),
        "clients": clients_figure(facts),
        "devices": devices_figure(facts),
        "partition": partition_figure(facts),
        "bytes": bytes_figure(facts),
    }


def _make_tiles(facts: Facts) -> list[tuple[str, str, str]]:
    """Headline numbers: label, value, remark."""
    found = [tuple(map(str, tile)) for section in facts.sections for tile in section.get("tiles", ())]
    tiles: list[tuple[str, str, str]] = [(label, value, remark) for label, value, remark in found]
    accuracy, best = facts.last("test/accuracy"), facts.best("test/accuracy")
    if accuracy is not None and best is not None:
        tiles.append(
            ("test accuracy", _format_percent(accuracy), f"best {_format_percent(best[1])} in round {best[0]}")
        )
    elif facts.last("test/auc") is not None and not tiles:
        tiles.append(("test AUC", f"{facts.last('test/auc'):.4f}", "area under the ROC curve"))
    elif facts.last("test/rmse") is not None and not tiles:
        tiles.append(("test RMSE", _format_number(facts.last("test/rmse")), "root of the mean squared error"))
    worst = facts.last("clients/accuracy/worst_decile")
    if worst is not None:
        spread = _format_percent(facts.last("clients/accuracy/std"))
        tiles.append(
            (
                "worst tenth of clients",
                _format_percent(worst),
                f"standard deviation {spread}{facts.rows_of('clients/accuracy')}{facts.word_of('clients/accuracy')}",
            )
        )
    if facts.last("epsilon") is not None:
        terms = facts.privacy or {}
        remark = f"one {terms['unit']}, at delta {terms['delta']:g}" if isinstance(terms.get("unit"), str) else "spent"
        tiles.append(("epsilon", _format_number(facts.last("epsilon")), f"{remark}{facts.word_of('epsilon')}"))
    if facts.rows or not facts.sections:
        tiles.append(("rounds", f"{len(facts.rows):,}", _round_numbers(facts.reason or facts.status)))
    clients = facts.data.get("clients")
    if clients:
        asked = facts.total("selected") / max(1, len(facts.rows))
        tiles.append(("clients", f"{clients:,}", f"{asked:,.4g} asked a round" if asked else ""))
    up, down = (facts.total(name) or facts.bytes.get(name, 0) for name in ("bytes_up", "bytes_down"))
    tiles.append(("sent up", human_bytes(up), f"{human_bytes(down)} down"))
    if facts.seconds is not None:
        tiles.append(("wall-clock time", f"{facts.seconds:,.1f} s", f"engine {facts.engine.get('name', '-')}"))
    return tiles


_LONG_FLOAT = re.compile(r"-?\d+\.\d{5,}(?:e[+-]?\d+)?|-?\d+(?:\.\d+)?e[+-]?\d+")


def _round_numbers(text: str) -> str:
    """A text with its long floating-point numbers as people write them."""
    return _LONG_FLOAT.sub(lambda match: f"{float(match[0]):.5g}", text)


def _told_result(facts: Facts) -> list[dict[str, Any]]:
    """What a job without sections of its own has found: its short plain result, as a table."""
    if facts.result is None:
        return []
    rows = [[name or "result", _shown_value(value)] for name, value in flat(facts.result).items()]
    return [{"title": "Result", "tables": [{"head": ["", ""], "rows": rows[:_MOST_ROWS]}]}]


def _shown_value(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


_MOST_ROWS = 200


def _describe_audit(facts: Facts) -> str:
    """What the canaries of a run say, in a sentence."""
    from atoll.privacy.canaries import Audit

    return Audit.of(facts.audit).verdict if facts.audit else ""


def _describe_engine(facts: Facts) -> list[tuple[str, Any]]:
    """Name and choices, one line each."""
    if not facts.engine:
        return []
    return [(name, f"{value:.4g}" if isinstance(value, float) else value) for name, value in flat(facts.engine).items()]


CAVEAT = "The demo's settings were chosen after looking at these test rows: a smoke test, not evidence."
"""Shown with each comparison of the demo."""


def verdict(facts: Facts) -> str:
    """Whether federating was worth it, in a sentence."""
    if not facts.comparison:
        return ""
    alone, federated, pooled = (100 * facts.comparison[name]["accuracy"] for name in ("alone", "federated", "pooled"))
    gain, gap = federated - alone, pooled - federated
    if gain <= 1.0:
        return f"Not here: an island alone reaches {alone:.1f} %, the federation {federated:.1f} %."
    much = f"{abs(gap):.1f} points {'below' if gap >= 0 else 'above'}"
    return (
        f"Yes: the federation gains {gain:.1f} points over an island alone, "
        f"and ends {much} a model trained on everybody's data in one place."
    )


def _format_percent(share: Any) -> str:
    return "-" if share is None else f"{100 * float(share):.1f} %"


def _format_number(value: Any) -> str:
    return "-" if value is None else f"{float(value):,.4g}"


def _format_moment(text: Any) -> str:
    return str(text or "").replace("T", " ").replace("+00:00", " UTC")


# ------------------------------------------------------------------ several runs side by side


_OVERLAYS = (
    ("Test accuracy", "test/accuracy"),
    ("Test loss", "test/loss"),
    ("Test RMSE", "test/rmse"),
    ("Worst tenth of the clients", "clients/accuracy/worst_decile"),
)


def compare_runs(folders: Sequence[RunFolder]) -> list[dict[str, Any]]:
    """One row a run: how it ended, its results and costs, and the settings in which the runs differ.

    Raises:
        CheckpointError: a folder cannot be read.
        ConfigError: fewer than two runs.
    """
    return [_row(folder, facts, _settings(folders)) for folder, facts in _gather_runs(folders)]


def _gather_runs(folders: Sequence[RunFolder]) -> list[tuple[RunFolder, Facts]]:
    if len(folders) < 2:
        raise ConfigError(f"{len(folders)} run to compare", remedy="give at least two runs")
    return [(folder, facts_of(folder)) for folder in folders]


def _settings(folders: Sequence[RunFolder]) -> list[str]:
    """The paths of the settings that differ between the runs."""
    from atoll.runs.config import differing

    first, *others = (folder.settings() for folder in folders)
    found = {path: None for other in others for path in differing(first, other)}
    return [path for path in found if path != "name"]


def _row(folder: RunFolder, facts: Facts, settings: Sequence[str]) -> dict[str, Any]:
    best = facts.best("test/accuracy")
    plain = folder.settings()
    return {
        "run": folder.name,
        "status": facts.status,
        "rounds": len(facts.rows),
        "accuracy": facts.last("test/accuracy"),
        "best_accuracy": None if best is None else best[1],
        "best_round": None if best is None else best[0],
        "loss": facts.last("test/loss"),
        "worst_decile": facts.last("clients/accuracy/worst_decile"),
        "epsilon": facts.last("epsilon"),
        "privacy": meaning(facts.privacy),
        "bytes_up": facts.total("bytes_up"),
        "bytes_down": facts.total("bytes_down"),
        "seconds": facts.seconds,
        "settings": {path: _at(plain, path) for path in settings},
    }


def _at(tree: Any, path: str) -> Any:
    for step in path.split("."):
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def write_comparison(folders: Sequence[RunFolder], path: str | Path, metric: str | None = None) -> Path:
    """Write the comparison of runs as one HTML page; runs that differ in their seeds alone are one group, drawn as a band.

    Args:
        folders: the runs.
        path: where to write the page.
        metric: the metric of which the groups' final values are compared; by default a usual one.

    Raises:
        MissingExtraError: Matplotlib or Jinja2 is not installed.
        CheckpointError: a folder cannot be read, or the page cannot be written.
    """
    rows = compare_runs(folders)
    runs = [(folder.name, facts) for folder, facts in _gather_runs(folders)]
    groups = grouped(folders)
    summary: dict[str, Any] = {"groups": []}
    if len(groups) < len(folders):
        figures = [made for name, column in _OVERLAYS if (made := bands_figure(name, groups, column)) is not None]
        chosen = main_metric(groups, metric)
        against = {one.group: shown_difference(one) for one in differences(groups, chosen)}
        shown = [
            (group.label, shown_mean(group.row(chosen)), len(group.runs), against.get(group.label, ""))
            for group in groups
        ]
        told = told_notices([group.row(chosen) for group in groups])
        summary = {"metric": chosen, "first": groups[0].label, "groups": shown, "notices": told}
    else:
        figures = [made for name, column in _OVERLAYS if (made := overlay(name, runs, column)) is not None]
    epsilons = privacy_overlay(runs)
    figures = figures if epsilons is None else [epsilons, *figures]
    page = render(
        "compare.html.j2",
        rows=rows,
        figures=figures,
        epsilons=any(row["epsilon"] is not None for row in rows),
        settings=_settings(folders),
        **summary,
    )
    write_bytes(Path(path), page.encode("utf-8", "replace"))
    return Path(path)
