"""Linearised federated ADMM (L-FedADMM): a regulariser such as the nuclear norm at the server, gradient steps at the clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Sum
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, LocalWork, Movable, RoundInfo, Stateful
from atoll.learn.card import Card
from atoll.learn.checks import require_choice, require_count, require_positive
from atoll.learn.proximal import check_regulariser, or_rest, present, prox

__all__ = ["LFedADMM"]


@dataclass(frozen=True, kw_only=True)
class LFedADMM(Algorithm, Compressing, Stateful, Movable):
    """``min sum_k f_k(X) + weight R(X)`` by consensus: ``X_k = Z`` with multipliers ``pi_k``. It minimises a *sum* of the clients' losses, each as its learner defines it.

    Client, ``T`` times: ``X <- (rho lr Z - lr pi + X - lr grad f_k(X)) / (1 + rho lr)``, then ``pi <- pi + rho (X - Z)``: once per round, or after
    every step as the paper prints it, which diverges for small ``rho`` and several steps. Server, ``inner`` times:
    ``Z <- prox_{weight eta R}(Z - eta (N rho Z - sum_k M_k))`` with ``M_k = pi_k + rho X_k``. With ``eta = 1/(N rho)``, the default, one step is exact.

    Everything starts at zero, whatever the learner's initial model. A client sends the change of its ``M_k``, so that others may be away and only sums
    are needed. As ``T`` grows, the printed form becomes proximal gradient with step ``1/(N rho)``, which needs ``rho > L / (2 N)`` with ``L`` the
    smoothness of ``sum_k f_k``. One dual update per round becomes ADMM with exact local solutions, which is stable for any penalty. ``M_k`` reveals as
    much as a gradient: at the end, it is ``rho Z - grad f_k(Z)``.

    Attributes:
        rho: penalty, positive.
        weight: weight of the regulariser, not negative.
        regulariser: ``"nuclear"`` (matrices; other parameters are not regularised), ``"l1"``, ``"ridge"`` or ``"none"``.
        dual_update: ``"round"``, or ``"step"`` as printed.
        inner: number of server steps.
        server_lr: ``eta`` times ``N rho``, in (0, 2).
        download_rank: send ``Z`` to clients as changes of at most this rank, factored; ``None`` sends it whole.
        adaptive: number of initial rounds after which ``rho`` is doubled or halved unless the relative primal and dual residuals,
            ``||X - Z|| / ||Z||`` and ``rho ||Z - Z_old|| / ||pi||``, are within ten times of each other (Wohlberg 2017, "ADMM Penalty Parameter
            Selection by Residual Balancing"). It corrects a penalty that is far off. Multipliers and models are then summed separately,
            for twice the upload.
    """

    lr: float = 0.01
    batch_size: int | None = None
    rho: float = 1.0
    weight: float = 0.1
    regulariser: str = "nuclear"
    dual_update: str = "round"
    inner: int = 1
    server_lr: float = 1.0
    download_rank: int | None = None
    adaptive: int = 0
    extrapolates: ClassVar[tuple[str, ...]] = ("params",)
    citation: ClassVar[str] = "Advancements in Federated Learning: Models, Methods, and Privacy (survey), Algorithm 1."
    card: ClassVar[Card] = Card(
        family="admm", note="It minimises the sum of losses plus a regulariser. That optimum is its fixed point."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_positive("LFedADMM", rho=self.rho)
        require_count("LFedADMM", inner=self.inner)
        check_regulariser(self.regulariser, "LFedADMM")
        require_choice("LFedADMM", "dual_update", self.dual_update, ("round", "step"))
        if not 0 <= self.weight < math.inf:
            raise ConfigError(f"weight={self.weight}", where="LFedADMM", remedy="use a weight of 0 or more")
        if not 0 < self.server_lr < 2:
            raise ConfigError(
                f"server_lr={self.server_lr}", where="LFedADMM", remedy="use a number in (0, 2); 1 is exact in one step"
            )
        if self.adaptive < 0:
            raise ConfigError(f"adaptive={self.adaptive}", where="LFedADMM", remedy="use a number of rounds, or 0")
        if self.download_rank is not None:
            require_count("LFedADMM", download_rank=self.download_rank)

    def downlink(self) -> Stage | None:
        """Apply a low-rank factorisation of the changes, if set."""
        from atoll.stages import LowRank

        return None if self.download_rank is None else LowRank(self.download_rank)

    def init(self, params: Tree) -> Tree:
        """Start with zeros: the model, and the sums over the clients of ``X_k`` and ``pi_k``, or of ``M_k``."""
        zero = T.zeros_like(params)
        if not self.adaptive:
            return {"params": zero, "sum": zero}
        return {"params": zero, "primal": zero, "dual": zero, "rho": self.rho, "left": self.adaptive}

    def client_init(self, params: Tree) -> Tree:
        """Start with ``X_k = pi_k = 0``."""
        return {"params": T.zeros_like(params), "dual": T.zeros_like(params)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send ``Z`` and the penalty."""
        del phase
        return {"params": state["params"], "lr": self.lr, "rho": state.get("rho", self.rho)}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the client's own ``X_k`` and ``pi_k``."""
        del broadcast
        return dict(client)

    def direction(self, local: Tree, grad: Gradient, broadcast: Tree) -> tuple[Tree, Tree]:
        """Return ``(g + pi + rho (X - Z)) / (1 + rho lr)``: a step of ``lr`` along it reaches the exact minimiser of the linearised subproblem."""
        rho = broadcast["rho"]
        pull = T.scale(T.sub(local["params"], broadcast["params"]), rho)
        toward = T.add(T.add(grad(local["params"]), local["dual"]), pull)
        return T.scale(toward, 1.0 / (1.0 + rho * broadcast["lr"])), local

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Take one primal step; with ``dual_update="step"`` the multiplier follows at once."""
        moved = super().step(local, grad, broadcast)
        return moved if self.dual_update == "round" else {**moved, "dual": _ascend_dual(moved, broadcast)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Reply with the change of ``M_k``, and ``X_k`` and ``pi_k`` to keep."""
        here = present(work.steps)
        dual = _ascend_dual(local, broadcast) if self.dual_update == "round" else local["dual"]
        kept = {"params": or_rest(here, local["params"], broadcast["params"]), "dual": T.scale(dual, here)}
        dual = kept["dual"]
        moved = T.sub(kept["params"], client["params"])
        turned = T.sub(dual, client["dual"])
        if not self.adaptive:
            return {"message": Sum(T.add(turned, T.scale(moved, broadcast["rho"])))}, kept
        gap = T.sub(kept["params"], broadcast["params"])
        norms = {"gap": T.dot(gap, gap), "dual": T.dot(dual, dual)}
        return {"primal": Sum(moved), "dual": Sum(turned), "norms": Sum(norms, role="side")}, kept

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Update the sums, ``Z``, and the penalty if it adapts."""
        del phase
        if not self.adaptive:
            total = T.add(state["sum"], sums["message"])
            return {**state, "sum": total, "params": self._minimise(state["params"], total, self.rho, info.population)}
        primal, dual = T.add(state["primal"], sums["primal"]), T.add(state["dual"], sums["dual"])
        old, rho = state["params"], state["rho"]
        fresh = self._minimise(old, T.add(dual, T.scale(primal, rho)), rho, info.population)
        factor = self._factor(old, fresh, rho, sums["norms"], info.replied)
        factor, left = (factor, state["left"] - 1) if state["left"] else (1.0, 0)
        return {"params": fresh, "primal": primal, "dual": dual, "rho": rho * factor, "left": left}

    def _factor(self, old: Tree, fresh: Tree, rho: float, norms: Tree, replied: int) -> float:
        """Return 2, 1 or 1/2 to balance the relative residuals, cross-multiplied so that zero norms do no harm."""
        apart = float(norms["gap"]) ** 0.5 * float(norms["dual"]) ** 0.5
        drift = rho * float(T.norm(T.sub(fresh, old))) * float(T.norm(fresh)) * replied
        return 2.0 if apart > 10.0 * drift else 0.5 if drift > 10.0 * apart else 1.0

    def _minimise(self, z: Tree, total: Tree, rho: float, clients: int) -> Tree:
        """Return ``inner`` proximal steps on ``weight R(Z) + (N rho / 2) ||Z||^2 - <Z, sum M>``."""
        rate = self.server_lr / (clients * rho)
        for _ in range(self.inner):
            slope = T.sub(T.scale(z, clients * rho), total)
            z = T.map(lambda leaf: prox(self.regulariser, leaf, self.weight * rate), T.sub(z, T.scale(slope, rate)))
        return z


def _ascend_dual(local: Tree, broadcast: Tree) -> Tree:
    """Return ``pi + rho (X - Z)``."""
    return T.add(local["dual"], T.scale(T.sub(local["params"], broadcast["params"]), broadcast["rho"]))
