"""Trainings under masks on devices that are late: each the plain training to rounding, the rest refused with the reason."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedDyn, FedNova, Mime, Scaffold, Upcycled
from atoll.core.algebra import tree as T
from atoll.core.errors import CompositionError, PolicyError
from atoll.core.federation.reducer import Plain
from atoll.pacing import SAFA, FedAsync, FedBuff
from atoll.reducers import SecureAggregation
from atoll.secure import FixedPoint
from atoll.stages import Clip, RandomK, ScalarQuantizer, TopK
from atoll.testing import Timetable
from atoll.topology import Gossip, Hierarchical

ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=10, alpha=0.5, seed=0)
BASE = {"lr": 0.05, "epochs": 1, "batch_size": 32}
ALGORITHMS = {
    "FedAvg": atoll.FedAvg(**BASE),
    "Scaffold": Scaffold(**BASE),
    "Mime": Mime(**BASE),
    "FedNova": FedNova(**BASE),
    "FedDyn": FedDyn(**BASE),
    "Upcycled": Upcycled(base=Scaffold(**BASE), coefficient=0.5),
}
PACINGS = {
    "synchronous": lambda: atoll.Synchronous(),
    "deadline, over-selection": lambda: atoll.Synchronous(deadline=9.0, over_select=1.5),
    "FedBuff": lambda: FedBuff(buffer=4, group=2),
}
REDUCERS = {
    "real": lambda: SecureAggregation(threshold=2, codec=FixedPoint(value_bits=40)),
    "virtual": lambda: SecureAggregation(threshold=2, masks="virtual", codec=FixedPoint(value_bits=40)),
    "active": lambda: SecureAggregation(server="active"),
}


def trained(reducer, engine="batched", algorithm="FedAvg", pacing="synchronous", **more):
    seconds = {name: 1.0 + i for i, name in enumerate(ISLANDS.names)}
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=ALGORITHMS[algorithm], selection=atoll.Uniform(6), rounds=2,
        pacing=PACINGS[pacing](), reducer=reducer, evaluation=atoll.Evaluation(server=False), **more,
    )  # fmt: skip
    run = atoll.simulate(job, ISLANDS, engine=engine, devices=Timetable(seconds=seconds))
    return np.concatenate([np.ravel(leaf) for leaf in T.leaves(run.params)]), run


CASES = [
    *((a, "synchronous", "virtual", "batched") for a in ALGORITHMS),
    *(
        ("FedAvg", p, r, e)
        for p in PACINGS
        if p != "FedBuff"
        for r in ("real", "virtual")
        for e in ("inline", "batched")
    ),
    ("Scaffold", "deadline, over-selection", "real", "batched"),
    ("Upcycled", "deadline, over-selection", "real", "inline"),
    ("Upcycled", "synchronous", "active", "batched"),
]


@pytest.mark.parametrize(("algorithm", "pacing", "reducer", "engine"), CASES)
def test_a_masked_training_is_the_plain_one(algorithm, pacing, reducer, engine):
    masked, run = trained(REDUCERS[reducer](), engine, algorithm, pacing)
    plain, right = trained(Plain(), engine, algorithm, pacing)
    assert np.abs(plain).max() > 1e-3, "it has learnt something"
    np.testing.assert_allclose(masked, plain, rtol=0, atol=1e-6)
    assert run.metrics.column("replied") == right.metrics.column("replied")


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_buffer_of_groups_is_masked(engine):
    """A masked sum takes three supersteps, so other replies arrive meanwhile than under plain sums: real masks are compared with virtual ones."""
    (real, one), (virtual, other) = (
        trained(REDUCERS[masks](), engine, pacing="FedBuff") for masks in ("real", "virtual")
    )
    assert np.abs(real).max() > 1e-3
    assert real.tolist() == virtual.tolist()
    assert one.metrics.column("replied") == other.metrics.column("replied")
    assert one.metrics.bytes_up == other.metrics.bytes_up


@pytest.mark.parametrize("settings", [{}, {"every": 2}, {"lockstep": True}], ids=str)
def test_edges_of_a_hierarchy_add_up_masked_replies(settings):
    """A tree of servers: each edge sees the sum of its clients, and the cloud sees edges' models."""
    masked, run = trained(
        SecureAggregation(codec=FixedPoint(value_bits=40)), topology=Hierarchical(groups=2, **settings)
    )
    plain, right = trained(Plain(), topology=Hierarchical(groups=2, **settings))
    np.testing.assert_allclose(masked, plain, rtol=0, atol=1e-6)
    assert np.abs(plain).max() > 1e-3
    assert run.metrics.column("replied") == right.metrics.column("replied")


def test_the_example_of_the_design_runs_as_it_stands():
    """Upcycled SCAFFOLD with a deadline and over-selection, clipped, quantised to 8 bits and masked, on devices that crash."""
    job = atoll.Training(model=atoll.models.mlp(64, 10), selection=atoll.Uniform(6), rounds=4)
    job = job.replace(
        algorithm=atoll.Upcycled(Scaffold(lr=0.1)),
        pacing=atoll.Synchronous(deadline=60, over_select=1.3),
        uplink=[atoll.Clip(1.0), atoll.ScalarQuantizer(bits=8)],
        reducer=atoll.SecureAggregation(threshold=0.6),
    )
    result = atoll.simulate(job, ISLANDS, devices=atoll.devices.exponential(crash=0.3))
    assert result.metrics.column("clamped")
    assert min(n for n in result.metrics.column("replied") if n) >= 2


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"pacing": SAFA()}, "SAFA rebuilds single models, and SecureAggregation reveals sums only"),
        ({"pacing": FedAsync()}, "FedAsync rebuilds single models"),
        ({"pacing": FedBuff(buffer=4)}, "has group=1: it would sum single replies"),
        ({"topology": Gossip()}, "Gossip has no server"),
        ({"uplink": [TopK(0.1)]}, "TopK"),
        ({"uplink": [Clip(1.0), RandomK(0.3)]}, "RandomK"),
        ({"reducer": SecureAggregation(threshold=7), "selection": atoll.Uniform(6)}, "6 parties, fewer than 7"),
    ],
)
def test_the_rest_is_refused_before_anyone_is_contacted(changes, why):
    job = atoll.Training(model=atoll.models.linear(64, 10), reducer=SecureAggregation(), rounds=1)
    with pytest.raises((CompositionError, PolicyError, atoll.AtollError), match=why):
        atoll.simulate(job.replace(**changes), ISLANDS)


def test_stages_that_add_up_go_under_masks():
    for uplink in (
        [Clip(1.0), RandomK(0.5, shared=True)],
        [Clip(1.0), ScalarQuantizer(bits=8, modulus_bits=12, limit=1.0)],
    ):
        masked, _ = trained(REDUCERS["virtual"](), uplink=uplink)
        plain, _ = trained(Plain(), uplink=uplink)
        np.testing.assert_allclose(masked, plain, rtol=0, atol=1e-6)
