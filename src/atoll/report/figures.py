"""A page's figures: curves, clients, the partition, privacy, and how often devices took part."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from atoll.core.errors import ConfigError
from atoll.core.extras import need

from .facts import NAMED, Facts
from .groups import Group, draw_bands

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.rounds.by_device import ByDevice

__all__ = [
    "GRID",
    "INK",
    "InlineFigure",
    "MUTED",
    "SERIES",
    "SURFACE",
    "accuracies_by_epsilon",
    "bands_figure",
    "bytes_figure",
    "clients_figure",
    "comparison_figure",
    "curves_figure",
    "devices_figure",
    "figure",
    "lorenz",
    "meaning",
    "overlay",
    "partition_figure",
    "privacy_figure",
    "privacy_overlay",
]


# ------------------------------------------------------------------ figures as inline SVG in the page's colours, so that they follow its light and dark theme
#
# Names of columns, classes and sites are other people's words. Matplotlib's output is parsed, and written again by a serialiser that escapes every text and every attribute.
# It keeps nothing but drawings: an element or an attribute that could run or load something is an error.


# Placeholder colours that no figure uses otherwise; each becomes a variable of the page's style sheet.
INK, MUTED, GRID, SURFACE = "#010203", "#030201", "#040506", "#060504"
SERIES = ("#0a0b01", "#0a0b02", "#0a0b03", "#0a0b04", "#0a0b05", "#0a0b06")
_LEGEND = 40
"""Most letters of a line in a legend of half a page: a longer one would cover the axis."""
_ROOM = 0.25
"""Share of an axis that words beside a line need."""
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


# ------------------------------------------------------------------ a page's figures: curves, clients, the partition, privacy, and how often devices took part


_LINES = (
    ("test/accuracy", "test set", 0),
    ("clients/accuracy", "clients, mean", 1),
    ("clients/accuracy/worst_decile", "clients, worst tenth", 2),
)
_LOSSES = (("test/loss", "test set", 0), ("loss", "local training", 3))
_AREAS = (("test/auc", "test set, AUC", 0), ("clients/auc", "clients, AUC", 1))
_ERRORS = (("test/rmse", "test set, RMSE", 0), ("clients/rmse", "clients, RMSE", 1))


def curves_figure(facts: Facts) -> str | None:
    """Accuracy (or error) and loss by round."""
    first = [line for line in _LINES if _points_of_metric(facts.rows, line[0])[0]]
    title = "Accuracy by round"
    for lines, head in ((_AREAS, "AUC by round"), (_ERRORS, "Error by round")):
        if not first:
            first, title = [line for line in lines if _points_of_metric(facts.rows, line[0])[0]], head
    second = [line for line in _LOSSES if _points_of_metric(facts.rows, line[0])[0]]
    trained = any(row.get("selected") for row in facts.rows)
    panels = [(lines, head) for lines, head in ((first, title), (second, "Loss by round")) if lines]
    if not panels:
        return None

    def draw(axes: Any) -> None:
        for axis, (lines, head) in zip(np.atleast_1d(axes), panels, strict=True):
            for name, label, series in lines:
                x, y = _points_of_metric(facts.rows, name)
                said = (label if name != "loss" or trained else "loss") + facts.rows_of(name) + facts.word_of(name)
                said = textwrap.fill(said, _LEGEND)
                axis.plot(x, y, color=SERIES[series], label=said, marker="o" if len(x) < 3 else None, markersize=3.5)
                axis.plot(x[-1:], y[-1:], color=SERIES[series], marker="o", markersize=4.5)
            axis.set_title(head)
            _label_rounds(axis)
            if head.startswith("Accuracy"):
                _show_percent(axis)
            elif head.startswith("AUC"):
                axis.set_ylim(top=1.0)
            else:
                axis.set_ylim(bottom=0)
            axis.legend(loc="best", fontsize=8.5)

    return figure("learning curves", draw, size=(10.6, 3.2), columns=len(panels))


def _points_of_metric(rows: Sequence[dict[str, Any]], name: str) -> tuple[list[int], list[float]]:
    kept = [(row["round"], row[name]) for row in rows if row.get(name) is not None]
    return [r for r, _ in kept], [v for _, v in kept]


def _label_rounds(axis: Any) -> None:
    """Rounds are whole numbers, and so are their ticks."""
    axis.set_xlabel("round")
    axis.xaxis.get_major_locator().set_params(integer=True)


def _show_percent(axis: Any) -> None:
    axis.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
    axis.set_ylim(top=1.0)


def clients_figure(facts: Facts) -> str | None:
    """The distribution over clients at the last evaluation, with the worst decile."""
    values = facts.last("clients/accuracy/values")
    if not values:
        return None
    names = facts.data.get("client_names") or []
    if len(values) <= NAMED and len(values) == len(names):
        return _named_clients_figure(names, values, facts.rows_of("clients/accuracy"))
    ordered = np.sort(np.asarray(values, dtype=float))
    tenth = max(1, round(len(ordered) / 10))
    worst = float(ordered[:tenth].mean())

    def draw(axes: Any) -> None:
        left, right = axes
        colours = [SERIES[2] if i < tenth else SERIES[0] for i in range(len(ordered))]
        left.bar(range(len(ordered)), ordered, width=1.0, color=colours, edgecolor=SURFACE, linewidth=0.4)
        left.set_title("Each client, sorted")
        left.set_xlabel(
            f"{len(ordered):,} clients, own rows{facts.rows_of('clients/accuracy')}; the worst tenth: {100 * worst:.1f} %"
        )
        _show_percent(left)
        left.set_xticks([])
        edges = np.linspace(max(0.0, float(ordered[0]) - 1e-9), 1.0, 16)
        right.hist(ordered, bins=edges, color=SERIES[0], edgecolor=SURFACE, linewidth=0.8)
        right.axvline(worst, color=SERIES[2], linestyle="--", linewidth=1.4)
        right.axvline(float(np.median(ordered)), color=INK, linestyle=":", linewidth=1.2)
        # Beside the axis there is room on its inner side alone, below the other words.
        side, top = ("right", 1.0) if worst > _ROOM else ("left", 0.9)
        right.annotate(
            " worst tenth ", (worst, top * right.get_ylim()[1]), color=MUTED, fontsize=8.5, ha=side, va="top"
        )
        right.annotate(" median", (float(np.median(ordered)), right.get_ylim()[1]), color=MUTED, fontsize=8.5, va="top")
        right.set_title("How many clients have which accuracy")
        right.xaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        right.set_ylabel("clients")
        right.yaxis.get_major_locator().set_params(integer=True)

    return figure("accuracy over clients", draw, size=(10.6, 3.1), columns=2)


def _named_clients_figure(names: Sequence[str], values: Sequence[float], rows: str) -> str:
    """The accuracy of a few clients, each by its name, the worst first."""
    order = sorted(range(len(names)), key=lambda k: values[k])

    def draw(axis: Any) -> None:
        axis.bar(range(len(order)), [values[k] for k in order], width=0.7, color=SERIES[0])
        for place, k in enumerate(order):
            axis.annotate(f"{100 * values[k]:.1f} %", (place, values[k]), ha="center", va="bottom", fontsize=8)
        _label_clients(axis, [names[k] for k in order])
        axis.set_title(f"Each client on its own rows{rows}")
        _show_percent(axis)
        axis.set_ylim(0, 1.08)

    return figure("accuracy over clients", draw, size=(10.6, 3.1))


def _label_clients(axis: Any, names: Sequence[str]) -> None:
    shown = [name if len(name) <= 18 else f"{name[:17]}…" for name in names]
    turn = 45 if sum(map(len, shown)) > 48 else 0
    axis.set_xticks(range(len(shown)), shown, rotation=turn, ha="right" if turn else "center", fontsize=7.5)


def partition_figure(facts: Facts) -> str | None:
    """Classes by client, and the sizes of the clients; ``None`` where each client counts as one row, as databases do, and nothing is known of classes."""
    data = facts.data
    if not data.get("size_counts"):
        return None
    counts = np.asarray(data.get("class_counts") or [], dtype=float)
    if not counts.size and data["size_quantiles"]["1.0"] <= 1:
        return None

    def draw(axes: Any) -> None:
        panels = np.atleast_1d(axes)
        if counts.size:
            column, row = np.nonzero(counts)
            area = 130.0 * counts[column, row] / counts.max()
            panels[0].scatter(column, row, s=area, color=SERIES[0], alpha=0.75, linewidths=0)
            panels[0].set_yticks(range(counts.shape[1]) if counts.shape[1] <= 20 else [])
            if counts.shape[1] <= 20:
                panels[0].set_yticklabels(data["class_names"])
            panels[0].set_xticks([])
            panels[0].set_xlabel(f"{len(counts)} of {data['clients']:,} clients; a dot's area is its number of rows")
            panels[0].set_title("Classes at clients")
        names = data.get("client_names")
        if names:
            panels[-1].bar(range(len(names)), data["client_sizes"], width=0.7, color=SERIES[1])
            _label_clients(panels[-1], names)
            panels[-1].yaxis.get_major_locator().set_params(integer=True)
            panels[-1].set_title("Sizes of clients")
            panels[-1].set_ylabel("rows")
            return
        edges = np.asarray(data["size_edges"])
        panels[-1].yaxis.get_major_locator().set_params(integer=True)
        panels[-1].bar(
            edges[:-1],
            data["size_counts"],
            np.diff(edges),
            align="edge",
            color=SERIES[1],
            edgecolor=SURFACE,
            linewidth=0.8,
        )
        panels[-1].set_title("Sizes of clients")
        panels[-1].set_xlabel("rows")
        panels[-1].set_ylabel("clients")

    columns = 2 if counts.size else 1
    return figure("partition of the data", draw, size=(10.6, 3.3), columns=columns)


def bytes_figure(facts: Facts) -> str | None:
    """Cumulative bytes by round, and accuracy by bytes."""
    rows = [row for row in facts.rows if "bytes_up" in row]
    if not rows:
        return None
    rounds = [row["round"] for row in rows]
    up, down = (np.cumsum([row[f"bytes_{way}"] for row in rows]) for way in ("up", "down"))
    unit, scale = _choose_unit(float(max(up[-1], down[-1])))
    x, y = _points_of_metric(rows, "test/accuracy")
    spent = dict(zip(rounds, up + down, strict=True))

    def draw(axes: Any) -> None:
        panels = np.atleast_1d(axes)
        panels[0].plot(rounds, up / scale, color=SERIES[0], label="up, from clients")
        panels[0].plot(rounds, down / scale, color=SERIES[1], label="down, to clients", linestyle=(0, (4, 2)))
        panels[0].set_title(f"Sent so far, {unit}")
        _label_rounds(panels[0])
        panels[0].set_ylim(bottom=0)
        panels[0].legend(loc="upper left", fontsize=8.5)
        if x:
            panels[1].plot([spent[r] / scale for r in x], y, color=SERIES[0])
            panels[1].set_title("Accuracy by what was sent")
            panels[1].set_xlabel(f"{unit}, up and down")
            _show_percent(panels[1])

    columns = 2 if x else 1
    return figure("bytes sent", draw, size=(10.6, 2.9), columns=columns)


def _choose_unit(count: float) -> tuple[str, float]:
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= scale:
            return unit, scale
    return "bytes", 1.0


def comparison_figure(facts: Facts) -> str | None:
    """Accuracy of each island alone, federated and pooled."""
    found = facts.comparison
    if not found:
        return None
    alone, federated, pooled = (float(found[name]["accuracy"]) for name in ("alone", "federated", "pooled"))
    values = np.asarray(found["alone"].get("values") or [alone], dtype=float)

    def draw(axis: Any) -> None:
        jitter = np.random.default_rng(0).uniform(-0.24, 0.24, len(values))
        axis.scatter(values, 2 + jitter, s=16, color=SERIES[2], alpha=0.45, linewidths=0)
        for y, value, series in ((2, alone, 2), (1, federated, 0), (0, pooled, 1)):
            axis.barh(y, value, height=0.6, color=SERIES[series], alpha=0.14, linewidth=0)
            axis.plot([value, value], [y - 0.3, y + 0.3], color=SERIES[series], linewidth=4)
            axis.annotate(
                f"{100 * value:.1f} %", (value, y + 0.33), ha="center", va="bottom", fontweight="bold", fontsize=10
            )
        axis.set_yticks([2, 1, 0], ["each island alone", "federated", "pooled"])
        axis.tick_params(axis="y", length=0, labelcolor=INK)
        axis.set_ylim(-0.5, 2.75)
        axis.set_xlim(min(0.0, float(values.min())), 1.0)
        axis.xaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        axis.grid(visible=True, axis="x", color=GRID)
        axis.grid(visible=False, axis="y")
        axis.set_xlabel("accuracy on the common test set; a dot is one island's own model, a bar the mean")

    return figure("alone, federated and pooled", draw, size=(10.6, 2.7))


def bands_figure(name: str, groups: Sequence[Group], metric: str) -> str | None:
    """One metric of groups of runs by round: the mean, and a band of one standard deviation."""
    if not any(group.band(metric) for group in groups):
        return None

    def draw(axis: Any) -> None:
        draw_bands(axis, groups, metric, SERIES)
        axis.set_title(name)
        if "accuracy" in metric:
            _show_percent(axis)

    return figure(name, draw, size=(10.6, 3.6))


def overlay(name: str, runs: Sequence[tuple[str, Facts]], metric: str) -> str | None:
    """One metric of several runs by round."""
    lines = [(label, *_points_of_metric(facts.rows, metric)) for label, facts in runs]
    lines = [line for line in lines if line[1]]
    if not lines:
        return None

    def draw(axis: Any) -> None:
        styles = ("-", (0, (5, 2)), (0, (2, 1.5)))
        for i, (label, x, y) in enumerate(lines):
            style = styles[i // len(SERIES) % len(styles)]
            axis.plot(x, y, color=SERIES[i % len(SERIES)], label=label, linestyle=style)
        _label_rounds(axis)
        axis.set_title(name)
        if "accuracy" in metric:
            _show_percent(axis)
        axis.legend(loc="best", fontsize=8.5)

    return figure(name, draw, size=(10.6, 3.6))


_WHOM = {"server": "the server", "clients": "other clients", "model": "whoever gets the model"}


def meaning(privacy: Mapping[str, Any] | None) -> str:
    """What an epsilon means, in a sentence: delta, unit, neighbours, adversary and accountant; none is left out."""
    if not privacy:
        return ""
    units = privacy["unit"] if isinstance(privacy["unit"], str) else " and ".join(privacy["unit"])
    said = (
        f"Epsilon is counted by {privacy['accountant']} at delta {float(privacy['delta']):g}. It protects one {units} "
        f"({privacy['neighbours']} neighbours) against {_WHOM.get(privacy['adversary'], privacy['adversary'])}."
    )
    return f"{said} {privacy['how']}" if privacy.get("how") else said


def accuracies_by_epsilon(rows: Sequence[Mapping[str, Any]]) -> list[tuple[float, float]]:
    """(epsilon, accuracy) of each round with an accuracy, with the epsilon that was spent until then; infinite ones are left out."""
    spent, made = None, []
    for row in rows:
        spent = row.get("epsilon") if row.get("epsilon") is not None else spent
        if spent is not None and math.isfinite(spent) and row.get("test/accuracy") is not None:
            made.append((float(spent), float(row["test/accuracy"])))
    return made


def _by_round(rows: Sequence[Mapping[str, Any]]) -> list[tuple[int, float]]:
    found = [(row["round"], row["epsilon"]) for row in rows if row.get("epsilon") is not None]
    return [(number, float(value)) for number, value in found if math.isfinite(value)]


def privacy_figure(facts: Facts) -> str | None:
    """Epsilon by round, and accuracy by epsilon; ``None`` if no round has a finite epsilon."""
    spent, reached = _by_round(facts.rows), accuracies_by_epsilon(facts.rows)
    if not spent:
        return None
    whom = _WHOM.get(str((facts.privacy or {}).get("adversary")), "")

    def draw(axes: Any) -> None:
        panels = np.atleast_1d(axes)
        x, y = zip(*spent, strict=True)
        panels[0].plot(x, y, color=SERIES[0], marker="o" if len(x) < 3 else None, markersize=3.5)
        panels[0].set_title("Epsilon by round" + (f", against {whom}" if whom else ""))
        _label_rounds(panels[0])
        panels[0].set_ylim(bottom=0)
        if reached:
            _draw_accuracies(panels[1], reached, SERIES[0], None)

    columns = 2 if reached else 1
    return figure("privacy spent", draw, size=(10.6, 2.9), columns=columns)


def privacy_overlay(runs: Sequence[tuple[str, Facts]]) -> str | None:
    """Accuracy of several runs by the epsilon that each had spent; ``None`` without one."""
    lines = [(label, found) for label, facts in runs if (found := accuracies_by_epsilon(facts.rows))]
    if not lines:
        return None

    def draw(axis: Any) -> None:
        for i, (label, found) in enumerate(lines):
            _draw_accuracies(axis, found, SERIES[i % len(SERIES)], label)
        axis.legend(loc="best", fontsize=8.5)

    return figure("Accuracy by epsilon", draw, size=(10.6, 3.6))


def _draw_accuracies(axis: Any, found: Sequence[tuple[float, float]], colour: str, label: str | None) -> None:
    x, y = zip(*found, strict=True)
    axis.plot(x, y, color=colour, label=label, marker="o" if len(x) < 3 else None, markersize=3.5)
    axis.plot(x[-1:], y[-1:], color=colour, marker="o", markersize=4.5)
    axis.set_title("Accuracy by epsilon")
    axis.set_xlabel("epsilon")
    axis.set_xlim(left=0)
    axis.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
    axis.set_ylim(top=1.0)


_POINTS = 200


def devices_figure(facts: Facts) -> str | None:
    """Replies per client, and the shares of the busiest; ``None`` if all clients took part equally and no energy is counted."""
    devices = facts.devices
    if devices is None or not len(devices):
        return None
    histogram = devices.histogram()
    if len(histogram) == 1 and not devices.powered:
        return None
    curves = [("replies", "answered", 0), ("energy", "energy", 2)]
    curves = [curve for curve in curves if devices[curve[1]].sum() > 0]

    def draw(axes: Any) -> None:
        left, right = axes
        step = 1 + max(histogram) // 40
        left.hist(
            list(histogram), bins=np.arange(0, max(histogram) + step + 1, step) - 0.5,
            weights=list(histogram.values()), color=SERIES[0], edgecolor=SURFACE, linewidth=0.8,
        )  # fmt: skip
        left.set_title("How many clients answered how often")
        left.set_xlabel(f"replies of a client; {histogram.get(0, 0):,} of {devices.population:,} never answered")
        left.set_ylabel("clients")
        left.yaxis.get_major_locator().set_params(integer=True)
        left.xaxis.get_major_locator().set_params(integer=True)
        for label, column, series in curves:
            right.plot(*lorenz(devices, column), color=SERIES[series], label=label)
        right.plot([0, 1], [0, 1], color=MUTED, linewidth=1.0, linestyle=":", label="all alike")
        right.set_title("Whose share is how large")
        right.set_xlabel("share of the clients, the busiest first")
        right.xaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        right.yaxis.set_major_formatter(lambda v, _: f"{100 * v:.0f} %")
        right.set_ylim(bottom=0)
        right.legend(loc="lower right", fontsize=8.5)

    return figure("participation of devices", draw, size=(10.6, 3.1), columns=2)


def lorenz(devices: ByDevice, column: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Shares of the population, the busiest first, and their shares of a column's sum: a few points from (0, 0) to (1, 1).

    Args:
        devices: the record of the devices.
        column: a column of it, whose sum is above 0.
    """
    values = np.sort(devices[column].astype(np.float64))[::-1]
    reached = np.concatenate([[0.0], np.cumsum(values) / values.sum()])
    at = np.unique(np.linspace(0, len(values), min(_POINTS, len(values) + 1)).astype(np.int64))
    return np.append(at / devices.population, 1.0), np.append(reached[at], 1.0)
