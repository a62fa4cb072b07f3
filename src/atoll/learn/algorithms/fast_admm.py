"""Fast ADMM (Goldstein et al. 2014): Nesterov extrapolation of consensus and multipliers, with a restart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.learn.algorithm import RoundInfo
from atoll.learn.card import Card

from .two_phase_admm import TwoPhaseADMM

__all__ = ["FastADMM"]


@dataclass(frozen=True, kw_only=True)
class FastADMM(TwoPhaseADMM):
    """``z^ = z + b (z - z_old)`` and ``l^_k = l_k + b (l_k - l_k_old)`` with ``b = (a - 1) / a+``, ``a+ = (1 + sqrt(1 + 4 a^2)) / 2``.

    Restart: if ``c = sum_k ||l_k - l^_k||^2 / rho + rho N ||z - z^||^2`` does not fall below 0.999 of the last one, ``a = 1`` and ``b = 0``
    (the paper goes back to the point before instead).
    Without it, the method may diverge on problems that are not strongly convex enough.

    Attributes:
        restart: restart extrapolation when the residual ``c`` grows; ``False`` never does.
        accelerate: ``False`` is plain consensus ADMM.
    """

    restart: bool = True
    accelerate: bool = True
    citation: ClassVar[str] = (
        "Goldstein, O'Donoghue, Setzer, Baraniuk. Fast Alternating Direction Optimization Methods. SIAM J. Imaging Sciences, 2014."
    )
    card: ClassVar[Card] = Card(
        family="admm",
        unbiased=True,
        everyone=True,
        note="It minimises the mean of the clients' objectives, each with weight 1/N. In a star only.",
    )

    def init(self, params: Tree) -> Tree:
        """Start with ``z = z^``, and nothing to extrapolate."""
        return {**super().init(params), "old": params, "a": 1.0, "b": 0.0, "c": math.inf}

    def make_message(self, state: Tree) -> Tree:
        """Return ``b``."""
        return {"b": state["b"]}

    def memory(self, zero: Tree) -> Tree:
        """Return ``l_k`` and the one before."""
        return {"dual": zero, "old": zero}

    def point(self, broadcast: Tree, client: Tree) -> Tree:
        """Return ``l^_k``."""
        return T.add(client["dual"], T.scale(T.sub(client["dual"], client["old"]), broadcast["b"]))

    def reply_dual(self, dual: Tree, client: Tree) -> tuple[dict[str, Aggregate], Tree]:
        """Return ``||l_k - l^_k||^2``."""
        gap = T.sub(dual, client["at"])
        return {"moved": Sum(T.dot(gap, gap), role="side")}, {"dual": dual, "old": client["dual"]}

    def chosen(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo) -> Tree:
        """Return the lead of ``z^`` over ``z``."""
        z, old, gap = state["params"], state["old"], T.sub(state["params"], state["ahead"])
        c = float(sums["moved"]) / self.rho + self.rho * info.population * float(T.dot(gap, gap))
        a, b = 1.0, 0.0
        if self.accelerate and (not self.restart or c < 0.999 * state["c"]):
            a = (1.0 + math.sqrt(1.0 + 4.0 * state["a"] ** 2)) / 2.0
            b = (state["a"] - 1.0) / a
        return {**state, "old": z, "lead": T.scale(T.sub(z, old), b), "a": a, "b": b, "c": c}
