"""How far clients are with what they work on: columns over the population."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.traffic.flight import Flight

__all__ = ["done_by", "nobody", "noted"]


def nobody(clients: int) -> Tree:
    """Nobody works: ``since`` and ``until`` (seconds on the clock: asked, and answering or crashing), ``share`` (of a local update that is done by then)."""
    return {name: np.zeros(clients) for name in ("since", "until", "share")}


def noted(columns: Tree, places: NDArray[np.int64], flight: Flight, share: float) -> Tree:
    """The columns with a request.

    Args:
        columns: from `nobody`.
        places: of its parties.
        flight: the request.
        share: of a local update that it asks for.

    How far real parties are is not known: all of it counts as done from the beginning, as with whoever is lost there.
    """
    lost = ~np.isfinite(flight.arrives)
    # A crash that no link ever notices is there from the beginning.
    noticed = np.where(np.isfinite(flight.lost), flight.lost, flight.sent)
    told = {
        "since": flight.sent,
        "until": np.where(lost, noticed, flight.arrives),
        "share": share * np.where(lost, flight.fraction, 1.0),
    }
    columns = {name: column.copy() for name, column in columns.items()}
    for name, values in told.items():
        columns[name][places] = values
    return columns


def done_by(columns: Tree, now: float) -> NDArray[np.float64]:
    """Share of a local update that each has done by a moment, ``(clients,)``, spread evenly over the seconds from asking to the reply or the crash."""
    took = columns["until"] - columns["since"]
    passed = np.clip((now - columns["since"]) / np.where(took > 0, took, 1.0), 0.0, 1.0)
    return np.asarray(columns["share"] * np.where(took > 0, passed, 1.0), dtype=np.float64)
