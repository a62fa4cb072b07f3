"""Quadratic objectives: a problem with a known answer, for laws and convergence tables."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.core.requests.task import Task
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.reports import Reporting
from atoll.learn.local.update import LossGradient, load_of, trained
from atoll.learn.round.evaluation import measure_client, own_model

__all__ = ["Quadratic", "QuadraticLearner", "minimiser", "quadratics"]


@dataclass(frozen=True)
class Quadratic:
    """``f_k(w) = 1/2 w^T H_k w - b_k^T w``, with ``H_k`` the client's rows ``x`` and ``b_k`` its targets ``y``.

    A client has as many rows as the problem has dimensions, and a gradient needs them all: use ``batch_size=None``.

    Attributes:
        dim: length of ``w``.
        noise: standard deviation ``sigma`` of a stochastic gradient: ``N(0, sigma^2/dim I)`` is added, from the client's stream.
    """

    dim: int
    noise: float = 0.0

    def learner(self, settings: LearnerSettings, data: Any) -> QuadraticLearner:
        """Return a learner for a data set."""
        made = QuadraticLearner(self, settings)
        made.check(data)
        return made


class QuadraticLearner(Reporting):
    """A quadratic as a learner; its parameters are ``{"w": (dim,)}``, zero at the start."""

    takes_device = False
    releases = True
    reports = ("loss", "sketch")
    curved = True

    def __init__(self, model: Quadratic, settings: LearnerSettings) -> None:
        self.model = model
        self.algorithm = settings.algorithm
        self.train = Task("atoll.learn.quadratic:train", self._train, load=load_of(self.algorithm))
        self.measure = Task("atoll.learn.quadratic:measure", self._measure)
        self.report = self.survey("atoll.learn.quadratic:report")

    def init(self, rng: Rng) -> Tree:
        """Start with zeros."""
        del rng
        return {"w": np.zeros(self.model.dim)}

    def buffers(self) -> Tree:
        """Return no buffers."""
        return {}

    def check(self, data: Any) -> None:
        """Refuse clients with rows other than a square matrix, and mini-batches.

        Raises:
            DataError: the data do not fit.
        """
        shape = np.shape(data.shard(0).x)
        if shape != (self.model.dim, self.model.dim):
            raise DataError(
                f"client 0 has x of shape {shape}",
                where="Quadratic",
                remedy=f"give each client a matrix of shape {(self.model.dim, self.model.dim)} and dim={self.model.dim}",
            )
        if self.algorithm.batch_of(self.model.dim) < self.model.dim:
            raise DataError(
                f"mini-batches of {self.algorithm.batch_of(self.model.dim)} take only some rows of a quadratic",
                where="Quadratic",
                remedy="use batch_size=None; noise= makes the gradients stochastic",
            )

    def loss_gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        """Return the value and ``H w - b``."""
        turned = x @ params["w"]
        return float(params["w"] @ (0.5 * turned - y)), {"w": turned - y}

    def curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        """Return ``H v``."""
        del params, y
        return {"w": x @ vector["w"]}

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return the value, counted once per client."""
        return {"n": 1.0, "loss_sum": self.loss_gradient(params, np.asarray(data.x), np.asarray(data.y))[0]}

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state."""
        return own_model(self.algorithm, params, state)

    def export(self, params: Tree) -> Any:
        """Return the point."""
        return params["w"]

    def _train(self, island: Any, message: Tree) -> Any:
        asked = self._list_requested(message)
        x, y = np.asarray(island.data.x, np.float64), np.asarray(island.data.y, np.float64)
        chosen = self._noisy(island) if self.model.noise > 0 else self.loss_gradient
        made = trained(self.algorithm, island, message, (x, y), chosen, self.curvature)
        return self._with_reports(made, asked, len(y))

    def _noisy(self, island: Any) -> LossGradient:
        """Return the gradient with noise from the client's stream."""
        draw = island.rng.child("noise").generator()
        scale = self.model.noise / np.sqrt(self.model.dim)

        def noisy(params: Tree, rows: Any, targets: Any) -> tuple[float, Tree]:
            loss, gradient = self.loss_gradient(params, rows, targets)
            return loss, {"w": gradient["w"] + scale * draw.normal(size=self.model.dim)}

        return noisy

    def _measure(self, island: Any, message: Tree) -> Any:
        return measure_client(self, island, message)


def quadratics(clients: int = 10, dim: int = 20, seed: int = 0) -> Any:
    """Return strongly convex quadratics that disagree: eigenvalues log-uniform in [0.1, 10], minima ``3 N(0, I)``.

    With ``seed=0`` and the default sizes, these are the ten problems of the convergence table. NumPy's
    ``default_rng(seed)`` draws for each client in turn a normal matrix (its QR factor rotates the axes), the eigenvalues and the minimum.

    Returns:
        One island per client; ``x`` is ``H_k`` and ``y`` is ``b_k``.
    """
    from atoll.data import Dataset, Islands

    draw = np.random.default_rng(seed)
    parts = {}
    for k in range(clients):
        turn, _ = np.linalg.qr(draw.normal(size=(dim, dim)))
        values = np.exp(draw.uniform(np.log(0.1), np.log(10.0), size=dim))
        matrix = turn @ np.diag(values) @ turn.T
        target = matrix @ (3.0 * draw.normal(size=dim))
        parts[f"client-{k}"] = Dataset({"x": matrix, "y": target}, task="regression", name="quadratics")
    return Islands.from_datasets(parts, scheme="quadratics")


def minimiser(islands: Any) -> tuple[np.ndarray, float]:
    """Return the optimum of the mean of the clients' quadratics, and its value."""
    shards = [islands.shard(k) for k in range(len(islands))]
    matrix = np.mean([np.asarray(s.x) for s in shards], axis=0)
    target = np.mean([np.asarray(s.y) for s in shards], axis=0)
    best = np.linalg.solve(matrix, target)
    return best, float(best @ (0.5 * matrix @ best - target))
