"""Anderson-accelerated ADMM: one sweep as a fixed-point map, extrapolated from its last steps, with a safeguard."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import RoundInfo
from atoll.learn.card import Card
from atoll.learn.checks import require_count

from .two_phase_admm import TwoPhaseADMM

__all__ = ["AndersonADMM"]


@dataclass(frozen=True, kw_only=True)
class AndersonADMM(TwoPhaseADMM):
    """A sweep is a map ``G`` of ``u = (z, l_1 .. l_N)`` with residual ``F = G(u) - u``; the next point is ``G - sum_j theta_j dG_j``.

    ``theta`` minimises ``||F - sum_j theta_j dF_j||`` over the last ``window`` differences, in the norm ``rho N ||z||^2 + sum_k ||l_k||^2 / rho``. The
    server needs only inner products, which are sums over the clients: ``(window + 1)^2`` numbers. If an extrapolated point has a larger residual
    than the point before, the next step is plain and the differences are cleared.

    Attributes:
        window: number of stored differences, at least 1.
    """

    window: int = 5
    citation: ClassVar[str] = (
        "Zhang, Peng, Ouyang, Deng. Accelerating ADMM for Efficient Simulation and Optimization. ACM Transactions on Graphics, 2019; "
        "Walker, Ni. Anderson Acceleration for Fixed-Point Iterations. SIAM J. Numerical Analysis, 2011."
    )
    card: ClassVar[Card] = Card(
        family="admm",
        unbiased=True,
        everyone=True,
        note="It minimises the mean of the clients' objectives, each with weight 1/N. In a star only.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_count("AndersonADMM", window=self.window)

    def init(self, params: Tree) -> Tree:
        """Start with ``z``, and no history."""
        history = self.memory(T.zeros_like(params))
        return {**super().init(params), **history, "theta": [0.0] * self.window, "seen": 0, "norm": math.inf}

    def make_message(self, state: Tree) -> Tree:
        """Return ``theta``."""
        return {"theta": state["theta"]}

    def memory(self, zero: Tree) -> Tree:
        """Return ``G``, ``F`` and their last differences, newest first."""
        past = T.map(lambda leaf: T.stack([leaf] * self.window), zero)
        return {"G": zero, "F": zero, "dG": past, "dF": past}

    def point(self, broadcast: Tree, client: Tree) -> Tree:
        """Return ``G - sum_j theta_j dG_j``."""
        return _combine_past(client["G"], client["dG"], broadcast["theta"], self.window)

    def reply_dual(self, dual: Tree, client: Tree) -> tuple[dict[str, Aggregate], Tree]:
        """Return inner products of ``F`` and its differences."""
        fresh = self._move_image(dual, T.sub(dual, client["at"]), client)
        return {"gram": Sum(self._gram(fresh), role="side")}, fresh

    def chosen(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo) -> Tree:
        """Return ``theta``, and the lead of the next ``z`` over this one."""
        z = state["params"]
        fresh = self._move_image(z, T.sub(z, state["ahead"]), state)
        gram = np.asarray(sums["gram"], np.float64) / self.rho + self.rho * info.population * np.asarray(
            self._gram(fresh)
        )
        size, norm = self.window + 1, float(np.asarray(gram).reshape(-1)[0])
        theta, seen = np.zeros(self.window), min(state["seen"] + 1, size)
        if norm > state["norm"]:
            seen = 1
        elif seen > 1:
            matrix = gram.reshape(size, size)
            theta[: seen - 1] = np.linalg.lstsq(matrix[1:seen, 1:seen], matrix[1:seen, 0], rcond=1e-14)[0]
        chosen = theta.tolist()
        lead = _combine_past(T.zeros_like(z), fresh["dG"], chosen, self.window)
        return {**state, **fresh, "lead": lead, "theta": chosen, "seen": seen, "norm": norm}

    def _move_image(self, image: Tree, residual: Tree, before: Tree) -> Tree:
        def shift_past(past: Tree, change: Tree) -> Tree:
            return T.map(lambda p, c: T.stack([c, *[p[j] for j in range(self.window - 1)]]), past, change)

        return {
            "G": image,
            "F": residual,
            "dG": shift_past(before["dG"], T.sub(image, before["G"])),
            "dF": shift_past(before["dF"], T.sub(residual, before["F"])),
        }

    def _gram(self, memory: Tree) -> Any:
        rows = [memory["F"], *[T.map(lambda leaf, j=j: leaf[j], memory["dF"]) for j in range(self.window)]]
        return T.stack([T.dot(a, b) for a in rows for b in rows])


def _combine_past(image: Tree, past: Tree, theta: Any, window: int) -> Tree:
    for j in range(window):
        image = T.sub(image, T.map(lambda leaf, j=j: leaf[j] * theta[j], past))
    return image
