"""A round that fails in a later phase: server and clients end it at the same phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.algorithms import SketchedSGD
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import QuorumError
from atoll.learn import Training
from atoll.learn.algorithm import Algorithm, Phased, Stateful
from atoll.pacing import Synchronous
from atoll.selection import Everyone
from atoll.testing import Timetable
from tests.support.learn_toys import flat, islands

CLIENTS = 3


@dataclass(frozen=True, kw_only=True)
class Tally(Algorithm, Phased, Stateful):
    """Clients count their first phases, and the server counts what they told it; the second phase moves the model by the count."""

    phases: ClassVar[tuple[str, ...]] = ("count", "move")
    batch_size: int | None = None

    def passes(self, phase):
        return (self,) if phase == "count" else (_Ask(),)

    def init(self, params):
        return {"params": params, "told": 0.0, "rounds": 0}

    def client_init(self, params):
        return {"count": np.float64(0.0)}

    def step(self, local, grad, broadcast):
        return local

    def finish(self, local, broadcast, client, work):
        return {"told": Sum(np.float64(1.0))}, {"count": client["count"] + 1.0}

    def fold(self, state, sums: Mapping, info, phase):
        if phase == "count":
            return {**state, "told": state["told"] + float(sums["told"])}
        behind = state["told"] - float(sums["counted"])
        return {**state, "params": T.map(lambda leaf: leaf + behind, state["params"])}

    def advance(self, state, info):
        return {**state, "rounds": state["rounds"] + 1}


@dataclass(frozen=True, kw_only=True)
class _Ask(Algorithm, Stateful):
    """What a client has counted."""

    steps: int | None = 1

    def client_init(self, params):
        return {"count": np.float64(0.0)}

    def finish(self, local, broadcast, client, work):
        return {"counted": Sum(client["count"])}, client


@dataclass(frozen=True)
class Failing(Timetable):
    """Nobody answers requests of some path before some moment."""

    text: str = ""
    until: float = 0.0

    def plan(self, parties, plan):
        made = super().plan(parties, plan)
        if self.text in plan.request and plan.now < self.until:
            made.done[:] = False
        return made


def train(algorithm, devices, rounds, **pacing):
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=algorithm,
        selection=Everyone(),
        pacing=Synchronous(deadline=5.0, **pacing),
        rounds=rounds,
    )
    return atoll.simulate(job, islands([6, 7, 8]), engine="inline", devices=devices)


def test_what_earlier_phases_folded_stays_with_what_clients_keep():
    """Had the server dropped the first phase, it would count 3 less than its clients, and the model would move by -3."""
    result = train(Tally(), Failing(text="move", until=3.0), 2, on_failure="skip")
    first, second = result.metrics
    assert (first["failed"][:6], first["replied"], first["t_end"]) == ("0 of 3", 0, 6.0)
    assert "failed" not in second
    assert (flat(result.params) == 0.0).all()


def test_stopping_names_the_round():
    with pytest.raises(QuorumError, match=r"0 of 3 parties answered within 5 s.*round 1"):
        train(Tally(), Failing(text="move", until=3.0), 2)


def test_sketched_clients_forget_what_was_applied_once():
    """After the sketch is folded nothing is left to forget, so that a failed second phase does not take from what came since."""
    algorithm = SketchedSGD(keep=1, candidates=2)
    params = {"w": np.zeros(4)}
    state = {**algorithm.init(params), "taken": {"w": np.array([True, False, False, False])}}
    folded = algorithm.fold(state, {"v": {"w": np.array([4.0, 3.0, 2.0, 1.0])}}, None, "sketch")
    assert not folded["taken"]["w"].any()
    assert folded["asked"]["w"].tolist() == [True, True, False, False]
