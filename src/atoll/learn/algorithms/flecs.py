"""FLECS-CGD (Agafonov, Erraji, Takáč 2022): a Hessian learned from compressed sketches, with compressed gradient differences."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Aggregate, Mean
from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError
from atoll.core.requests.stage import Stage
from atoll.learn.algorithm import Algorithm, Compressing, Gradient, LocalWork, Phased, RoundInfo
from atoll.learn.card import Card
from atoll.learn.curvature import block_sr1, hessian, inverse_floored, ravel, step_params
from atoll.stages import QSGD, Shift

from .newton_type import GRADIENT, NewtonType

__all__ = ["FLECS"]


@dataclass(frozen=True, kw_only=True)
class FLECS(NewtonType, Phased, Compressing):
    """Clients send the quantised difference of ``H_k S`` to the server's estimate, for a new sketch ``S`` (``d x m``) each round.

    The server keeps one estimate ``B``, initially ``curvature I``. With the mean correction ``D = mean Q(H_k S - B S)``, it becomes
    ``B + D (S^T D)^+ D^T`` (a truncated block SR1 update), and ``w <- w - lr |B|_mu^-1 g``: the magnitudes of its eigenvalues, raised to ``mu``,
    inverted. ``g`` is the mean of ``h_k + Q(g_k - h_k)`` with shifts ``h_k`` that both sides learn (DIANA). On a quadratic and without
    quantisation ``B = H`` after ``d/m`` rounds.

    Two exchanges per round: the sketch (``m d`` quantised entries) and the gradient (``d``); ``m`` Hessian-vector products. The paper's server
    keeps an estimate for each client. With one for all, the correction and the server's memory do not grow with the federation, but all clients
    must take part: fitted to changing cohorts, ``B`` loses what it has learned, steps become too long, and losses rise by any factor.
    For sampled cohorts, `FLECSPP` keeps an estimate at each client.

    Attributes:
        columns: ``m``, columns of a sketch.
        curvature: the initial ``B`` is this times the identity; use at least the largest curvature of the loss, or steps are too long.
        mu: floor of the eigenvalues.
        skip: see `atoll.learn.curvature.block_sr1`.
        levels: levels of the quantisers; 0 sends both values unchanged.
        seed: seed of the sketches.
        most: the largest accepted number of parameters.
    """

    columns: int = 2
    curvature: float = 1.0
    mu: float = 1e-2
    skip: float = 1e-2
    levels: int = 127
    seed: int = 0
    most: int = 1000
    phases: ClassVar[tuple[str, ...]] = ("sketch", "gradient")
    pooled: ClassVar[str] = "one estimate of all clients' Hessian"
    citation: ClassVar[str] = (
        "Agafonov, Erraji, Takáč. FLECS-CGD: A Federated Learning Second-Order Framework via Compression and Sketching with "
        "Compressed Gradient Differences. arXiv:2210.09626, 2022."
    )
    card: ClassVar[Card] = Card(
        family="second order",
        unbiased=True,
        everyone=True,
        note="For losses with few parameters. All clients share one estimate. In a star only. For sampled cohorts, use FLECSPP.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check("columns", self.columns >= 1, "use a sketch of at least 1 column")
        self._check("curvature", self.curvature > 0, "use a positive number")
        self._check("mu", self.mu > 0, "use a positive floor")
        self._check("skip", 0.0 <= self.skip < 1.0, "use a number from 0 to below 1")
        self._check("levels", self.levels >= 0, "use 1 or more levels, or 0 for no quantisation")

    def passes(self, phase: str) -> tuple[Algorithm, ...]:
        """Run the gradient, or the sketch."""
        return (GRADIENT,) if phase == "gradient" else (self,)

    def uplink(self, phase: str) -> tuple[Stage, ...]:
        """Apply differences to a learned shift for gradients; sketches are differences already."""
        if not self.levels:
            return ()
        return (Shift(QSGD(self.levels)),) if phase == "gradient" else (QSGD(self.levels),)

    def init(self, params: Tree) -> Tree:
        """Start with the model, ``B``, and no rounds yet.

        Raises:
            ConfigError: the sketch is wider than the model, or the model is too large for a matrix.
        """
        d = T.size(params)
        if d > self.most or self.columns > d:
            what, value = ("columns", self.columns) if self.columns > d else ("most", self.most)
            remedy = "use no more columns than parameters" if self.columns > d else "use DANE or GIANT, or raise it"
            raise ConfigError(f"{what}={value} for a model of {d} parameters", where="FLECS", remedy=remedy)
        return {"params": params, "hessian": self.curvature * np.eye(d), "rounds": 0}

    def _sketch(self, state: Tree) -> np.ndarray:
        """Return ``S`` of the next update, ``(d, m)`` with orthonormal columns."""
        draw = Rng.of(self.seed).child("sketch", state["rounds"]).generator()
        return np.asarray(np.linalg.qr(draw.normal(size=(len(state["hessian"]), self.columns)))[0])

    def broadcast(self, state: Tree, phase: str) -> Tree:
        """Send the model; for a sketch also ``S`` and ``B S``, both with ``m`` rows."""
        if phase == "gradient":
            return {"params": state["params"]}
        sketch, dtype = self._sketch(state), T.leaves(state["params"])[0].dtype
        sent = {"sketch": sketch.T, "known": (state["hessian"] @ sketch).T}
        return {"params": state["params"], **{name: rows.astype(dtype) for name, rows in sent.items()}}

    def start(self, broadcast: Tree, client: Tree) -> Tree:
        """Start with the model, and no result."""
        del client
        return {"params": broadcast["params"], "gap": broadcast["sketch"] * 0}

    def step(self, local: Tree, grad: Gradient, broadcast: Tree) -> Tree:
        """Compute ``H_k S - B S``."""
        params = local["params"]
        turned = hessian(lambda vectors: grad.hvps(params, vectors), params, broadcast["sketch"])
        return {"params": params, "gap": turned - broadcast["known"]}

    def finish(self, local: Tree, broadcast: Tree, client: Tree, work: LocalWork) -> tuple[dict[str, Aggregate], Tree]:
        """Send the difference."""
        del broadcast, client
        return {"gap": Mean(local["gap"], examples=work.examples)}, None

    def fold(self, state: Tree, sums: Mapping[str, Any], info: RoundInfo, phase: str) -> Tree:
        """Learn from the sketch; then step."""
        del info
        if phase == "gradient":
            toward = inverse_floored(state["hessian"], ravel(sums["gradient"]).astype(np.float64), self.mu, size=True)
            return {**state, "params": step_params(state["params"], self.lr * toward)}
        gap = np.asarray(sums["gap"], dtype=np.float64).T
        learned = block_sr1(state["hessian"], self._sketch(state), gap, self.skip)
        return {**state, "hessian": learned, "rounds": state["rounds"] + 1}
