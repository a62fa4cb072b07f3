"""Figures as inline SVG in the page's colours, so that they follow its light and dark theme."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from typing import Any

from atoll.core.extras import need

__all__ = ["GRID", "INK", "MUTED", "SERIES", "SURFACE", "figure"]

# Placeholder colours that no figure uses otherwise; each becomes a variable of the page's style sheet.
INK, MUTED, GRID, SURFACE = "#010203", "#030201", "#040506", "#060504"
SERIES = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06")
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", SURFACE: "--card"} | {
    colour: f"--s{i}" for i, colour in enumerate(SERIES, 1)
}
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 9.5,
    "text.color": INK,
    "axes.labelcolor": MUTED,
    "axes.edgecolor": GRID,
    "axes.titlesize": 10.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "lines.linewidth": 1.9,
    "lines.solid_capstyle": "round",
    "legend.frameon": False,
}


def figure(name: str, draw: Callable[[Any], None], *, size: tuple[float, float] = (5.4, 3.1), columns: int = 1) -> str:
    """Draw a figure and return it as SVG for a page.

    Args:
        name: a name that is unique on the page; a screen reader reads it.
        draw: called with the axes (an array of them if there are several columns).
        size: width and height in inches.
        columns: panels side by side.

    Raises:
        MissingExtraError: matplotlib is not installed.
    """
    matplotlib = need("matplotlib", "report", "a report", where="atoll.report")
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        made = need("matplotlib.figure", "report", "a report", where="atoll.report").Figure(
            figsize=size, layout="constrained"
        )
        draw(made.subplots(1, columns))
        buffer = io.StringIO()
        made.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> str:
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.S)
    svg = re.sub(r"'DejaVu Sans'[^;\"]*", "var(--font)", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    svg = re.sub(r'id="(figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|legend)_', rf'id="{slug}-\1_', svg)
    head = f'<svg role="img" aria-label="{name}" '
    return svg.replace("<svg ", head, 1)
