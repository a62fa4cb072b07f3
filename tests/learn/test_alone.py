"""One client: every method that takes gradient steps is centralised gradient descent there, where its own parameter vanishes; the others are said to be what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import atoll
from atoll.algorithms import (
    DIANA,
    IFCA,
    MFL,
    QSVRG,
    VRLSGD,
    Accelerated,
    CompactEstimate,
    DeepGradientCompression,
    Ditto,
    FedAC,
    FedAQ,
    FedAvg,
    FedAvgM,
    FedCOMGATE,
    FedDualAvg,
    FedMirror,
    FedNova,
    FedPAQ,
    FedProx,
    FedSAM,
    FedSGD,
    FirstOrderResidual,
    LocalMomentum,
    LocalSVRG,
    MemSGD,
    Mime,
    MimeLite,
    MimeSVRG,
    QuantisedSGD,
    Scaffold,
    ServerOptimised,
    SketchedSGD,
    SparseTernary,
    TwoWaySGDM,
    Upcycled,
)
from atoll.core.facets import facet
from atoll.learn.algorithm import Algorithm, Compressing
from atoll.learn.catalogue import kinds
from atoll.models.quadratic import Quadratic, quadratics
from atoll.stages import RandomK

DATA, ROUNDS, LR = quadratics(clients=1, dim=6), 3, 0.02
STEP: dict[str, Any] = {"lr": LR, "steps": 3, "batch_size": None}
ONE: dict[str, Any] = {"lr": LR, "steps": 1, "batch_size": None}
WHOLE = RandomK(1.0)  # a compressor that keeps everything
PLAIN = FedAvg(**STEP)

DESCENT: list[Algorithm] = [
    PLAIN, FedProx(mu=0.0, **STEP), FedSAM(rho=0.0, **STEP), Scaffold(**STEP), VRLSGD(**STEP), MimeSVRG(**STEP), Mime(beta1=0.0, **STEP), MimeLite(beta1=0.0, **STEP),
    LocalSVRG(**STEP), FedNova(**STEP), FedMirror(**STEP), FedDualAvg(**STEP), Ditto(**STEP), FedAvgM(momentum=0.0, **STEP), LocalMomentum(gamma=0.0, **STEP),
    MFL(gamma=0.0, **STEP), FedPAQ(compressor=WHOLE, **STEP), MemSGD(compressor=WHOLE, **STEP), FedCOMGATE(compressor=WHOLE, **STEP),
    SparseTernary(compressor=WHOLE, down=WHOLE, **STEP), FedAC(alpha=1.0, beta=1.0, gamma=LR, **STEP),
    FedAQ(alpha=1.0, beta=1.0, gamma=LR, compressor=WHOLE, **STEP), Accelerated(base=PLAIN, transforms=()),
    ServerOptimised(base=PLAIN, transforms=()), FirstOrderResidual(base=PLAIN), IFCA(base=PLAIN, spread=1e-15),
    Upcycled(base=PLAIN, coefficient=0.0),
    FedSGD(lr=LR), CompactEstimate(**ONE), QuantisedSGD(lr=LR, compressor=WHOLE), QSVRG(lr=LR, compressor=WHOLE), DIANA(lr=LR, compressor=WHOLE),
    DeepGradientCompression(lr=LR, fraction=1.0, momentum=0.0, clip=None, warmup=0), TwoWaySGDM(lr=LR, momentum=0.0, compressor=WHOLE, down=WHOLE),
    SketchedSGD(lr=LR, keep=6, momentum=0.0),
]  # fmt: skip

OTHERWISE = {
    "a Newton method": ("DANE", "DINGO", "FLECS", "FLECSPP", "FedNL", "FedSSO", "GIANT"),
    "multipliers or a proximal point, of one client too": (
        "AndersonADMM", "CEADMM", "FastADMM", "FedADMM", "FedDyn", "LFedADMM", "PFedMe", "Walkman",
    ),
    "extrapolates in any case": ("ADIANA",),
    "steps that are not the gradient's": (
        "FedAdagrad", "FedAdam", "FedYogi", "LocalAdaGrad", "LocalAdam", "LocalRMSProp", "SignSGD", "Signum",
    ),
    "noise": ("DPSGD", "ObjectivePerturbation", "OutputPerturbation"),
    "parts of the rows: by hand in test_local_saga": ("LocalSAGA",),
    "no steps": ("SufficientStatistics",),
}  # fmt: skip


def ran(algorithm: Algorithm, rounds: int) -> np.ndarray:
    job = atoll.Training(model=Quadratic(6), algorithm=algorithm, selection=atoll.Everyone(), rounds=rounds)
    return np.asarray(atoll.simulate(job, DATA, engine="inline", seed=0).params["w"])


@pytest.mark.every(4)
@pytest.mark.parametrize("algorithm", DESCENT, ids=lambda algorithm: type(algorithm).__name__)
def test_one_client_is_gradient_descent(algorithm: Algorithm) -> None:
    h, b = (np.asarray(getattr(DATA.shard(0), field)) for field in "xy")
    w, steps = np.zeros(6), algorithm.steps or 1
    for _ in range(ROUNDS * steps):
        w = w - LR * (h @ w - b)
    # Every second round of Upcycled is the server's, which goes nowhere with coefficient 0.
    rounds = 2 * ROUNDS if isinstance(algorithm, Upcycled) else ROUNDS
    np.testing.assert_allclose(ran(algorithm, rounds), w, rtol=1e-6 if _packed(algorithm) else 1e-12)


def _packed(algorithm: Algorithm) -> bool:
    """Whether what is sent is packed as float32."""
    return bool(facet(algorithm, Compressing).uplink("train")) or facet(algorithm, Compressing).downlink() is not None


def test_every_algorithm_is_here() -> None:
    named = [name for names in OTHERWISE.values() for name in names]
    here = {type(algorithm).__name__ for algorithm in DESCENT}
    assert len(named) == len(set(named))
    assert len(here) == len(DESCENT)
    assert here.isdisjoint(named)
    assert here.union(named) == set(kinds())
