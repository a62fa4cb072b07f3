"""Running statistics take HybridFL's way: regional, and weighted by the data that came."""

from __future__ import annotations

import numpy as np
import torch

import atoll
from atoll.devices import mec
from atoll.pacing import HybridFL
from atoll.topology import Hierarchical, Star


def normalised():
    return torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 10))


def test_with_everyone_statistics_are_those_of_flat_training():
    data = atoll.data.iid(atoll.data.digits(), parties=6, seed=0)
    job = atoll.Training(
        model=normalised,
        algorithm=atoll.FedAvg(lr=0.1, batch_size=None),
        topology=Hierarchical(groups=2),
        selection=atoll.Uniform(1.0),
        pacing=HybridFL(deadline=400.0),
        rounds=3,
    )
    one = atoll.simulate(job, data, engine="inline")
    star = job.replace(topology=Star(), pacing=atoll.Synchronous(), selection=atoll.Everyone())
    two = atoll.simulate(star, data, engine="inline")
    assert any("running" in name for name in one.params)
    for name, value in two.params.items():
        np.testing.assert_allclose(one.params[name], value, atol=1e-5)
    half = job.replace(selection=atoll.Uniform(0.5))
    lossy = atoll.simulate(half, data, engine="inline", devices=mec(drop_out=0.3, edges=2, regions=2))
    assert not np.allclose(lossy.params["1.running_mean"], two.params["1.running_mean"])
