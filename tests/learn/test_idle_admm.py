"""What must not bend the consensus of ADMM: clients without rows, and models that are compressed on the way down."""

import numpy as np
import pytest

import atoll
from atoll.algorithms import CEADMM, AndersonADMM, FastADMM, FedADMM, LFedADMM, Walkman
from atoll.models.quadratic import Quadratic, minimiser, quadratics
from atoll.stages import TopK
from tests.support.curved_toys import Loop, Quadratics

TEN = {"lr": 0.1, "steps": 10, "batch_size": None}
QUADRATIC = {"newton": 1, "iterations": 6}  # one step of Newton solves it
ALL = [
    FedADMM(**TEN),
    CEADMM(bound=5.0),
    CEADMM(solver="exact", **QUADRATIC),
    Walkman(**TEN),
    LFedADMM(**TEN, weight=0.0, regulariser="none"),
    LFedADMM(**TEN, weight=0.0, regulariser="none", adaptive=5),
    pytest.param(FastADMM(**QUADRATIC), marks=pytest.mark.slow),  # Anderson's steps go around the same ones
    AndersonADMM(**QUADRATIC),
]


@pytest.mark.parametrize("algorithm", ALL, ids=repr)
def test_a_client_without_rows_pulls_nowhere(algorithm):
    # Its multiplier used to follow rho (x - z) with x where it began, which forced z there.
    losses = Quadratics.drawn(seed=3, clients=3)
    best = np.linalg.solve(sum(h for h, _ in losses.pairs), sum(b for _, b in losses.pairs))
    losses.pairs.append((np.zeros((0, 4)), np.zeros(0)))
    loop = Loop(algorithm, losses, w=np.full(4, 3.0))
    for _ in range(100):
        loop.round()
    np.testing.assert_allclose(loop.w, best, atol=1e-6)


@pytest.mark.parametrize("algorithm", [FedADMM(lr=0.03, steps=5), CEADMM(bound=10.0)], ids=repr)
def test_a_compressed_model_on_the_way_down_leaves_the_optimum(algorithm):
    # A new client begins at what it was sent; the server used to count it at what it had meant to send.
    data = quadratics(4, 4)
    job = atoll.Training(
        model=Quadratic(4), algorithm=algorithm, selection=atoll.Uniform(2), rounds=350, downlink=TopK(0.5),
        evaluation=atoll.Evaluation(every=350),
    )  # fmt: skip
    found = atoll.simulate(job, data, engine="inline", seed=0).params["w"]
    np.testing.assert_allclose(found, minimiser(data)[0], atol=1e-5)
