"""FedSSO (Ma et al. 2022): clients take plain SGD steps, and the server builds a quasi-Newton step from what they did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Mean
from atoll.core.errors import ConfigError
from atoll.core.tree import Tree
from atoll.learn.algorithm import LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.curvature import ravel, stepped
from atoll.learn.quasi_newton import bfgs, two_loop

from .fedavg import FedAvg

__all__ = ["FedSSO"]


@dataclass(frozen=True, kw_only=True)
class FedSSO(FedAvg):
    """The server takes ``G = mean (x - y_k) / (T_k lr)`` for a gradient and learns a Hessian ``B`` from its changes: ``x <- x - server_lr B^-1 G``.

    With ``s`` the last move of the model and ``q`` the change of ``G``: ``B <- B + q q^T/(q^T s) - B s s^T B/(s^T B s)`` (BFGS), left out
    where ``q^T s <= 0``. ``B`` begins as ``curvature I``. Clients send ``d`` floats and keep nothing. Above ``dense`` parameters only the last
    ``memory`` pairs are kept (L-BFGS), so that the server needs ``O(memory d)`` instead of ``O(d^2)``.

    The fixed point is that of FedAvg with as many local steps; with one full-batch step it is the optimum. Changes of a sampled cohort's ``G``
    are mostly noise: use it with everyone, or with a small ``server_lr``.

    Attributes:
        server_lr: step size ``eta_g``.
        curvature: first ``B`` is this times the identity; ``None`` is ``1/lr``, one gradient step of the clients' rate.
        dense: most parameters for which ``B`` is kept as a matrix.
        memory: pairs kept above that.
    """

    curvature: float | None = None
    dense: int = 256
    memory: int = 10
    citation: ClassVar[str] = (
        "Ma, Bao, Jiang, Liu, Jiang, Yan, Liu, Pan. FedSSO: A Federated Server-Side Second-Order Optimization Algorithm. "
        "arXiv:2206.09576, 2022."
    )
    card: ClassVar[Card] = Card(family="second order", note="keeps FedAvg's drift")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, right, remedy in (
            ("curvature", self.curvature is None or 0 < self.curvature < np.inf, "use a positive number, or None"),
            ("dense", self.dense >= 0, "use 0 or more parameters"),
            ("memory", self.memory >= 1, "keep at least 1 pair"),
        ):
            if not right:
                raise ConfigError(f"{name}={getattr(self, name)}", where="FedSSO", remedy=remedy)

    def init(self, params: Tree) -> Tree:
        """The model, and nothing learned: ``B`` as a matrix, or no pairs yet."""
        d = T.size(params)
        first = 1.0 / self.lr if self.curvature is None else self.curvature
        learned: Any = {"hessian": first * np.eye(d)} if d <= self.dense else {"pairs": []}
        return {**super().init(params), "last": None, **learned}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the mean of the client's steps, ``(x - y_k) / (T_k lr)``; 0 of a client without rows."""
        moved = T.sub(broadcast["params"], local["params"])
        steps = work.steps + (work.steps == 0)
        return {"gradient": Mean(T.scale(moved, 1.0 / (steps * broadcast["lr"])), examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Learn from the last move, then move."""
        del info, phase
        x, gradient = (ravel(tree).astype(np.float64) for tree in (state["params"], sums["gradient"]))
        learned = {name: state[name] for name in ("hessian", "pairs") if name in state}
        if state["last"] is not None:
            learned = self._learned(learned, x - state["last"]["x"], gradient - state["last"]["gradient"])
        if "hessian" in learned:
            toward = np.linalg.solve(learned["hessian"], gradient)
        else:
            first = self.lr if self.curvature is None else 1.0 / self.curvature
            toward = two_loop(learned["pairs"], gradient, first)
        params = stepped(state["params"], self.server_lr * toward)
        last = {"x": x, "gradient": gradient}
        return {**learned, "params": params, "lr": state["lr"] * self.decay, "last": last}

    def _learned(self, learned: Tree, s: np.ndarray, q: np.ndarray) -> Tree:
        if not q @ s > 0:
            return learned
        if "hessian" in learned:
            return {"hessian": bfgs(learned["hessian"], s, q)}
        return {"pairs": [*learned["pairs"], {"s": s, "q": q}][-self.memory :]}
