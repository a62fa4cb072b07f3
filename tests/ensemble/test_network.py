"""An ensemble between real processes over mutual TLS: the leaves are those of the simulation, and a site that is killed in a round costs its users alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.federation.federation import run_program
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.engines import Inline
from atoll.ensemble import AttributeClusters, Federated, FederatedEnsemble
from atoll.torch import TorchLearner
from tests.ensemble.test_federated import leaf, population
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


def trained(engine: Any, **settings: Any) -> FederatedEnsemble:
    """Leaves of three segments, two rounds, on a clock of this world."""
    small = leaf(rounds=2, selection=atoll.selection.Everyone(), **settings)
    data = population()
    ready = Federated(clusters=AttributeClusters("segment"), leaf=small, aggregate="mean").prepare(data)
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
