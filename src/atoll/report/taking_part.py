"""The figure of participation: how often each client replied, and its share of the energy and the replies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .drawing import MUTED, SERIES, SURFACE, figure
from .facts import Facts

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.rounds.by_device import ByDevice

__all__ = ["devices_figure", "lorenz"]

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
