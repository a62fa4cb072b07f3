"""FedSSO (Ma et al. 2022): clients take plain SGD steps, and the server builds a quasi-Newton step from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.learn.algorithm import LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.curvature import bfgs, ravel, step_params, two_loop

from .fedavg import FedAvg

__all__ = ["FedSSO"]


@dataclass(frozen=True, kw_only=True)
class FedSSO(FedAvg):
    """The server uses ``G = mean (x - y_k) / (T_k lr)`` as a gradient and learns a Hessian ``B`` from its changes: ``x <- x - server_lr B^-1 G``.

    With ``s`` the last move of the model and ``q`` the change of ``G``, ``B <- B + q q^T/(q^T s) - B s s^T B/(s^T B s)`` (BFGS), skipped
    if ``q^T s < c ||q|| ||s||`` with ``c = 2 sqrt(k) / (1 + k)`` for ``k = condition``. ``B`` starts as ``curvature I``. Clients send ``d`` floats and keep
    nothing. Above ``dense`` parameters, only the last ``memory`` pairs are kept (L-BFGS), so that the server needs ``O(memory d)`` instead of ``O(d^2)``.

    The paper skips pairs with ``q^T s <= 0`` (``condition=None``). With a sampled cohort, ``q`` also contains the difference of two cohorts' gradients, which
    does not shrink with ``s``. A pair may then pass with almost no curvature, ``B^-1`` becomes huge and the loss rises by many orders of magnitude. On a
    quadratic with curvatures within a factor ``k``, the cosine between ``q`` and ``s`` is at least ``c`` (Kantorovich's inequality), so with all
    clients, skipping such pairs loses nothing. The loss may still rise in single rounds: a smaller ``server_lr`` or ``condition`` helps.

    The fixed point is that of FedAvg with the same local steps; with one full-batch step, it is the optimum.

    Attributes:
        server_lr: step size ``eta_g``.
        curvature: the initial ``B`` is this times the identity; ``None`` is ``1/lr``, a gradient step at the clients' rate.
        condition: the largest accepted ratio ``k`` of curvatures, above 1; ``None`` accepts any.
        dense: the largest number of parameters for which ``B`` is a matrix.
        memory: number of pairs kept above that.
    """

    curvature: float | None = None
    condition: float | None = 100.0
    dense: int = 256
    memory: int = 10
    citation: ClassVar[str] = (
        "Ma, Bao, Jiang, Liu, Jiang, Yan, Liu, Pan. FedSSO: A Federated Server-Side Second-Order Optimization Algorithm. "
        "arXiv:2206.09576, 2022."
    )
    card: ClassVar[Card] = Card(family="second order", note="It keeps FedAvg's drift.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, right, remedy in (
            ("curvature", self.curvature is None or 0 < self.curvature < np.inf, "use a positive number, or None"),
            ("condition", self.condition is None or 1 < self.condition < np.inf, "use a number above 1, or None"),
            ("dense", self.dense >= 0, "use 0 or more parameters"),
            ("memory", self.memory >= 1, "keep at least 1 pair"),
        ):
            if not right:
                raise ConfigError(f"{name}={getattr(self, name)}", where="FedSSO", remedy=remedy)

    def init(self, params: Tree) -> Tree:
        """Start with the model and the initial ``B``: a matrix, or no pairs yet."""
        d = T.size(params)
        first = 1.0 / self.lr if self.curvature is None else self.curvature
        learned: Any = {"hessian": first * np.eye(d)} if d <= self.dense else {"pairs": []}
        return {**super().init(params), "last": None, **learned}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the mean of the client's steps, ``(x - y_k) / (T_k lr)``; 0 from a client without rows."""
        moved = T.sub(broadcast["params"], local["params"])
        steps = work.steps + (work.steps == 0)
        return {"gradient": Mean(T.scale(moved, 1.0 / (steps * broadcast["lr"])), examples=work.examples)}, client

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Learn from the last move, then move the model."""
        del info, phase
        x, gradient = (ravel(tree).astype(np.float64) for tree in (state["params"], sums["gradient"]))
        learned = {name: state[name] for name in ("hessian", "pairs") if name in state}
        if state["last"] is not None:
            learned = self._learn_curvature(learned, x - state["last"]["x"], gradient - state["last"]["gradient"])
        if "hessian" in learned:
            toward = np.linalg.solve(learned["hessian"], gradient)
        else:
            first = self.lr if self.curvature is None else 1.0 / self.curvature
            toward = two_loop(learned["pairs"], gradient, first)
        params = step_params(state["params"], self.server_lr * toward)
        last = {"x": x, "gradient": gradient}
        return {**learned, "params": params, "lr": state["lr"] * self.decay, "last": last}

    def _learn_curvature(self, learned: Tree, s: np.ndarray, q: np.ndarray) -> Tree:
        k = self.condition
        least = 0.0 if k is None else 2.0 * np.sqrt(k) / (1.0 + k)
        if not q @ s > least * (1.0 - 1e-9) * np.linalg.norm(q) * np.linalg.norm(s):
            return learned
        if "hessian" in learned:
            return {"hessian": bfgs(learned["hessian"], s, q)}
        return {"pairs": [*learned["pairs"], {"s": s, "q": q}][-self.memory :]}
