"""An ensemble between real processes over mutual TLS: the leaves are those of the simulation, and a site that is killed in a round costs its users alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.federation.federation import run_program
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.ensemble import AttributeClusters, Distillation, FedBoost, FedDF, Federated, FederatedEnsemble, FedMD, Search
from atoll.ensemble.boosting import PreparedBoosting
from atoll.ensemble.fedmd import PreparedAnswers
from atoll.torch import TorchLearner
from tests.ensemble.test_distilling import ROWS
from tests.ensemble.test_federated import leaf, nets, population
from tests.support.bridge import Bridge
from tests.support.certificates import authority

pytestmark = pytest.mark.network

DIES = {f"u{i}" for i in range(1, 12, 2)}
"""All users of the second of two sites."""


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    made = Bridge(tmp_path_factory.mktemp("b"), "tcp", authority())
    yield made
    made.close()


def trained(engine: Any, search: Search | None = None, **settings: Any) -> FederatedEnsemble:
    """Leaves of three segments, two rounds, on a clock of this world."""
    small = leaf(rounds=2, selection=atoll.selection.Everyone(), **settings)
    data = population()
    ready = Federated(clusters=AttributeClusters("segment"), leaf=small, aggregate="mean", search=search).prepare(data)
    world = World(data, engine, clock=Clock(virtual=False), errors="drop")
    world.install(ready)
    found: FederatedEnsemble = run(run_program(world, ready.program), virtual=False)[0]
    return found


@pytest.mark.parametrize("settings", [{}, {"uplink": [atoll.stages.Clip(0.5)]}], ids=["block", "beside"])
def test_leaves_over_tls_are_those_of_the_simulation(bridge: Bridge, settings: Any) -> None:
    here, there = trained(Inline(), **settings), trained(bridge.engine(sites=2), **settings)
    assert here.block == there.block == ("uplink" if settings else "")
    for one, other in zip(here.leaves, there.leaves, strict=True):
        for name, value in one.state_dict().items():
            assert np.allclose(value, other.state_dict()[name], atol=1e-6)
    assert here.scores["gate"] == pytest.approx(there.scores["gate"], abs=1e-6)


def test_users_who_move_between_sites_move_as_in_the_simulation(bridge: Bridge) -> None:
    """Every client answers at its own site which leaf serves it best, and is told again which it trains."""
    search = Search(recluster=1)
    here, there = trained(Inline(), search), trained(bridge.engine(sites=2), search)
    assert here.search is not None
    assert here.search.moved == there.search.moved != (0,)  # type: ignore[union-attr]
    assert dict(here.clusters.users) == dict(there.clusters.users)
    for one, other in zip(here.leaves, there.leaves, strict=True):
        for name, value in one.state_dict().items():
            assert np.allclose(value, other.state_dict()[name], atol=1e-6)


def test_a_site_that_is_killed_in_a_round_costs_its_users_alone(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, rounds = TorchLearner._train, dict[str, int]()

    def train_or_die(self: TorchLearner, island: Any, message: Any) -> Any:
        rounds[island.name] = rounds.get(island.name, 0) + 1
        if island.name in DIES and rounds[island.name] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return train(self, island, message)

    monkeypatch.setattr(TorchLearner, "_train", train_or_die)
    found = trained(bridge.engine(sites=2, on_lost="drop"))
    assert found.reason == "all 2 rounds are done"
    assert [row["replied"] for row in list(found.history)[:2]] == [12, 6]


# ---------------------------------------------------------------- distillation and boosting

SHORT = Distillation(steps=2, lr=0.05)


JOBS: dict[str, tuple[Any, Any, str]] = {
    "feddf": (leaf(rounds=2, selection=atoll.Everyone(), topology=FedDF(rows=ROWS, distillation=SHORT)), TorchLearner, "_train"),
    "fedmd": (FedMD(models=nets(1)[0], rows=ROWS, rounds=2, begin=SHORT, imitation=SHORT, revisit=SHORT), PreparedAnswers, "_turn"),
    "fedboost": (FedBoost(members=nets(2), rounds=2), PreparedBoosting, "_slope"),
}  # fmt: skip
"""A job, and where its clients work: ``(job, class, method)``."""


def numbers_of(found: Any) -> list[Any]:
    """All numbers that a job has found."""
    if isinstance(found, Mapping):
        return [value.numpy() for one in found.values() for value in one.state_dict().values()]
    return [found.weights] if hasattr(found, "weights") else list(found.params.values())


def ran(job: Any, engine: Any) -> tuple[Any, list[Any]]:
    """What a job finds on a clock of this world, and its records."""
    ready = job.prepare(population(users=4, rows=8))
    world = World(population(users=4, rows=8), engine, clock=Clock(virtual=False), errors="drop")
    world.install(ready)
    value, fed = run(run_program(world, ready.program), virtual=False)
    return ready.outcome(value), list(fed.records)


@pytest.mark.parametrize("kind", JOBS)
def test_it_is_the_simulation_and_goes_on_without_a_site_that_is_killed(
    bridge: Bridge, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    job, place, method = JOBS[kind]
    here, there = ran(job, Inline())[0], ran(job, bridge.engine(sites=2))[0]
    kept = numbers_of(there)
    if kind == "fedmd":  # models stay at their sites
        assert there == {}
    else:
        assert all(np.allclose(a, b, atol=1e-6) for a, b in zip(numbers_of(here), kept, strict=True))
    work, rounds = getattr(place, method), dict[str, int]()

    def work_or_die(self: Any, island: Any, message: Any) -> Any:
        rounds[island.name] = rounds.get(island.name, 0) + 1
        if island.name in DIES and rounds[island.name] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return work(self, island, message)

    monkeypatch.setattr(place, method, work_or_die)
    _, records = ran(job, bridge.engine(sites=2, on_lost="drop"))
    assert [row["replied"] for row in records] == [4, 2]
