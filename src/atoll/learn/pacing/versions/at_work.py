"""Progress of clients on their work: columns over the population."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from atoll.core.algebra.tree import Tree
    from atoll.core.federation.flight import Flight

__all__ = ["done_by", "nobody", "noted"]


def nobody(clients: int) -> Tree:
    """Return columns without work: ``since`` and ``until`` (clock seconds of request, and of reply or crash), ``share`` (of a local update done by ``until``)."""
    return {name: np.zeros(clients) for name in ("since", "until", "share")}


def noted(columns: Tree, places: NDArray[np.int64], flight: Flight, share: float) -> Tree:
    """Return the columns with a request.

    Args:
        columns: columns from `nobody`.
        places: positions of the request's parties.
        flight: the request.
        share: share of a local update that the request asks for.

    The progress of real parties is unknown: all of it counts as done from the start, also for lost parties.
    """
    lost = ~np.isfinite(flight.arrives)
    # A crash that no link ever notices counts from the start.
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
    """Return the share of a local update that each client has done by ``now``, ``(clients,)``, spread evenly from request to reply or crash."""
    took = columns["until"] - columns["since"]
    passed = np.clip((now - columns["since"]) / np.where(took > 0, took, 1.0), 0.0, 1.0)
    return np.asarray(columns["share"] * np.where(took > 0, passed, 1.0), dtype=np.float64)
