"""The picture of a population."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.extras import need

if TYPE_CHECKING:
    from .describe import Description


def draw(description: Description, clients: int) -> Any:
    """Return a Figure: bubbles of rows per class and client, and the histogram of the clients' sizes."""
    figure_module = need("matplotlib.figure", "report", "a picture of a partition")
    with_labels = description.counts is not None
    figure = figure_module.Figure(figsize=(10, 4.2) if with_labels else (5, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if with_labels else 1, squeeze=False)[0]
    if with_labels:
        _bubbles(axes[0], description, clients)
    _histogram(axes[-1], description)
    figure.suptitle(f"{description.name}, {description.scheme or 'clients'}: {description.clients:,} clients")
    return figure


def _bubbles(axes: Any, description: Description, clients: int) -> None:
    counts = description.counts
    if counts is None:
        return
    shown = np.unique(np.linspace(0, len(counts) - 1, min(clients, len(counts))).astype(int))
    counts = counts[shown]
    column, row = np.nonzero(counts)
    area = 120.0 * counts[column, row] / max(int(counts.max()), 1)
    axes.scatter(column, row, s=area, c=row, cmap="tab10" if counts.shape[1] <= 10 else "viridis", alpha=0.8)
    places = np.unique(np.linspace(0, len(shown) - 1, min(8, len(shown))).astype(int))
    axes.set_xticks(places, [f"{description.looked_at[shown[p]]}" for p in places])
    if counts.shape[1] <= 20:
        axes.set_yticks(range(counts.shape[1]), description.classes)
    axes.set_xlabel("client" if len(shown) == description.clients else f"client ({len(shown)} shown)")
    axes.set_ylabel("class")
    axes.set_title(f"rows per class (label skew {description.label_skew or 0.0:.2f})")


def _histogram(axes: Any, description: Description) -> None:
    axes.hist(description.sizes, bins=min(40, max(5, len(np.unique(description.sizes)))), color="tab:blue")
    axes.axvline(description.size_mean, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("rows")
    axes.set_ylabel("clients")
    axes.set_title(f"sizes: {description.size_mean:,.0f} ± {description.size_std:,.0f}")
