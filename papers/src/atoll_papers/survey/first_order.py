"""First-order methods that are transforms of a direction or of the mean update; nonsmooth ones on a sparse regression."""

from __future__ import annotations

from typing import Any

import numpy as np

from atoll.algorithms import (
    MFL,
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedDualAvg,
    FedMirror,
    FedProx,
    FedYogi,
    LocalAdam,
    LocalMomentum,
)

from .row import SurveyRow

__all__ = ["LASSO_L1", "LASSO_LR", "ROWS", "lasso", "lasso_gap", "lasso_optimum", "non_zeros"]


# ------------------------------------------------------------------ LASSO over ten clients that disagree

LASSO_L1 = 0.3
"""Weight of the 1-norm."""
LASSO_LR = 0.0169
"""``0.5 / max_k L_k``, with ``L_k`` the largest eigenvalue of a client's Hessian, rounded to three digits."""


def lasso(clients: int = 10, dim: int = 100, rows: int = 40, seed: int = 0) -> Any:
    """Least squares ``F_k(w) = (1/n_k) sum (w^T x - y)^2`` as quadratics: eight non-zeros ``2 N(0, 1)``, inputs around a mean ``0.3 N(0, I)``.

    The targets have noise 0.5. The constant of ``F_k`` is left out.

    Returns:
        One island per client; ``x`` is the Hessian ``2/n X^T X`` and ``y`` is ``2/n X^T y``.
    """
    from atoll.data import Dataset, Islands

    draw = np.random.default_rng(seed)
    truth = np.zeros(dim)
    truth[:8] = 2.0 * draw.normal(size=8)
    parts = {}
    for k in range(clients):
        centre = 0.3 * draw.normal(size=dim)
        x = draw.normal(size=(rows, dim)) + centre
        y = x @ truth + 0.5 * draw.normal(size=rows)
        parts[f"client-{k}"] = Dataset(
            {"x": 2 / rows * x.T @ x, "y": 2 / rows * x.T @ y}, task="regression", name="lasso"
        )
    return Islands.from_datasets(parts, scheme="lasso")


def _mean(islands: Any) -> tuple[np.ndarray, np.ndarray]:
    shards = [islands.shard(k) for k in range(len(islands))]
    return np.mean([np.asarray(s.x) for s in shards], axis=0), np.mean([np.asarray(s.y) for s in shards], axis=0)


def _value(matrix: np.ndarray, target: np.ndarray, w: np.ndarray, l1: float) -> float:
    return float(w @ (0.5 * matrix @ w - target) + l1 * np.abs(w).sum())


def lasso_optimum(islands: Any, l1: float = LASSO_L1, rounds: int = 5000) -> tuple[np.ndarray, float]:
    """Return the optimum of the pooled problem and its value, by accelerated proximal gradient steps (Beck, Teboulle 2009)."""
    matrix, target = _mean(islands)
    lr = 1.0 / float(np.linalg.eigvalsh(matrix)[-1])
    w = ahead = np.zeros(len(target))
    t = 1.0
    for _ in range(rounds):
        z = ahead - lr * (matrix @ ahead - target)
        new = np.sign(z) * np.maximum(np.abs(z) - lr * l1, 0.0)
        after = (1.0 + np.sqrt(1.0 + 4.0 * t * t)) / 2.0
        ahead, w, t = new + (t - 1.0) / after * (new - w), new, after
    return w, _value(matrix, target, w, l1)


def lasso_gap(islands: Any, params: Any) -> float:
    """Return the composite objective above its optimum."""
    return _value(*_mean(islands), params["w"], LASSO_L1) - lasso_optimum(islands)[1]


def non_zeros(islands: Any, params: Any) -> float:
    """Return how many entries of the model are not zero."""
    del islands
    return float(np.count_nonzero(params["w"]))


# ------------------------------------------------------------------ rows

_FULL: dict[str, Any] = {"lr": 0.01, "batch_size": None}
_SPARSE: dict[str, Any] = {"lr": LASSO_LR, "l1": LASSO_L1, "batch_size": None}
_DRAWS = (
    "an independent NumPy loop over other draws of the same recipe (its order of draws is not given); the optimum has 8"
)

ROWS = (
    SurveyRow(name="FedAvg T=1", algorithm=FedAvg(steps=1, **_FULL), reference=2.69e-4),
    SurveyRow(name="FedAvg T=5", algorithm=FedAvg(steps=5, **_FULL), reference=7.67e-2),
    SurveyRow(name="FedAvg T=20", algorithm=FedAvg(steps=20, **_FULL), reference=1.19, quick=False),
    SurveyRow(
        name="FedAvg T=5, 3 of 10",
        algorithm=FedAvg(steps=5, **_FULL),
        reference=2.31,
        factor=3.0,
        cohort=3,
        seeds=(0, 1, 2),
        quick=False,
        origin="one draw of cohorts in an independent NumPy loop; seeds 0 to 7 of ours leave 2.5 to 8.7",
    ),
    SurveyRow(name="FedProx mu=1 T=5", algorithm=FedProx(steps=5, mu=1.0, **_FULL), reference=7.66e-2),
    SurveyRow(name="MFL gamma=0.5 T=5", algorithm=MFL(steps=5, gamma=0.5, **_FULL), reference=1.51e-1),
    SurveyRow(name="local momentum reset T=5", algorithm=LocalMomentum(steps=5, gamma=0.5, **_FULL), reference=1.09e-1),
    SurveyRow(name="FedAdam T=5", algorithm=FedAdam(steps=5, **_FULL), reference=7.67e-2),
    SurveyRow(name="FedYogi T=5", algorithm=FedYogi(steps=5, **_FULL), reference=7.67e-2, quick=False),
    SurveyRow(name="FedAdagrad T=5", algorithm=FedAdagrad(steps=5, beta1=0.9, **_FULL), reference=2.51e-1),
    SurveyRow(
        name="local Adam lr=0.02 T=5",
        algorithm=LocalAdam(steps=5, lr=0.02, batch_size=None, beta2=0.99, eps=1e-3),
        reference=13.9,
        quick=False,
        origin="an independent NumPy loop, which names no betas: those of the server's Adam are taken (0.9, 0.99, eps 1e-3)",
    ),
    SurveyRow(
        name="FedMirror LASSO T=5: non-zeros",
        algorithm=FedMirror(steps=5, **_SPARSE),
        reference=77,
        factor=1.25,
        rounds=500,
        problem=lasso,
        quick=False,
        measure=non_zeros,
        origin=_DRAWS,
    ),
    SurveyRow(
        name="FedDualAvg LASSO T=5: non-zeros",
        algorithm=FedDualAvg(steps=5, **_SPARSE),
        reference=8,
        rtol=0.0,
        rounds=500,
        problem=lasso,
        quick=False,
        measure=non_zeros,
        origin=_DRAWS,
    ),
)
