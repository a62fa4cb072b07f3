"""Figures as inline SVG in the page's colours, so that they follow its light and dark theme.

Names of columns, classes and sites are other people's words. Matplotlib's output is parsed, and written again by a serialiser that escapes every text and every attribute.
It keeps nothing but drawings: an element or an attribute that could run or load something is an error.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from atoll.core.errors import ConfigError
from atoll.core.extras import need

__all__ = ["GRID", "INK", "MUTED", "SERIES", "SURFACE", "InlineFigure", "figure"]

# Placeholder colours that no figure uses otherwise; each becomes a variable of the page's style sheet.
INK, MUTED, GRID, SURFACE = "#010203", "#030201", "#040506", "#060504"
SERIES = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06")
_VARIABLES = {INK: "--ink", MUTED: "--muted", GRID: "--grid", SURFACE: "--card"} | {
    colour: f"--s{i}" for i, colour in enumerate(SERIES, 1)
}
_SVG, _LINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_ELEMENTS = frozenset(
    {"svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect", "circle", "line", "polygon", "polyline"}
)
"""What a figure consists of."""
_INVALID = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML does not have."""
_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # a name with dollar signs is a name
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


class InlineFigure(str):
    """A figure as SVG that a page takes as it is: templates escape all other text."""

    __slots__ = ()

    def __html__(self) -> str:
        return str(self)


def figure(
    name: str, draw: Callable[[Any], None], *, size: tuple[float, float] = (5.4, 3.1), columns: int = 1
) -> InlineFigure:
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
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"Glyph \d+ .* missing from font")  # the browser has the letters
        made = need("matplotlib.figure", "report", "a report", where="atoll.report").Figure(
            figsize=size, layout="constrained"
        )
        draw(made.subplots(1, columns))
        buffer = io.StringIO()
        made.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _inline(buffer.getvalue(), name)


def _inline(svg: str, name: str) -> InlineFigure:
    root = ElementTree.fromstring(_INVALID.sub("\ufffd", svg[svg.index("<svg") :]))  # noqa: S314  Matplotlib wrote it
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    for parent in list(root.iter()):
        for child in list(parent):
            if str(child.tag).rpartition("}")[2] in ("metadata", "style"):
                parent.remove(child)
    for element in root.iter():
        element.tag = str(element.tag).removeprefix(f"{{{_SVG}}}")
        if element.tag not in _ELEMENTS:
            raise ConfigError(f"a figure with <{element.tag}>", where=name, remedy="draw with lines, shapes and text")
        element.attrib = {
            _attribute(key, value): _format_attribute(key, value, slug) for key, value in element.attrib.items()
        }
    root.attrib = {"role": "img", "aria-label": _INVALID.sub("\ufffd", name), **root.attrib}
    return InlineFigure(ElementTree.tostring(root, encoding="unicode", short_empty_elements=True))


def _attribute(key: str, value: str) -> str:
    """The name of an attribute as HTML has it.

    Raises:
        ConfigError: it would run or load something.
    """
    local = key.replace(f"{{{_LINK}}}", "xlink:")
    if local.lower().startswith("on") or (local.endswith("href") and not value.startswith("#")):
        raise ConfigError(f"a figure with {local}={value!r}", where="report", remedy="draw without links")
    return local


def _format_attribute(key: str, value: str, slug: str) -> str:
    """The value of an attribute: in the page's font and colours, and with ids of this figure alone."""
    if key == "id":
        return re.sub(r"^(figure|axes|patch|line2d|text|matplotlib\.axis|xtick|ytick|legend)_", rf"{slug}-\1_", value)
    if key == "style":
        value = re.sub(r"'DejaVu Sans'[^;]*", "var(--font)", value)
        for colour, variable in _VARIABLES.items():
            value = value.replace(colour, f"var({variable})")
    return value
