"""Sections that a job gives a report as plain data: a title, a text, tables and pictures.

``Prepared.sections`` returns a list of ``{"title", "text", "tables": [{"head", "rows"}], "figures": [...]}``. A figure has a ``"name"``, unique on the page, and a ``"kind"``:

==============  ==========================================================================
kind            what it has
==============  ==========================================================================
``histogram``   ``edges`` (bins + 1) and ``series`` of ``{"name", "values"}`` (bins)
``bars``        ``labels`` and ``series`` of ``{"name", "values"}``, side by side
``points``      ``labels`` in order and ``series`` of ``{"name", "values"}``, joined by lines
``matrix``      ``labels`` and ``values`` in [-1, 1], ``(labels, labels)``
==============  ==========================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .drawing import INK, SERIES, SURFACE, figure

__all__ = ["drawn"]


def drawn(sections: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The same sections with pictures as SVG."""
    return [{**section, "pictures": [_picture(one) for one in section.get("figures", ())]} for section in sections]


def _picture(one: Mapping[str, Any]) -> str:
    kinds = {"histogram": _histogram, "bars": _bars, "points": _points, "matrix": _matrix}
    draw = kinds[one["kind"]]
    size = (5.3, 5.3) if one["kind"] == "matrix" else (5.3, 2.9)

    def panel(axis: Any) -> None:
        draw(axis, one)
        axis.set_title(str(one["name"]))

    return figure(str(one["name"]), panel, size=size)


def _histogram(axis: Any, one: Mapping[str, Any]) -> None:
    edges = np.asarray(one["edges"], dtype=np.float64)
    for k, series in enumerate(one["series"]):
        colour = SERIES[k % len(SERIES)]
        values = np.asarray(series["values"], dtype=np.float64)
        axis.bar(edges[:-1], values, np.diff(edges), align="edge", color=colour, edgecolor=SURFACE, linewidth=0.6)
    axis.set_ylabel(str(one["series"][0]["name"]))


def _bars(axis: Any, one: Mapping[str, Any]) -> None:
    places, series = np.arange(len(one["labels"])), one["series"]
    width = 0.8 / len(series)
    for k, each in enumerate(series):
        offset = (k - (len(series) - 1) / 2) * width
        axis.bar(places + offset, each["values"], width, color=SERIES[k % len(SERIES)], label=str(each["name"]))
    _labels(axis, one["labels"])
    if len(series) > 1:
        axis.legend(fontsize=8)


def _points(axis: Any, one: Mapping[str, Any]) -> None:
    for k, each in enumerate(one["series"]):
        axis.plot(range(len(one["labels"])), each["values"], color=SERIES[k % len(SERIES)], marker="o", markersize=4)
    _labels(axis, one["labels"])


def _matrix(axis: Any, one: Mapping[str, Any]) -> None:
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
    _labels(axis, one["labels"])


def _labels(axis: Any, labels: Sequence[Any]) -> None:
    shown = [str(label)[:18] for label in labels]
    turn = 45 if sum(map(len, shown)) > 48 else 0
    axis.set_xticks(range(len(shown)), shown, rotation=turn, ha="right" if turn else "center", fontsize=7.5)
