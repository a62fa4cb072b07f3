"""Second-order methods, on a logistic regression; with sampled cohorts, on the quadratics.

The survey's specification gives gaps for a problem of this size (8 clients, 12 dimensions, 60 rows each, l2 0.05) but
does not state its generator. So the references are from an independent NumPy loop, with exact solves, over the problem
of `atoll_papers.survey.logistic`; measurements on the other draw are noted with them.
"""

from __future__ import annotations

from typing import Any

from atoll.learn.algorithms import DANE, DINGO, FLECS, FLECSPP, GIANT, FedNL, FedSSO

from .logistic import L2, Logistic, logistic_clients, logistic_gap
from .row import SurveyRow

__all__ = ["ROWS"]

_GIANT = GIANT(steps=24)
_DANE = DANE(mu=0.1, steps=4, iterations=13)
_DINGO = DINGO(steps=24)
_RANK: dict[str, Any] = {"mu": L2}
_SOME: dict[str, Any] = {"mu": 0.1}
_SSO: dict[str, Any] = {"lr": 0.5, "steps": 1, "batch_size": None}
_THEORY = "theory: the fixed point is the optimum"
_AFTER = "; ours steps with E and l after the round's correction, Algorithm 1 prints those from before it"
_SAMPLED = "; ours predicts gradients with E_k, Algorithm 2 (FedNL-PP) with E_k + l_k I, and has only option 2"


def _row(name: str, algorithm: Any, rounds: int, other: str = "", **more: Any) -> SurveyRow:
    origin = "an independent NumPy loop with exact solves" + (
        f"; on another draw of such data {other}" if other else ""
    )
    settings = {"origin": origin, **more}
    if isinstance(algorithm, FedNL):
        settings["origin"] += _AFTER
    return SurveyRow(
        name=f"logistic: {name}, {rounds} rounds",
        algorithm=algorithm,
        rounds=rounds,
        problem=logistic_clients,
        measure=logistic_gap,
        **{**settings, "more": {"model": Logistic(12)}},
    )


ROWS = (
    _row("GIANT, 4 iterations", GIANT(steps=4, halvings=2), 10, reference=6.233e-13),
    _row("DANE mu=0.1, 2 Newton steps of 4 iterations", DANE(mu=0.1, steps=2, iterations=4), 5, reference=2.357e-5),
    _row("GIANT", _GIANT, 5, "9e-7", reference=1.947e-8, quick=False),
    _row("GIANT", _GIANT, 10, "3e-10", reference=6.191e-13, quick=False),
    _row("GIANT", _GIANT, 20, "0", below=1e-15, quick=False),
    _row("DANE mu=0.1", _DANE, 5, "6e-6", reference=2.321e-5),
    _row("DANE mu=0.1", _DANE, 10, "6e-10", reference=5.119e-9, quick=False),
    _row("DANE mu=0.1", _DANE, 20, "0", below=1e-14, quick=False),
    _row("DINGO, 3 iterations", DINGO(steps=3), 5, reference=2.123e-8),
    _row("DINGO", _DINGO, 5, "9e-7", reference=1.947e-8, quick=False),
    _row("DINGO", _DINGO, 10, "3e-10", reference=6.191e-13, quick=False),
    _row("FedNL rank 1, option 1", FedNL(**_RANK), 5, "3e-4", reference=1.954e-6),
    _row("FedNL rank 1, option 1", FedNL(**_RANK), 10, "2e-7", reference=1.888e-13, quick=False),
    _row("FedNL rank 1, option 1", FedNL(**_RANK), 20, "0", below=1e-15, quick=False),
    _row("FedNL rank 1, option 2", FedNL(option=2), 5, "8e-3", reference=8.400e-4),
    _row("FedNL rank 1, option 2", FedNL(option=2), 10, "6e-4", reference=3.446e-6, quick=False),
    _row("FedNL rank 1, option 2", FedNL(option=2), 20, "9e-10", below=1e-15, quick=False),
    _row("FedNL top 8", FedNL(compressor="top", count=8, **_RANK), 15, below=1e-15, origin=_THEORY),
    SurveyRow(
        name="FedNL rank 1, 5 of 10",
        algorithm=FedNL(**_SOME),
        rounds=25,
        cohort=5,
        below=1e-20,
        origin=_THEORY + _SAMPLED,
    ),
    SurveyRow(
        name="FedNL rank 1 from zero, option 2, 3 of 10",
        algorithm=FedNL(begin="zero", option=2),
        rounds=100,
        cohort=3,
        below=1e-20,
        origin=_THEORY + _SAMPLED,
    ),
    _row("FLECS-CGD, no quantisation", FLECS(mu=L2, levels=0, curvature=2.0), 15, below=1e-12, origin=_THEORY),
    _row("FLECS-CGD, 127 levels", FLECS(mu=L2, curvature=2.0), 15, below=1e-12, origin=_THEORY, quick=False),
    SurveyRow(
        name="FLECS-CGD, estimates of each client, 5 of 10",
        algorithm=FLECSPP(curvature=10.0, **_SOME),
        rounds=60,
        cohort=5,
        below=1e-9,
        origin=_THEORY,
    ),
    _row("FedSSO T=1", FedSSO(**_SSO), 10, reference=3.832e-6, descends=False),
    _row("FedSSO T=1", FedSSO(**_SSO), 20, reference=7.572e-11, quick=False, descends=False),
    _row("FedSSO T=1, pairs", FedSSO(dense=0, memory=20, **_SSO), 10, reference=3.832e-6, descends=False, quick=False),
    _row("FedSSO T=5", FedSSO(lr=0.5, steps=5, batch_size=None), 10, reference=1.319e-4, descends=False),
)
