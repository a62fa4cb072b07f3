"""FedNL (Safaryan, Islamov, Qian, Richtárik 2022): the Hessian is learned from compressed corrections."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from atoll.core import tree as T
from atoll.core.aggregate import Aggregate, Mean, Parts
from atoll.core.errors import ConfigError
from atoll.core.tree import Tree
from atoll.learn.algorithm import Algorithm, Gradient, LocalWork, RoundInfo
from atoll.learn.card import Card
from atoll.learn.curvature import hessian, inverse_floored, ravel, stepped
from atoll.learn.symmetric import Form, restore, shorten

from .newton_type import NewtonType

__all__ = ["FedNL"]


@dataclass(frozen=True, kw_only=True)
class FedNL(NewtonType):
    """Each client keeps an estimate ``E_k`` of its Hessian and sends ``S_k = C(H_k - E_k)``; both sides add ``rate S_k``.

    The server keeps ``E = mean E_k`` and steps ``w <- w - lr [E]_mu^-1 g`` (option 1, eigenvalues raised to ``mu``) or
    ``w <- w - lr (E + l I)^-1 g`` (option 2) with ``l = mean ||E_k - H_k||_F`` over what is left after the correction, so that ``E + l I`` is
    never below the Hessian. (The paper's step takes ``E`` and ``l`` from before the round's correction.) In a client's first contact ``E_k`` is its
    whole Hessian (``begin="exact"``) or zero; from zero option 1 divides by ``mu`` wherever nothing is known yet.

    Up: the gradient (``d`` floats) and a correction: ``(d+1) count`` floats for ``"rank"``, ``count`` floats and places for ``"top"``,
    ``d(d+1)/2`` for ``"full"``. Compressed corrections are single replies, so a secure reducer takes ``"full"`` only. Clients keep ``d^2``
    floats and take ``d`` Hessian-vector products a round: too heavy for small devices. If only some clients reply, ``E`` moves by their
    mean times their share of the population, which is exact for clients of one size.

    Attributes:
        compressor: ``"rank"``, ``"top"`` or ``"full"``.
        count: rank, or entries kept of the upper triangle.
        rate: share ``a`` of the correction that is learned, in (0, 1].
        option: 1 or 2.
        mu: least eigenvalue of option 1: a lower bound of the Hessian's, such as the weight of an l2 penalty.
        begin: ``"exact"`` or ``"zero"``.
        most: largest number of parameters that is accepted.
    """

    compressor: Form = "rank"
    count: int = 1
    rate: float = 1.0
    option: int = 1
    mu: float = 1e-3
    begin: str = "exact"
    most: int = 1000
    phases: ClassVar[tuple[str, ...]] = ("begin", "train")
    citation: ClassVar[str] = (
        "Safaryan, Islamov, Qian, Richtárik. FedNL: Making Newton-Type Methods Applicable to Federated Learning. ICML 2022."
    )
    card: ClassVar[Card] = Card(
        family="second order", unbiased=True, note="for convex losses of few parameters", example={"begin": "zero"}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, known in (("compressor", ("rank", "top", "full")), ("option", (1, 2)), ("begin", ("exact", "zero"))):
            if getattr(self, name) not in known:
                remedy = f"use one of {', '.join(map(str, known))}"
                raise ConfigError(f"{name}={getattr(self, name)!r}", where="FedNL", remedy=remedy)
        self._check("count", self.count >= 1, "use a rank, or a number of entries, of at least 1")
        self._check("rate", 0.0 < self.rate <= 1.0, "use a share above 0 and at most 1")
        self._check("mu", self.mu > 0, "use a positive least eigenvalue")
        self._check("most", self.most >= 1, "accept at least 1 parameter")

    def plan(self, state: Tree) -> tuple[str, ...]:
        """One exchange; in the first round the whole Hessian where it begins with that."""
        return ("begin",) if state["cold"] else ("train",)

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """The correction as it is, or the whole Hessian."""
        return (self,) if phase == "train" else (replace(self, compressor="full", rate=1.0),)

    def init(self, params: Tree) -> Tree:
        """The model and ``E = 0``.

        Raises:
            ConfigError: the model has too many parameters for whole Hessians.
        """
        d = T.size(params)
        if d > self.most:
            raise ConfigError(
                f"a model of {d} parameters, and each client would form a Hessian of {d} x {d}",
                where="FedNL",
                remedy=f"use DANE or GIANT, or raise most={self.most}",
            )
        return {"params": params, "hessian": np.zeros((d, d)), "cold": self.begin == "exact"}

    def client_init(self, params: Tree) -> Tree:
        """``E_k = 0``."""
        flat = ravel(params)
        return {"hessian": np.zeros((len(flat), len(flat)), dtype=flat.dtype)}

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """The model."""
        del phase
        return {"params": state["params"]}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """The model; gradient and Hessian are found in the step."""
        params = broadcast["params"]
        return {"params": params, "gradient": T.zeros_like(params), "hessian": client["hessian"]}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """The gradient and the Hessian."""
        params = local["params"]
        gradient = grad(params)
        flat = ravel(params)
        rows = T.namespace(flat).diag(flat * 0 + 1)
        found = hessian(lambda vectors: grad.hvps(params, vectors), params, rows)
        return {"params": params, "gradient": gradient, "hessian": 0.5 * (found + found.T)}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send the gradient, the correction and ``l_k``; learn the correction."""
        own = client["hessian"]
        short = shorten(local["hessian"] - own, self.compressor, self.count)
        own = own + self.rate * restore(short, own.shape[-1])
        sent = (Mean if self.compressor == "full" else Parts)(short, examples=work.examples)
        left = T.norm(own - local["hessian"])
        reply = {"gradient": local["gradient"], "left": left}
        return {
            **{name: Mean(value, examples=work.examples) for name, value in reply.items()},
            "correction": sent,
        }, {"hessian": own}

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Learn the mean correction, then step."""
        d = len(state["hessian"])
        rate = (1.0 if phase == "begin" else self.rate) * info.replied / info.population
        estimate = state["hessian"] + rate * _mean(sums["correction"], d)
        gradient = ravel(sums["gradient"]).astype(np.float64)
        if self.option == 1:
            toward = inverse_floored(estimate, gradient, self.mu)
        else:
            toward = np.linalg.solve(estimate + max(float(sums["left"]), 1e-12) * np.eye(d), gradient)
        return {"params": stepped(state["params"], self.lr * toward), "hessian": estimate, "cold": False}


def _mean(correction: Any, d: int) -> Any:
    if not isinstance(correction, list):
        return restore(correction, d)
    weight = sum(part.weight for part in correction)
    return sum(part.weight * restore(part.value, d) for part in correction) / weight
