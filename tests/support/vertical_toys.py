"""Tables for vertical models: drawn ones that nobody tuned on, and what XGBoost makes of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from atoll.trees.objectives import LOGISTIC, SOFTMAX, SQUARED, TreeLoss
from atoll.vertical import SecureBoost
from atoll.vertical.model import GuestRows

OBJECTIVES = {"binary": LOGISTIC, "regression": SQUARED, "multiclass": SOFTMAX}


@dataclass(frozen=True)
class Drawn:
    """A drawn table: columns of many kinds, a task, and how to boost on it."""

    x: Any
    y: Any
    task: str
    trees: int
    depth: int
    bins: int

    @property
    def objective(self) -> TreeLoss:
        return TreeLoss(OBJECTIVES[self.task], int(self.y.max()) + 1 if self.task == "multiclass" else 1)

    def boost(self, **more) -> SecureBoost:
        return SecureBoost(**{"trees": self.trees, "depth": self.depth, "bins": self.bins, **more})

    def rows(self, columns=slice(None)) -> GuestRows:
        return GuestRows(self.x[:, columns], self.objective.targets(self.y), self.objective)


def draw(seed: int, most: int = 6000, holes: bool = False) -> Drawn:
    """Draw a table: rounded, skewed, binary, mostly equal and smooth columns. Labels have no far outliers, at which single precision has few digits."""
    rng = np.random.default_rng(seed)
    n, f = int(rng.integers(200, most)), int(rng.integers(4, 12))
    x = rng.normal(size=(n, f))
    shapes = (
        lambda c: np.round(2 * c),
        lambda c: np.exp(2 * c),
        lambda c: c > 0.3,
        lambda c: np.where(rng.random(n) < 0.6, 0, c),
        lambda c: np.round(c, 1),
        lambda c: c,
    )
    for j in range(f):
        x[:, j] = shapes[rng.integers(6)](x[:, j])
    signal = x[:, 0] + np.sin(2 * x[:, 1]) + 0.3 * x[:, 2] * x[:, 0] + 0.7 * rng.normal(size=n)
    signal = np.clip(signal, -6, 6)
    if holes:  # at the host: the second half of the columns
        x[:, f // 2 :] = np.where(rng.random((n, f - f // 2)) < 0.2, np.nan, x[:, f // 2 :])
    task = ("binary", "regression", "multiclass")[seed % 3]
    y = {
        "binary": (signal > np.median(signal) + 0.5).astype(np.int64),
        "regression": (signal * rng.choice([0.01, 1, 1000])).astype(np.float32).astype(np.float64),
        "multiclass": np.digitize(signal, np.quantile(signal, [0.2, 0.5, 0.9])),
    }[task]
    depth, bins, trees = (3, 32, 30) if seed // 3 % 2 else (5, 64, 40)
    return Drawn(x.astype(np.float32), y, task, trees, depth, bins)


def grown_alone(table: Drawn, model: SecureBoost):
    """The predictions of the learner that has all columns, ``(rows, outputs)``."""
    return table.objective.predict(model.margins(model.train_pooled(table.rows()), table.x, []))


def grown_by_xgboost(table: Drawn, model: SecureBoost):
    """XGBoost's predictions with the same settings, ``(rows, outputs)``."""
    import xgboost

    settings = {
        "objective": table.objective.name, "tree_method": "hist", "max_depth": model.depth, "eta": model.rate, "max_bin": model.bins,
        "lambda": model.reg_lambda, "gamma": model.gamma, "min_child_weight": model.min_child_weight, "nthread": 1,
    }  # fmt: skip
    if table.task == "multiclass":
        settings["num_class"] = table.objective.outputs
    else:
        settings["base_score"] = float(np.mean(table.y))
    rows = xgboost.DMatrix(table.x, table.y)
    return xgboost.train(settings, rows, model.trees).predict(xgboost.DMatrix(table.x)).reshape(len(table.x), -1)


def largest_difference(table: Drawn, one, other) -> float:
    """The largest difference of two predictions, of a regression in deviations of y."""
    scale = float(np.std(table.y)) if table.task == "regression" else 1.0
    return float(np.abs(one - other).max()) / scale


def as_parties(table: Drawn, hosts: int = 1, seed: int = 0):
    """The table as parties: a third of the columns at the guest, the rest at hosts, each in an order of rows of its own."""
    rng = np.random.default_rng(seed)
    n, f = table.x.shape
    ids = np.array([f"person-{i}" for i in rng.permutation(n)])
    parts = np.array_split(np.arange(f), hosts + 1)
    made = {}
    for k, mine in enumerate(parts):
        order = rng.permutation(n)
        columns = {f"c{j}": table.x[order, j] for j in mine}
        made["guest" if k == 0 else f"host-{k}"] = {"id": ids[order], **columns, **({} if k else {"y": table.y[order]})}
    return made, ids
