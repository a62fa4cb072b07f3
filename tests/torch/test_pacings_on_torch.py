"""Pacings over single replies on a PyTorch model: blocks equal one by one, and every part goes with every other."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg, Scaffold, Upcycled
from atoll.pacing import SAFA
from atoll.selection import CFCFM, FedProf
from atoll.stages import QSGD

LAG = 2


def job(**parts):
    made = {
        "algorithm": Scaffold(lr=0.1, epochs=2, batch_size=8),
        "selection": CFCFM(0.4),
        "pacing": SAFA(lag_tolerance=LAG, deadline=300.0),
        **parts,
    }
    return atoll.Training(model=atoll.models.mlp(64, 10, hidden=(16,)), rounds=6, **made)


@pytest.fixture(scope="module")
def islands():
    return atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=0.5, seed=0)


@pytest.mark.quick("all")
@pytest.mark.parametrize(
    "parts",
    [
        {},
        pytest.param({"selection": FedProf(0.6)}, marks=pytest.mark.slow),  # the last one has it too
        {
            "algorithm": Upcycled(coefficient=0.1, base=FedAvg(lr=0.1, epochs=2, batch_size=8)),
            "uplink": (QSGD(levels=16),),
        },
        {
            "algorithm": Upcycled(coefficient=0.1, base=Scaffold(lr=0.1, epochs=2, batch_size=8)),
            "selection": FedProf(0.6),
            "uplink": (QSGD(levels=16),),
        },
    ],
    ids=["scaffold", "fedprof", "upcycled-qsgd", "all"],
)
def test_semi_asynchronous_compositions_are_the_same_in_blocks(islands, parts):
    devices = atoll.devices.exponential(crash=0.3, seed=1)
    one = atoll.simulate(job(**parts), islands, devices=devices, engine="inline")
    many = atoll.simulate(job(**parts), islands, devices=devices, engine="batched", workers=1)
    for name, value in one.params.items():
        np.testing.assert_allclose(value, many.params[name], atol=2e-4, err_msg=name)
    for name in ("picked", "undrafted", "crashed", "deprecated", "synchronised", "t_end"):
        assert one.metrics.column(name) == many.metrics.column(name), name
    assert any(row.get("crashed") for row in one.metrics)


def test_the_engine_judges_by_the_clients_that_train(islands):
    """Under SAFA with CFCFM all ten train in each of six rounds, although a round takes four replies."""
    assert job().learner(islands).training.volume == 60
    assert job(selection=FedProf(0.6)).learner(islands).training.volume == 36
    assert job(pacing=atoll.Synchronous()).learner(islands).training.volume == 24
