"""Logistic regression over eight clients: a convex problem that is not quadratic, for methods that use curvature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra.tree import Tree
from atoll.core.errors import DataError
from atoll.learn.learner import LearnerSettings
from atoll.models.quadratic import QuadraticLearner

__all__ = ["L2", "Logistic", "logistic_clients", "logistic_gap", "logistic_optimum"]

L2 = 0.05
"""Weight of the penalty ``L2/2 ||w||^2``, and the least eigenvalue of every Hessian."""


@dataclass(frozen=True)
class Logistic:
    """``F_k(w) = mean_i log(1 + exp(-y_i w^T x_i)) + l2/2 ||w||^2`` without intercept, labels -1 and +1, in float64.

    Attributes:
        dim: length of ``w``.
        noise: of gradients; none here.
        l2: weight of the penalty.
    """

    dim: int
    noise: float = 0.0
    l2: float = L2

    def learner(self, settings: LearnerSettings, data: Any) -> _LogisticLearner:
        """Return a learner for a data set."""
        made = _LogisticLearner(self, settings)  # type: ignore[arg-type]
        made.check(data)
        return made


class _LogisticLearner(QuadraticLearner):
    """The learner of quadratics with another loss."""

    model: Any

    def check(self, data: Any) -> None:
        """Refuse rows of another length."""
        shape = np.shape(data.shard(0).x)
        if len(shape) != 2 or shape[1] != self.model.dim:
            raise DataError(
                f"client 0 has x of shape {shape}", where="Logistic", remedy=f"give rows of length {self.model.dim}"
            )

    def loss_gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        """Return the mean log-loss with its penalty, and the gradient."""
        w = params["w"]
        margin = y * (x @ w)
        slope = -y / (1.0 + np.exp(margin))
        loss = float(np.logaddexp(0.0, -margin).mean() + 0.5 * self.model.l2 * w @ w)
        return loss, {"w": x.T @ slope / len(y) + self.model.l2 * w}

    def curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        """Return ``(X^T diag(p (1 - p)) X / n + l2 I) v``."""
        del y
        p = 1.0 / (1.0 + np.exp(-(x @ params["w"])))
        return {"w": x.T @ (p * (1.0 - p) * (x @ vector["w"])) / len(p) + self.model.l2 * vector["w"]}


def logistic_clients(clients: int = 8, dim: int = 12, rows: int = 60, seed: int = 0) -> Any:
    """Return clients whose inputs lie around separate means, ``0.4 N(0, I)``, and whose labels follow one model ``2 N(0, I)``.

    NumPy's ``default_rng(seed)`` draws the model, then for each client its mean, its inputs and the numbers that decide
    its labels: ``y = 1`` with probability ``1/(1 + exp(-w^T x))``, else -1.
    """
    from atoll.data import Dataset, Islands

    draw = np.random.default_rng(seed)
    truth = 2.0 * draw.normal(size=dim)
    parts = {}
    for k in range(clients):
        x = 0.4 * draw.normal(size=dim) + draw.normal(size=(rows, dim))
        y = np.where(draw.uniform(size=rows) < 1.0 / (1.0 + np.exp(-(x @ truth))), 1, -1)
        parts[f"client-{k}"] = Dataset({"x": x, "y": y}, task="binary", name="logistic")
    return Islands.from_datasets(parts, scheme="logistic")


def logistic_optimum(islands: Any, l2: float = L2) -> tuple[np.ndarray, float]:
    """Return the optimum of the pooled problem and its value, by Newton's method with exact Hessians."""
    x, y = _pooled(islands)
    w = np.zeros(x.shape[1])
    for _ in range(50):
        p = 1.0 / (1.0 + np.exp(-y * (x @ w)))
        gradient = -x.T @ (y * (1.0 - p)) / len(y) + l2 * w
        w = w - np.linalg.solve((x.T * (p * (1.0 - p))) @ x / len(y) + l2 * np.eye(len(w)), gradient)
    return w, _value(x, y, w, l2)


def logistic_gap(islands: Any, params: Any) -> float:
    """Return the pooled loss above its optimum; all clients have the same number of rows."""
    return _value(*_pooled(islands), params["w"], L2) - logistic_optimum(islands)[1]


def _pooled(islands: Any) -> tuple[np.ndarray, np.ndarray]:
    shards = [islands.shard(k) for k in range(len(islands))]
    return np.concatenate([np.asarray(s.x) for s in shards]), np.concatenate([np.asarray(s.y) for s in shards])


def _value(x: np.ndarray, y: np.ndarray, w: np.ndarray, l2: float) -> float:
    return float(np.logaddexp(0.0, -y * (x @ w)).mean() + 0.5 * l2 * w @ w)
