"""Methods that correct client drift."""

from __future__ import annotations

from typing import Any

from atoll.algorithms import VRLSGD, CompactEstimate, FedDyn, FedNova, LocalSVRG, Mime, MimeLite, MimeSVRG, Scaffold

from .row import SurveyRow

__all__ = ["ROWS"]


_T5: dict[str, Any] = {"lr": 0.01, "steps": 5, "batch_size": None}
_T20: dict[str, Any] = {"lr": 0.01, "steps": 20, "batch_size": None}
_SAMPLED: dict[str, Any] = {
    "cohort": 3,
    "seeds": (0, 1, 2, 3),
    "rtol": 0.75,
    "origin": "an independent NumPy loop, geometric mean over 200 sequences of cohorts; one of its sequences gave {}",
}


def _sampled(one: float) -> dict[str, Any]:
    return {**_SAMPLED, "origin": _SAMPLED["origin"].format(f"{one:g}")}


ROWS = (
    SurveyRow(
        name="SCAFFOLD T=1", algorithm=Scaffold(lr=0.01, steps=1, batch_size=None), reference=2.69e-4, quick=False
    ),
    SurveyRow(name="SCAFFOLD T=5", algorithm=Scaffold(**_T5), below=2e-14, rounds=310, quick=False),
    SurveyRow(name="SCAFFOLD T=20", algorithm=Scaffold(**_T20), below=2e-14, rounds=130, quick=False),
    SurveyRow(name="SCAFFOLD T=5, 3 of 10", algorithm=Scaffold(**_T5), cohort=3, below=2e-14, quick=False),
    SurveyRow(name="SCAFFOLD option 1 T=5", algorithm=Scaffold(option=1, **_T5), below=2e-14, rounds=310, quick=False),
    SurveyRow(name="VRL-SGD T=5", algorithm=VRLSGD(**_T5), below=2e-14, rounds=310),
    SurveyRow(name="MimeSVRG T=5", algorithm=MimeSVRG(**_T5), below=2e-14, rounds=310),
    SurveyRow(name="MimeSVRG T=5, 3 of 10", algorithm=MimeSVRG(**_T5), reference=4.02, quick=False, **_sampled(2.93)),
    SurveyRow(name="Mime SGDm T=5", algorithm=Mime(**_T5), below=2e-14, quick=False),
    SurveyRow(name="Mime SGDm T=5, 3 of 10", algorithm=Mime(**_T5), reference=3.95, quick=False, **_sampled(3.37)),
    SurveyRow(
        name="Mime Adam T=5, v from 0",
        algorithm=Mime(optimiser="adam", warm=False, eps=1e-3, **_T5),
        diverges=True,
        rounds=50,
        descends=False,
    ),
    SurveyRow(
        name="Mime Adam T=5",
        algorithm=Mime(optimiser="adam", **_T5),
        below=2e-14,
        origin="theory: the fixed point is the optimum",
        quick=False,
    ),
    SurveyRow(name="MimeLite SGDm T=5", algorithm=MimeLite(**_T5), reference=7.8e-6),
    SurveyRow(name="compact estimate T=5", algorithm=CompactEstimate(**_T5), below=2e-14, rounds=310, quick=False),
    SurveyRow(name="compact estimate T=20", algorithm=CompactEstimate(**_T20), below=2e-14, rounds=130, quick=False),
    SurveyRow(name="compact estimate T=5, 3 of 10", algorithm=CompactEstimate(**_T5), cohort=3, below=2e-14),
    SurveyRow(
        name="FedDyn alpha=10 T=5",
        algorithm=FedDyn(alpha=10.0, **_T5),
        below=2e-14,
        rounds=300,
        origin="theory: the fixed point is the optimum",
    ),
    SurveyRow(
        name="FedDyn alpha=10 T=5, 3 of 10",
        algorithm=FedDyn(alpha=10.0, **_T5),
        cohort=3,
        below=2e-14,
        rounds=300,
        origin="theory: the fixed point is the optimum",
        quick=False,
    ),
    SurveyRow(
        name="FedNova T=5", algorithm=FedNova(**_T5), reference=7.67e-2, origin="equal steps: FedAvg's", quick=False
    ),
    SurveyRow(
        name="local SVRG T=5",
        algorithm=LocalSVRG(**_T5),
        reference=7.67e-2,
        origin="full gradients: FedAvg's",
        quick=False,
    ),
)
