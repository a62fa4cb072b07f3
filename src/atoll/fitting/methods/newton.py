"""One step of Newton's method where each value of the loss costs a contact."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from atoll.fitting.method import State

__all__ = ["newton_step"]

_HALVINGS = 30


def newton_step(state: State, loss: float, gradient: NDArray[Any], hessian: NDArray[Any], tolerance: float) -> State:
    """The next point to ask about.

    A point whose loss is larger than that of the last accepted one is given up for the middle between them. An accepted one is left by ``-H^-1 g``, with the
    smallest step if ``H`` has no inverse. It is the last if ``g' H^-1 g / 2``, what the step promises, is at most ``tolerance`` times the loss.

    Args:
        state: has the point asked about, ``at``; once one is accepted, ``best`` and its ``loss``.
        loss: there.
        gradient: there.
        hessian: there.
        tolerance: see above.
    """
    at = np.asarray(state["at"])
    halvings = int(state.get("halvings", 0))
    slack = 1e-14 * (1 + abs(float(state.get("loss", 0.0))))
    if "best" in state and not loss <= float(state["loss"]) + slack:
        if halvings >= _HALVINGS:
            return {**state, "done": True}
        return {**state, "at": (at + np.asarray(state["best"])) / 2, "halvings": halvings + 1}
    step = np.linalg.lstsq(hessian, gradient, rcond=None)[0]
    promised = float(gradient @ step) / 2
    done = promised <= tolerance * (1 + abs(loss))
    # The last step is made without asking again: at the optimum its error is the square of the step's.
    best = at - step if done else at
    return {
        **state,
        "at": at - step,
        "best": best,
        "loss": loss,
        "halvings": 0,
        "done": done,
        "hessian": hessian if done else None,
    }
