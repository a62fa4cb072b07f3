"""First-order methods that are transforms of a direction or of the mean update."""

from __future__ import annotations

from typing import Any

from atoll.learn.algorithms import (
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

from .lasso import LASSO_L1, LASSO_LR, lasso, non_zeros
from .row import SurveyRow

__all__ = ["ROWS"]

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
