"""Matrix regression: recover a matrix from linear observations, as a model for ADMM and proximal methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.task import Task
from atoll.data.missing import known_rows
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.reports import Reporting
from atoll.learn.local.update import load_of, trained
from atoll.learn.proximal import penalty, svt
from atoll.learn.round.evaluation import measure_client, own_model

__all__ = [
    "MatrixRegression",
    "MatrixRegressionLearner",
    "low_rank_optimum",
    "low_rank_value",
    "matrix_observations",
    "smoothness",
]


@dataclass(frozen=True)
class MatrixRegression:
    """``f_k(X) = sum_j (<X, D_j> - y_j)^2``: a **sum** over a client's observations, with ``x`` of shape ``(n, rows, columns)`` and ``y`` of ``(n,)``.

    A mini-batch of ``b`` of a client's ``n`` observations counts ``n / b`` times, so that its gradient is unbiased.

    Attributes:
        rows: rows of the matrix.
        columns: columns of the matrix.
    """

    rows: int
    columns: int

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1:
            raise ConfigError(
                f"a matrix of shape {(self.rows, self.columns)}", where="MatrixRegression", remedy="use at least 1 x 1"
            )

    def learner(self, settings: LearnerSettings, data: Any) -> MatrixRegressionLearner:
        """Return a learner for a data set."""
        made = MatrixRegressionLearner(self, settings)
        made.check(data)
        return made


class MatrixRegressionLearner(Reporting):
    """Matrix regression as a learner; its parameters are ``{"X": (rows, columns)}``, zero at the start."""

    takes_device = False
    releases = True
    reports = ("loss", "sketch")
    curved = True

    def __init__(self, model: MatrixRegression, settings: LearnerSettings) -> None:
        self.model = model
        self.algorithm = settings.algorithm
        self.train = Task("atoll.learn.matrix:train", self._train, load=load_of(self.algorithm))
        self.measure = Task("atoll.learn.matrix:measure", self._measure)
        self.report = self.survey("atoll.learn.matrix:report")

    def init(self, rng: Rng) -> Tree:
        """Start with zeros."""
        del rng
        return {"X": np.zeros((self.model.rows, self.model.columns))}

    def buffers(self) -> Tree:
        """Return no buffers."""
        return {}

    def check(self, data: Any) -> None:
        """Refuse observations of another shape.

        Raises:
            DataError: client 0's observations are not ``(n, rows, columns)``.
        """
        found, wanted = np.shape(data.shard(0).x), (self.model.rows, self.model.columns)
        if len(found) != 3 or found[1:] != wanted:
            raise DataError(
                f"client 0 has x of shape {found}",
                where="MatrixRegression",
                remedy=f"give each client observations of shape (n, {wanted[0]}, {wanted[1]})",
            )

    def loss_gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        """Return ``sum_j r_j^2`` and ``2 sum_j r_j D_j`` with ``r_j = <X, D_j> - y_j``."""
        flat = np.reshape(x, (len(x), -1))
        off = flat @ params["X"].reshape(-1) - y
        return float(off @ off), {"X": (2.0 * (off @ flat)).reshape(params["X"].shape)}

    def curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        """Return ``2 sum_j <V, D_j> D_j``."""
        del params, y
        flat = np.reshape(x, (len(x), -1))
        return {"X": (2.0 * ((flat @ vector["X"].reshape(-1)) @ flat)).reshape(vector["X"].shape)}

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums of squared errors."""
        data = known_rows(data, "a matrix")
        loss = self.loss_gradient(params, np.asarray(data.x, np.float64), np.asarray(data.y))[0]
        return {"n": float(len(data)), "loss_sum": loss}

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state."""
        return own_model(self.algorithm, params, state)

    def export(self, params: Tree) -> Any:
        """Return the matrix."""
        return params["X"]

    def _train(self, island: Any, message: Tree) -> Any:
        asked = self._list_requested(message)
        data = known_rows(island.data, "a matrix")
        x, y = np.asarray(data.x, np.float64), np.asarray(data.y, np.float64)

        def sample_loss(params: Tree, rows: Any, targets: Any) -> tuple[float, Tree]:
            loss, gradient = self.loss_gradient(params, rows, targets)
            share = len(y) / len(targets)
            return loss * share, {"X": gradient["X"] * share}

        def apply_curvature(params: Tree, rows: Any, targets: Any, vector: Tree) -> Tree:
            return {"X": self.curvature(params, rows, targets, vector)["X"] * (len(y) / len(targets))}

        made = trained(self.algorithm, island, message, (x, y), sample_loss, apply_curvature)
        return self._with_reports(made, asked, len(y))

    def _measure(self, island: Any, message: Tree) -> Any:
        return measure_client(self, island, message)


def matrix_observations(clients: int = 8, dim: int = 10, rank: int = 2, rows: int = 40, seed: int = 0) -> Any:
    """Return Gaussian observations, with noise 0.1, of a planted matrix of low rank.

    NumPy's ``default_rng(seed)`` draws the truth ``A B / sqrt(rank)`` with normal factors, then all clients' ``D_j``, then the noise.

    Returns:
        One island per client.
    """
    from atoll.data import Dataset, Islands

    draw = np.random.default_rng(seed)
    truth = draw.normal(size=(dim, rank)) @ draw.normal(size=(rank, dim)) / np.sqrt(rank)
    x = draw.normal(size=(clients, rows, dim, dim))
    y = np.einsum("knij,ij->kn", x, truth) + 0.1 * draw.normal(size=(clients, rows))
    parts = {
        f"client-{k}": Dataset({"x": x[k], "y": y[k]}, task="regression", name="matrix observations")
        for k in range(clients)
    }
    return Islands.from_datasets(parts, scheme="matrix observations")


def smoothness(islands: Any) -> tuple[float, float]:
    """Return ``max_k L_k`` and ``L``: the largest curvature ``2 sigma_max(D)^2`` of a client's loss, and that of the sum of all."""
    flat = [np.reshape(np.asarray(islands.shard(k).x), (len(islands.shard(k).y), -1)) for k in range(len(islands))]
    return max(2.0 * float(np.linalg.norm(a, 2)) ** 2 for a in flat), 2.0 * float(
        np.linalg.norm(np.vstack(flat), 2)
    ) ** 2


def low_rank_value(islands: Any, matrix: Any, weight: float, regulariser: str = "nuclear") -> float:
    """Return ``sum_k f_k(X) + weight R(X)``."""
    shards = [islands.shard(k) for k in range(len(islands))]
    errors = [np.einsum("nij,ij->n", np.asarray(s.x), matrix) - np.asarray(s.y) for s in shards]
    return float(sum(e @ e for e in errors)) + weight * penalty(regulariser, matrix)


def low_rank_optimum(islands: Any, weight: float, rounds: int = 4000) -> tuple[np.ndarray, float]:
    """Return the optimum of the pooled problem with the nuclear norm and its value, by accelerated proximal gradient (Beck, Teboulle 2009)."""
    shards = [islands.shard(k) for k in range(len(islands))]
    shape = np.shape(shards[0].x)[1:]
    flat = np.vstack([np.reshape(np.asarray(s.x), (len(s.y), -1)) for s in shards])
    y = np.concatenate([np.asarray(s.y) for s in shards])
    gram, target = 2.0 * flat.T @ flat, 2.0 * flat.T @ y
    lr = 1.0 / float(np.linalg.eigvalsh(gram)[-1])
    z = ahead = np.zeros(shape)
    t = 1.0
    for _ in range(rounds):
        fresh = svt(ahead - lr * (gram @ ahead.reshape(-1) - target).reshape(shape), weight * lr)
        after = (1.0 + np.sqrt(1.0 + 4.0 * t * t)) / 2.0
        ahead, z, t = fresh + (t - 1.0) / after * (fresh - z), fresh, after
    return z, low_rank_value(islands, z, weight)
