"""Masked trainings are the plain ones: methods with state and reports of their own, mini-batches, stages, clients that drop out."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedDyn, FedNova, Mime, Scaffold
from atoll.core.algebra import tree as T
from atoll.core.federation.reducer import Plain
from atoll.stages import Clip, RandomK
from atoll.testing import Timetable
from tests.support.double_masked import DoubleMasked

ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=8, alpha=0.5, seed=0)
ALGORITHMS = {
    "FedAvg": atoll.FedAvg(lr=0.1, epochs=1, batch_size=16),
    "Scaffold": Scaffold(lr=0.05, epochs=1, batch_size=16),
    "Mime": Mime(lr=0.05, epochs=1, batch_size=16),
    "FedNova": FedNova(lr=0.05, epochs=1, batch_size=16),
    "FedDyn": FedDyn(lr=0.05, epochs=1, batch_size=16),
}


def trained(algorithm, reducer, uplink=(), devices=None):
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=ALGORITHMS[algorithm],
        selection=atoll.Uniform(6),
        rounds=3,
        uplink=uplink,
        reducer=reducer,
    )
    return atoll.simulate(job, ISLANDS, engine="inline", devices=devices)


def same(masked, plain):
    a, b = (np.concatenate([np.ravel(leaf) for leaf in T.leaves(run.params)]) for run in (masked, plain))
    assert np.abs(b).max() > 0.01, "it has learnt something"
    np.testing.assert_allclose(a, b, rtol=0, atol=1e-6)
    for name in ("selected", "replied", "rejected"):
        assert masked.metrics.column(name) == plain.metrics.column(name)


@pytest.mark.parametrize("uplink", [(), (Clip(1.0), RandomK(0.3, shared=True))], ids=["plain", "stages"])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_masked_training_is_the_plain_one(algorithm, uplink):
    same(trained(algorithm, DoubleMasked(), uplink), trained(algorithm, Plain(), uplink))


@pytest.mark.parametrize("algorithm", ["FedAvg", "Scaffold"])
def test_with_clients_that_drop_out_too(algorithm):
    """A client that is lost before its words is in no sum; one that is lost after them is, and the others open its seed."""
    lost = ["client-1", "client-5"]
    masked = trained(algorithm, DoubleMasked(), devices=Timetable(lost={":masked/": lost, ":reveal/": ["client-3"]}))
    same(masked, trained(algorithm, Plain(), devices=Timetable(lost={"": lost})))
    assert min(masked.metrics.column("replied")) < 6
