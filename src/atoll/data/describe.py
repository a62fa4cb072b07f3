"""A description of a population, in numbers and in a picture."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.core.algebra.rng import Rng
from atoll.core.extras import need

from ._checks import Array
from .dataset import About

__all__ = ["Description"]


# The picture of a population.


def draw(description: Description, clients: int) -> Any:
    """Return a Figure: bubbles of rows per class and client, and the histogram of the clients' sizes."""
    figure_module = need("matplotlib.figure", "report", "a picture of a partition")
    with_labels = description.counts is not None
    figure = figure_module.Figure(figsize=(10, 4.2) if with_labels else (5, 4.2), layout="constrained")
    axes = figure.subplots(1, 2 if with_labels else 1, squeeze=False)[0]
    if with_labels:
        _draw_bubbles(axes[0], description, clients)
    _draw_histogram(axes[-1], description)
    figure.suptitle(f"{description.name}, {description.scheme or 'clients'}: {description.clients:,} clients")
    return figure


def _draw_bubbles(axes: Any, description: Description, clients: int) -> None:
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


def _draw_histogram(axes: Any, description: Description) -> None:
    axes.hist(description.sizes, bins=min(40, max(5, len(np.unique(description.sizes)))), color="tab:blue")
    axes.axvline(description.size_mean, color="black", linestyle="--", linewidth=1)
    axes.set_xlabel("rows")
    axes.set_ylabel("clients")
    axes.set_title(f"sizes: {description.size_mean:,.0f} ± {description.size_std:,.0f}")


_SHOWN = 5  # classes that a note names
_QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


@dataclass(frozen=True, eq=False)
class Description:
    """A population in numbers.

    Attributes:
        name: name of the data.
        scheme: how the data were divided.
        clients: number of clients.
        rows: number of rows of all clients.
        sizes: rows of each client, ``(clients,)``.
        looked_at: positions of the clients whose labels were counted, ``(k,)``.
        counts: rows per class of these clients, ``(k, classes)``; for a regression the classes are deciles of ``y``;
            ``None`` if rows do not have one label each.
        classes: names of the columns of ``counts``.
        corrupted: maps a corruption to the number of its clients.
        labelled: rows with a label of the clients looked at, ``(k,)``; ``None`` if no label is missing. ``counts`` has these rows alone.
    """

    name: str
    scheme: str
    clients: int
    rows: int
    sizes: NDArray[np.int64]
    looked_at: NDArray[np.int64]
    counts: NDArray[np.int64] | None
    classes: tuple[str, ...]
    corrupted: dict[str, int]
    labelled: NDArray[np.int64] | None = None

    @property
    def size_mean(self) -> float:
        """Mean number of rows per client."""
        return float(self.sizes.mean())

    @property
    def size_std(self) -> float:
        """Standard deviation of the number of rows per client."""
        return float(self.sizes.std())

    @property
    def size_quantiles(self) -> dict[float, float]:
        """Quantiles of the number of rows per client."""
        return dict(zip(_QUANTILES, map(float, np.quantile(self.sizes, _QUANTILES)), strict=True))

    @property
    def classes_per_client(self) -> float | None:
        """Mean number of classes that a client with rows has."""
        counts = self._nonempty()
        return None if counts is None else float((counts > 0).sum(axis=1).mean())

    @property
    def label_skew(self) -> float | None:
        """Mean total-variation distance between a client's label distribution and that of all rows counted.

        ``TV(p, q) = sum_c |p_c - q_c| / 2``: 0 if every client looks like the whole, near 1 if clients have a single rare
        class. Small clients have some distance from sampling alone: compare with the uniform partition.
        """
        counts = self._nonempty()
        if counts is None:
            return None
        whole = counts.sum(axis=0) / counts.sum()
        return float(np.abs(counts / counts.sum(axis=1, keepdims=True) - whole).sum(axis=1).mean() / 2)

    @property
    def notes(self) -> list[str]:
        """What often is a mistake in labels: classes without rows, as of labels that begin at 1, and classes that one client alone has.

        Empty for a regression, and if only some of the clients were counted.
        """
        if self.counts is None or len(self.looked_at) < self.clients or self.classes[:1] == ("0-10 %",):
            return []
        holders, found = (self.counts > 0).sum(axis=0), []
        empty = np.flatnonzero(holders == 0)
        if len(empty):
            hint = "; if your labels begin at 1, use y - 1" if empty[0] == 0 else ""
            found.append(f"no row has {_list_names(self.classes, empty)}{hint}")
        lone = np.flatnonzero(holders == 1)
        if len(lone) and self.clients > 1:
            where = sorted({int(self.looked_at[np.argmax(self.counts[:, c])]) for c in lone})
            one = (
                f"client {where[0]}" if len(where) == 1 else f"one client each ({', '.join(map(str, where[:_SHOWN]))})"
            )
            found.append(f"{_list_names(self.classes, lone)}: at {one} alone, so no other client learns or tests it")
        return found

    def table(self) -> str:
        """Return the numbers as text in aligned lines."""
        q = self.size_quantiles
        lines = [
            ("data", self.name),
            ("partition", self.scheme or "-"),
            ("clients", f"{self.clients:,}"),
            ("rows", f"{self.rows:,}"),
            ("rows per client", f"{self.size_mean:,.1f} ± {self.size_std:,.1f}"),
            ("  quantiles", "  ".join(f"{p:.0%} {q[p]:,.0f}" for p in _QUANTILES)),
        ]
        if self.label_skew is not None and self.classes_per_client is not None:
            sampled = "" if len(self.looked_at) == self.clients else f" ({len(self.looked_at):,} clients sampled)"
            unit = "deciles of y" if self.classes[:1] == ("0-10 %",) else "classes"
            lines.append((f"{unit} per client", f"{self.classes_per_client:.2f} of {len(self.classes)}{sampled}"))
            lines.append(("label skew (TV)", f"{self.label_skew:.3f}"))
        if self.labelled is not None:
            some, rows = int((self.labelled > 0).sum()), int(self.sizes[self.looked_at].sum())
            shown = f"{int(self.labelled.sum()):,} of {rows:,}, at {some:,} of {len(self.looked_at):,} clients"
            lines.append(("labelled rows", shown))
        lines += [("look out", note) for note in self.notes]
        if self.corrupted:
            lines.append(("corrupted", ", ".join(f"{tag} {n:,}" for tag, n in self.corrupted.items())))
        width = max(len(key) for key, _ in lines)
        return "\n".join(f"{key:<{width}}  {value}" for key, value in lines)

    def plot(self, clients: int = 50) -> Any:
        """Draw bubbles by class and client, and the histogram of sizes.

        Args:
            clients: maximum number of clients to draw, evenly spaced among those whose labels were counted.

        Returns:
            A ``matplotlib.figure.Figure``, not shown and not registered with pyplot.

        Raises:
            MissingExtraError: matplotlib is not installed.
        """
        return draw(self, clients)

    def _nonempty(self) -> NDArray[np.int64] | None:
        """Counts of the clients with at least one row."""
        if self.counts is None:
            return None
        counts = self.counts[self.counts.sum(axis=1) > 0]
        return counts if len(counts) else None

    def __str__(self) -> str:
        return self.table()

    __repr__ = __str__


def _list_names(names: tuple[str, ...], which: NDArray[np.int64]) -> str:
    shown = ", ".join(names[c] for c in which[:_SHOWN])
    return f"{'class' if len(which) == 1 else 'classes'} {shown}{', ...' if len(which) > _SHOWN else ''}"


def sampled(clients: int, sample: int, rng: Rng) -> NDArray[np.int64]:
    """Positions of the clients whose labels are counted: at most ``sample``."""
    if clients <= sample:
        return np.arange(clients)
    return np.sort(rng.child("describe").generator().choice(clients, sample, replace=False))


def describe(
    about: About,
    scheme: str,
    sizes: NDArray[np.int64],
    corrupted: dict[str, int],
    looked_at: NDArray[np.int64],
    labels: tuple[Array, ...] | None,
) -> Description:
    """Summarise a population.

    Args:
        about: the description of the data.
        scheme: how the data were divided.
        sizes: rows of each client.
        corrupted: maps a corruption to the number of its clients.
        looked_at: positions of the clients whose labels are counted.
        labels: their columns ``y`` and, if some labels are missing, ``labelled``, stacked, and the offsets; ``None`` without labels.
    """
    counts: NDArray[np.int64] | None = None
    classes: tuple[str, ...] = ()
    known: NDArray[np.int64] | None = None
    if labels is not None:
        y, *marks, offsets = labels
        there = np.asarray(marks[0].reshape(len(y), -1).all(axis=1)) if marks else np.ones(len(y), np.bool_)
        counts, classes = _label_counts(about, y, there, offsets)
        known = np.diff(np.concatenate([[0], np.cumsum(there)])[offsets]) if marks else None
    rows = int(sizes.sum())
    return Description(about.name, scheme, len(sizes), rows, sizes, looked_at, counts, classes, corrupted, known)


def _label_counts(
    about: About, y: Array, there: NDArray[np.bool_], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | None, tuple[str, ...]]:
    if y.ndim != 1 or y.dtype.kind not in "biuf":
        return None, ()
    codes, names = _codes(about, y[there])
    clients = len(offsets) - 1
    owner = np.repeat(np.arange(clients), np.diff(offsets))[there]
    flat = np.bincount(owner * len(names) + codes, minlength=clients * len(names))
    return flat.reshape(clients, len(names)), names


def _codes(about: About, y: Array) -> tuple[NDArray[np.int64], tuple[str, ...]]:
    if about.task == "classification":
        count = int(about.classes or 1)
        return y.astype(np.int64), about.labels or tuple(map(str, range(count)))
    if about.task == "binary":
        return (y > 0).astype(np.int64), about.labels or ("negative", "positive")
    edges = np.quantile(y, np.linspace(0.1, 0.9, 9)) if len(y) else np.zeros(9)
    return np.searchsorted(edges, y, side="right"), tuple(f"{10 * k}-{10 * k + 10} %" for k in range(10))
