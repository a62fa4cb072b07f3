"""A client without rows does not move what the others agree on."""

import numpy as np
import pytest
from curved_toys import Loop, Quadratics

from atoll.learn.algorithms import CEADMM, AndersonADMM, FastADMM, FedADMM, LFedADMM, Walkman

TEN = {"lr": 0.1, "steps": 10, "batch_size": None}
ALL = [
    FedADMM(**TEN),
    CEADMM(bound=5.0),
    CEADMM(solver="exact"),
    Walkman(**TEN),
    LFedADMM(**TEN, weight=0.0, regulariser="none"),
    LFedADMM(**TEN, weight=0.0, regulariser="none", adaptive=5),
    FastADMM(),
    AndersonADMM(),
]


@pytest.mark.parametrize("algorithm", ALL, ids=repr)
def test_a_client_without_rows_pulls_nowhere(algorithm):
    # Its multiplier used to follow rho (x - z) with x where it began, which forced z there.
    losses = Quadratics.drawn(seed=3, clients=3)
    best = np.linalg.solve(sum(h for h, _ in losses.pairs), sum(b for _, b in losses.pairs))
    losses.pairs.append((np.zeros((0, 4)), np.zeros(0)))
    loop = Loop(algorithm, losses, w=np.full(4, 3.0))
    for _ in range(250):
        loop.round()
    np.testing.assert_allclose(loop.w, best, atol=1e-6)
