"""Sides between real processes over mutual TLS: they find what a simulation finds, and a site that is killed in a round costs the others its copy alone."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

import atoll
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.crossmodal import Crossmodal, CrossmodalResult, FrameCNN, Utterances
from atoll.crossmodal.parties import SideSteps
from tests.crossmodal.helpers import made_side
from tests.support.bridge import Bridge
from tests.support.certificates import authority

pytestmark = pytest.mark.network

JOB = Crossmodal(
    speech=FrameCNN(filters=4, widths=(3,)), text=FrameCNN(filters=4, widths=(1,)), rounds=2, iterations=3, pretrain=2,
    batch=8, hidden=6, width=4, label="",
)  # fmt: skip


def parties() -> dict[str, Utterances]:
    return {"east": made_side("text", 30, 3), "north": made_side("text", 40, 2), "south": made_side("speech", 30, 1)}


@pytest.fixture(scope="module")
def bridge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bridge]:
    made = Bridge(tmp_path_factory.mktemp("b"), "tcp", authority())
    yield made
    made.close()


def lived(bridge: Bridge) -> CrossmodalResult:
    """The job between three sites with a party each, on a clock of this world."""
    made = JOB.prepare(Community(parties()))
    world = World(Community(parties()), bridge.engine(on_lost="drop"), clock=Clock(virtual=False), sealing="real")
    world.install(made)
    outcome: CrossmodalResult = made.outcome(run(run_program(world, made.program), virtual=False)[0])
    return outcome


def test_sides_over_tls_find_what_a_simulation_finds(bridge: Bridge) -> None:
    there = lived(bridge)
    here = atoll.simulate(JOB, parties(), engine="inline", progress=False).outcome
    assert there.history == here.history
    assert there.sides == here.sides
    assert (there.classes, there.missing, there.parameters) == (here.classes, (), here.parameters)


def test_a_site_that_is_killed_in_a_round_costs_its_copy_alone(bridge: Bridge, monkeypatch: pytest.MonkeyPatch) -> None:
    train = SideSteps._train

    def train_or_die(self: SideSteps, island: Any, message: Any) -> None:
        if island.name == "north" and message["round"] == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        train(self, island, message)

    monkeypatch.setattr(SideSteps, "_train", train_or_die)
    found = lived(bridge)
    assert found.rounds == 2
    assert found.missing == ("north",)
    assert set(found.history[0]) == {"east", "north", "south"}
    assert set(found.history[1]) == set(found.sides) == {"east", "south"}
