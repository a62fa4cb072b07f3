"""Linear models in NumPy: softmax, least-squares and hinge. They are small and exact, need no PyTorch, and are the oracle of the fast paths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.core.algebra.rng import Rng
from atoll.core.algebra.tree import Tree
from atoll.core.calls import checked_call
from atoll.core.capability import Capability
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.task import Task
from atoll.data.missing import known_rows
from atoll.learn.capabilities import CURVATURE
from atoll.learn.checks import require_count
from atoll.learn.learner import LearnerSettings
from atoll.learn.local.examples import Clipping
from atoll.learn.local.own_loss import check_classes, check_shape, check_signs
from atoll.learn.local.reports import Reporting
from atoll.learn.local.update import load_of, trained
from atoll.learn.round.evaluation import measure_client, own_model

__all__ = ["Linear", "LinearLearner", "linear"]


@dataclass(frozen=True)
class Linear:
    """``z = x W + b`` with W of shape ``(features, outputs)``.

    Attributes:
        features: inputs per example.
        outputs: classes, or targets of a regression.
        loss: ``"cross_entropy"`` (softmax), ``"mse"`` (half the squared error is *not* taken: ``mean (z - y)^2``) or ``"hinge"``
            (labels -1/+1, ``mean max(0, 1 - y z)``); ``"auto"`` follows the data.
        l2: weight decay; ``l2/2 ||W||^2`` is added to the loss.
    """

    features: int
    outputs: int
    loss: str = "auto"
    l2: float = 0.0

    def __post_init__(self) -> None:
        require_count("Linear", features=self.features, outputs=self.outputs)
        if not (self.l2 >= 0.0 and math.isfinite(self.l2)):
            raise ConfigError(f"l2={self.l2}", where="Linear", remedy="use a finite number of at least 0")

    def learner(self, settings: LearnerSettings, data: Any) -> LinearLearner:
        """Return a learner for a data set."""
        loss = self.loss if settings.loss == "auto" else settings.loss
        if loss == "auto":
            loss = "mse" if getattr(data, "task", "classification") == "regression" else "cross_entropy"
        if loss not in ("cross_entropy", "mse", "hinge"):
            own = "; a PyTorch model, such as nn.Linear, takes your own loss" if callable(loss) else ""
            raise ConfigError(f"loss={loss!r}", where="Linear", remedy=f"use 'cross_entropy', 'mse' or 'hinge'{own}")
        made = LinearLearner(self, loss, settings)
        made.check(data)
        return made


@checked_call
def linear(features: int, outputs: int, loss: str = "auto", l2: float = 0.0) -> Linear:
    """Return a linear model in NumPy: softmax, least-squares or hinge loss. Needs no PyTorch."""
    return Linear(features, outputs, loss, l2)


class LinearLearner(Reporting):
    """A linear model as a learner."""

    takes_device = False
    releases = True
    per_example = True
    reports = ("loss", "sketch")

    def __init__(self, model: Linear, loss: str, settings: LearnerSettings) -> None:
        self.model = model
        self.loss = loss
        self.algorithm = settings.algorithm
        self.train = Task("atoll.learn.linear:train", self._train, load=load_of(self.algorithm))
        self.measure = Task("atoll.learn.linear:measure", self._measure)
        self.report = self.survey("atoll.learn.linear:report")

    def init(self, rng: Rng) -> Tree:
        """Start with zeros: the problem is convex, so every start works equally well."""
        del rng
        shape = (self.model.features, self.model.outputs)
        return {"weight": np.zeros(shape), "bias": np.zeros(self.model.outputs)}

    @property
    def margins(self) -> bool:
        """Whether the loss is a function of one margin ``y w^T x``: the log-loss of two classes."""
        return self.loss == "cross_entropy" and self.model.outputs == 2

    @property
    def curved(self) -> bool:
        """Whether the loss has a curvature: the hinge has none."""
        return self.loss != "hinge"

    @property
    def lacks(self) -> Mapping[Capability, str]:
        """Reasons for capabilities that the model does not offer."""
        return {CURVATURE: f"with loss {self.loss!r} has none"}

    def buffers(self) -> Tree:
        """Return no buffers."""
        return {}

    def check(self, data: Any) -> None:
        """Refuse labels or features that do not fit."""
        test = getattr(data, "test", None)
        for sample in (data.shard(0), *([test] if test is not None and len(test) else [])):
            columns = int(np.prod(np.shape(sample.x)[1:]))
            if columns != self.model.features:
                raise DataError(
                    f"the model takes {self.model.features} features, but the data have {columns}",
                    where="Linear.features",
                    remedy="set features to that of the data",
                )
            self._fitting(sample)

    def _fitting(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of a data set, after checking that the targets fit the outputs."""
        data = known_rows(data, "Linear")
        x, y = np.asarray(data.x), np.asarray(data.y)
        shape, where = (len(x), self.model.outputs), "Linear.outputs"
        if self.loss == "cross_entropy":
            check_classes(self.loss, shape, y, where)
        else:
            check_shape(self.loss, shape, y, where)
        if self.loss == "hinge":
            check_signs(self.loss, y, where)
        return x, y

    def _steps_of(self, data: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return inputs and targets of all rows for training. Missing labels are masked: such rows fill mini-batches but do not count."""
        known = known_rows(data, "Linear")
        found = self._fitting(known)
        if known is data:
            return found
        y, hidden = np.asarray(data.y), ~np.asarray(data["labelled"]).astype(bool)
        return np.asarray(data.x), np.ma.array(
            y, mask=np.broadcast_to(hidden.reshape(-1, *[1] * (y.ndim - 1)), y.shape)
        )

    @property
    def link(self) -> str:
        """What the scores are; see `atoll.learn.learner.SupportsLink`."""
        return {"cross_entropy": "softmax", "mse": "value"}.get(self.loss, "")

    def scores(self, params: Tree, x: Any) -> np.ndarray:
        """Return ``x W + b``."""
        flat = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        return np.asarray(flat @ params["weight"] + params["bias"])

    def pullback(self, params: Tree, x: Any, slope: Any) -> Tree:
        """Return the gradient of ``sum(slope * scores)`` by the parameters, for a derivative by the scores, ``(n, outputs)``."""
        del params
        flat = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        return {"weight": flat.T @ slope, "bias": np.sum(slope, axis=0)}

    def loss_gradient(self, params: Tree, x: Any, y: Any) -> tuple[float, Tree]:
        """Return the mean loss and its gradient."""
        x, y = _pick_labelled(x, y)
        if not len(y):  # a mini-batch without labels: only the penalty
            return self._penalty(params), {"weight": self.model.l2 * params["weight"], "bias": 0.0 * params["bias"]}
        flat = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        z = flat @ params["weight"] + params["bias"]
        losses, slope = self._slope(z, np.asarray(y))
        weight = flat.T @ slope / len(flat) + self.model.l2 * params["weight"]
        return float(_mean(losses)) + self._penalty(params), {"weight": weight, "bias": _mean(slope)}

    def clipped(self, params: Tree, x: Any, y: Any, clipping: Clipping) -> Tree:
        """Return the sum of the examples' gradients, each clipped; without making any, since that of an example is ``x s^T + l2 W`` and ``s``."""
        x, y = _pick_labelled(x, y)
        weight, bias, l2 = params["weight"], params["bias"], self.model.l2
        if not len(y):
            return {"weight": np.zeros_like(weight), "bias": np.zeros_like(bias)}
        flat = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        losses, slope = self._slope(flat @ weight + bias, np.asarray(y))
        turned = np.einsum("nf,fo,no->n", flat, weight, slope, optimize=True) if l2 else 0.0
        squares = (flat**2).sum(1) * (slope**2).sum(1) + (slope**2).sum(1) + 2 * l2 * turned + l2**2 * (weight**2).sum()
        limit = clipping.limit(len(clipping.groups(list(params))))
        known = np.isfinite(squares) & np.isfinite(losses)
        factors = np.where(
            known, clipping.share * limit / np.maximum(np.sqrt(np.where(known, squares, 0.0)), limit), 0.0
        )
        scaled = np.where(known[:, None], slope, 0.0) * factors[:, None]
        made = np.where(known[:, None], flat, 0.0).T @ scaled + l2 * factors.sum() * weight
        return {"weight": made, "bias": scaled.sum(axis=0)}

    def _penalty(self, params: Tree) -> float:
        if not self.model.l2:
            return 0.0
        return 0.5 * self.model.l2 * float((params["weight"] ** 2).sum())

    def curvature(self, params: Tree, x: Any, y: Any, vector: Tree) -> Tree:
        """Return the Hessian of the mean loss times a vector."""
        x, y = _pick_labelled(x, y)
        if not len(y):
            return {"weight": self.model.l2 * vector["weight"], "bias": 0.0 * vector["bias"]}
        flat = np.asarray(x, dtype=np.float64).reshape(len(x), -1)
        turn = flat @ vector["weight"] + vector["bias"]
        if self.loss == "cross_entropy":
            z = flat @ params["weight"] + params["bias"]
            p = np.exp(z - z.max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            turn = p * (turn - (p * turn).sum(axis=1, keepdims=True))
        elif self.loss == "mse":
            turn = 2.0 * turn / turn.shape[1]
        else:  # the hinge is piecewise linear
            turn = np.zeros_like(turn)
        return {"weight": flat.T @ turn / len(flat) + self.model.l2 * vector["weight"], "bias": turn.mean(axis=0)}

    def _slope(self, z: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the loss of each example, and its derivative by the scores."""
        if self.loss == "cross_entropy":
            shifted = z - z.max(axis=1, keepdims=True)
            log_sum = np.log(np.exp(shifted).sum(axis=1))
            rows = np.arange(len(y))
            slope = np.exp(shifted - log_sum[:, None])
            slope[rows, y.astype(np.int64)] -= 1.0
            return log_sum - shifted[rows, y.astype(np.int64)], slope
        target = y.reshape(len(y), -1).astype(np.float64)
        if self.loss == "mse":
            return _mean((z - target) ** 2, 1), 2.0 * (z - target) / z.shape[1]
        margin = 1.0 - target * z
        return _mean(np.maximum(margin, 0.0), 1), np.where(margin > 0, -target, 0.0) / z.shape[1]

    def evaluate(self, params: Tree, data: Any) -> dict[str, float]:
        """Return sums over a data set."""
        data = known_rows(data, "Linear")
        if len(data) == 0:
            return {"n": 0.0, "loss_sum": 0.0}
        x, y = self._fitting(data)
        z = self.scores(params, x)
        losses, _ = self._slope(z, y)
        sums = {"n": float(len(y)), "loss_sum": float(losses.sum())}
        if self.loss == "cross_entropy":
            sums["correct"] = float((z.argmax(axis=1) == y).sum())
        elif self.loss == "hinge":
            sums["correct"] = float((np.sign(z[:, 0]) == np.sign(y.reshape(-1))).sum())
        else:
            error = z - y.reshape(len(y), -1)
            sums["squared_error"] = float((error**2).mean(axis=1).sum())
            sums["absolute_error"] = float(np.abs(error).mean(axis=1).sum())
        return sums

    def personal(self, params: Tree, state: Tree) -> Tree:
        """Return the model of a client with this private state."""
        return own_model(self.algorithm, params, state)

    def export(self, params: Tree) -> Any:
        """Return a function from inputs to scores."""
        return lambda x: self.scores(params, x)

    def _train(self, island: Any, message: Tree) -> Any:
        asked, data = self._list_requested(message), island.data
        rows, parts = self._steps_of(data), (self.loss_gradient, self.curvature)
        made = trained(self.algorithm, island, message, rows, *parts, float(len(data)), self.clipped)
        return self._with_reports(made, asked, len(data))

    def _measure(self, island: Any, message: Tree) -> Any:
        return measure_client(self, island, message)


def _pick_labelled(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the rows of a mini-batch with unmasked targets."""
    if not isinstance(y, np.ma.MaskedArray):
        return x, y
    there = ~np.ma.getmaskarray(y).reshape(len(y), -1).any(axis=1)
    return x[there], y.data[there]


def _mean(values: np.ndarray, axis: int = 0) -> Any:
    """Return the mean along an axis, to the bit that of `numpy.mean`, whose overhead is a tenth of a small step."""
    return np.add.reduce(values, axis=axis) / values.shape[axis]
