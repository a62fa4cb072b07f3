"""The alternating direction method of multipliers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from atoll.algorithms import CEADMM, AndersonADMM, FastADMM, FedADMM, LFedADMM
from atoll.models.matrix import MatrixRegression, low_rank_optimum, low_rank_value, matrix_observations

from .row import SurveyRow

__all__ = ["ROWS", "wide_quadratics"]


_WEIGHT = 20.0
_MAX = 558.482184  # the largest curvature of a client's loss in matrix_observations()


def wide_quadratics() -> Any:
    """Return eight quadratics in 15 dimensions that disagree, with eigenvalues log-uniform in [0.02, 10]."""
    from atoll.data import Dataset, Islands

    draw, parts = np.random.default_rng(0), {}
    for k in range(8):
        turn, _ = np.linalg.qr(draw.normal(size=(15, 15)))
        matrix = turn @ np.diag(np.exp(draw.uniform(np.log(0.02), np.log(10.0), 15))) @ turn.T
        target = matrix @ (3.0 * draw.normal(size=15))
        parts[f"client-{k}"] = Dataset({"x": matrix, "y": target}, task="regression", name="wide quadratics")
    return Islands.from_datasets(parts, scheme="wide quadratics")


@cache
def _least() -> float:
    return low_rank_optimum(matrix_observations(), _WEIGHT)[1]


def _matrix_gap(islands: Any, params: Any) -> float:
    return low_rank_value(islands, params["X"], _WEIGHT) - _least()


def _low_rank(share: float, steps: int, dual_update: str = "round") -> dict[str, Any]:
    return {
        "algorithm": LFedADMM(lr=1 / _MAX, rho=share * _MAX, steps=steps, weight=_WEIGHT, dual_update=dual_update),
        "problem": matrix_observations,
        "measure": _matrix_gap,
        "rounds": 100,
        "more": {"model": MatrixRegression(10, 10)},
        "descends": False,  # the penalty suits a curvature of 500
        "origin": "an independent NumPy loop over the same observations, given with one digit",
    }


_WIDE: dict[str, Any] = {
    "problem": wide_quadratics,
    "rounds": 300,
    "origin": "an independent NumPy loop over other draws of the same recipe: the order of magnitude, or better",
}
_EXACT: dict[str, Any] = {"newton": 1, "iterations": 16}

ROWS = (
    SurveyRow(name="L-FedADMM rho=0.1 T=1 as printed", reference=3e-3, factor=2.0, quick=False, **_low_rank(0.1, 1, "step")),
    SurveyRow(name="L-FedADMM rho=0.1 T=5 as printed", diverges=True, **_low_rank(0.1, 5, "step")),
    SurveyRow(name="L-FedADMM rho=0.1 T=5", reference=1e-10, factor=2.0, **_low_rank(0.1, 5)),
    SurveyRow(name="FedADMM T=5", algorithm=FedADMM(lr=0.05, steps=5), below=1e-13, rounds=250, origin="theory: the fixed point is the optimum"),
    SurveyRow(
        name="FedADMM T=5, 3 of 10",
        algorithm=FedADMM(lr=0.05, steps=5),
        cohort=3,
        below=1e-9,
        origin="theory: the fixed point is the optimum",
        quick=False,
    ),
    SurveyRow(
        name="CEADMM inexact T=1",
        algorithm=CEADMM(bound=10.0),
        below=1e-13,
        rounds=250,
        origin="theory: the fixed point is the optimum",
        quick=False,
    ),
    SurveyRow(
        name="CEADMM exact T=1, 3 of 10",
        algorithm=CEADMM(solver="exact", newton=1, iterations=25),
        cohort=3,
        below=1e-9,
        origin="theory: the fixed point is the optimum",
        quick=False,
    ),
    SurveyRow(
        name="consensus ADMM rho=0.1",
        algorithm=FastADMM(rho=0.1, accelerate=False, **_EXACT),
        reference=4e-4,
        factor=4.0,
        quick=False,
        **_WIDE,
    ),
    SurveyRow(name="fast ADMM rho=0.1", algorithm=FastADMM(rho=0.1, **_EXACT), below=2e-13, quick=False, **{**_WIDE, "rounds": 200}),
    SurveyRow(
        name="fast ADMM rho=1, no restart",
        algorithm=FastADMM(restart=False, **_EXACT),
        diverges=True,
        quick=False,
        **{**_WIDE, "rounds": 200},
    ),
    SurveyRow(name="Anderson ADMM rho=0.1", algorithm=AndersonADMM(rho=0.1, **_EXACT), below=2e-13, quick=False, **{**_WIDE, "rounds": 180}),
)  # fmt: skip
