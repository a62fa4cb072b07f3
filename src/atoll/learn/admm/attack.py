"""Rating recovery: what the server of a matrix factorisation can compute from its view."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .factorisation import ServerView

__all__ = ["ratings_from_messages", "ratings_from_sums"]

Array = np.ndarray[Any, np.dtype[Any]]


def ratings_from_messages(views: Sequence[ServerView], rho: float) -> dict[str, Array]:
    """Return every user's ratings from the clear protocol, exactly: two views of a user are enough.

    The ``x``-step is ``2 m (x - r) + rho (x - u_old V^T) + pi_old = 0``, the message ``s = rho x + pi`` and ``pi = pi_old + rho (x - u V^T)``. So
    ``2 m (r - x) = rho (u - u_old) V^T + pi`` where everything on the right except ``pi`` is known, and ``pi`` follows from ``pi_old`` and ``s``:
    ``2 rho x = s - pi_old + rho u V^T``. ``pi`` starts at zero. The right side vanishes for items not rated, so the server also reads the mask.

    Args:
        views: the server's views of all rounds, in order, from the first.
        rho: the penalty, which every party knows.

    Returns:
        User -> ratings ``(items,)``, with NaN for items not rated.
    """
    dual: dict[str, Array] = {}
    profile: dict[str, Array] = {}
    found: dict[str, Array] = {}
    for view in views:
        for name, reply in view.replies.items():
            old, before = dual.get(name, np.zeros(len(view.items))), profile.get(name, np.zeros(view.items.shape[1]))
            predicted = view.items @ reply["u"]
            x = (reply["message"] - old + rho * predicted) / (2.0 * rho)
            dual[name], profile[name] = reply["message"] - rho * x, reply["u"]
            slope = old + rho * (x - view.items @ before)  # 2 m (r - x)
            rated = np.abs(slope) > 1e-9 * (1.0 + np.abs(rho * x))
            found[name] = np.where(rated, x + 0.5 * slope, found.get(name, np.full(len(x), np.nan)))
    return found


def ratings_from_sums(views: Sequence[ServerView], rho: float, names: Sequence[str]) -> dict[str, Array]:
    """Return the best guess from sums: the cohort's change of ``(A, B)`` treated as if it came from one user.

    ``B = s^T u`` has rank 1 for one user. Its singular vectors then give ``s`` and ``u`` up to a sign, and the clear attack continues from there. For two
    users or more, it gives a mixture, the same for all.

    Args:
        views: the server's views of all rounds, in order, from the first.
        rho: the penalty.
        names: names of the users.
    """
    guesses: list[ServerView] = []
    square, cross = np.zeros_like(views[0].sums["A"]), np.zeros_like(views[0].sums["B"])
    for view in views:
        square, cross = square + view.sums["A"], cross + view.sums["B"]
        values, turn = np.linalg.eigh(square)
        u = turn[:, -1] * np.sqrt(max(values[-1], 0.0))
        if not u.any():
            continue
        guesses.append(ServerView(view.round, view.items, {"one": {"u": u, "message": cross @ u / (u @ u)}}, {}))
    one = ratings_from_messages(guesses, rho).get("one", np.full(len(views[0].items), np.nan))
    return dict.fromkeys(names, one)
