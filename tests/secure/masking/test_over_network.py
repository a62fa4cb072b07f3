"""Masked sums between parties on a real clock: an active server is assumed, and gets no second set of seeds, whatever it leaves out or repeats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, PolicyError
from atoll.core.event import Ledger, Promise
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.world import World
from atoll.reducers import SecureAggregation
from atoll.secure.masking.party_steps import label_of, reveal, vote
from atoll.testing.lying.sites import Rehearsal


@task
def squares(island, message):
    return {"x": Sum(np.arange(4) * island.data * message)}


def live(engine, program, parties=6):
    people = Community([float(i + 1) for i in range(parties)])
    world = World(people, engine, clock=Clock(virtual=False))
    return run(run_program(world, program), virtual=False)[0], world


async def two_sums(fed):
    found = [await fed.sum(fed.parties, squares, 1 + i, reducer=SecureAggregation(), at=i) for i in range(2)]
    return [(got["x"].tolist(), got.n) for got in found]


@pytest.mark.network
def test_between_parties_the_sum_is_exact_and_the_server_is_not_trusted():
    found, _ = live(Rehearsal(6), two_sums)
    assert found == [((np.arange(4) * 21.0 * k).tolist(), 6) for k in (1, 2)]


@pytest.mark.network
def test_virtual_masks_are_refused_between_parties():
    async def program(fed):
        await fed.sum(fed.parties, squares, 1, reducer=SecureAggregation(masks="virtual"))

    with pytest.raises(CompositionError, match="masks='virtual' between organisations"):
        live(Rehearsal(6), program)


class TwiceAsking(Rehearsal):
    """A server that asks for the seeds of two sets, under another label, while the parties' states are not decided."""

    def __init__(self, parties, steps):
        super().__init__(parties)
        self.steps, self.answers = steps, []

    async def run(self, request, positions):
        if request.task.name in self.steps:
            kept = request.message["kept"]
            fewer = {"kept": kept[:-1], "lost": [kept[-1]]}
            label = label_of(fewer["kept"], fewer["lost"])
            other = replace(request, id=f"{request.id.rpartition('@')[0]}@{label}", message=fewer)
            first = await super().run(request, positions)
            self.answers += await super().run(other, positions[:-1])
            return first
        return await super().run(request, positions)


@pytest.mark.network
@pytest.mark.parametrize(
    "steps", [[vote.name], [reveal.name], [vote.name, reveal.name]], ids=["vote", "reveal", "both"]
)
def test_no_second_set_is_voted_for_or_revealed(steps):
    engine = TwiceAsking(6, steps)
    found, _ = live(engine, two_sums)
    assert [n for _, n in found] == [6, 6]
    assert len(engine.answers) == 2 * 5 * len(steps)
    for answer in engine.answers:
        assert isinstance(answer.error, PolicyError)
        assert answer.error.what == "this party does not answer", "a refusal tells a server nothing, whatever the cause"


def test_a_promise_outlives_a_crash(tmp_path):
    """The ledger that a killed party reads again refuses another value, accepts the same, and keeps parties and matters apart."""
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.append(Promise(what="sum 1", bound="all"), "north", "request")
    with (tmp_path / "ledger.jsonl").open("ab") as torn:
        torn.write(b'{"kind": "promise", "party": "south", "what": "sum 1", "bou')
    again = Ledger(tmp_path / "ledger.jsonl")
    again.append(Promise(what="sum 1", bound="all"), "north", "request~2")
    with pytest.raises(PolicyError, match="north has bound itself to something else in 'sum 1'"):
        again.append(Promise(what="sum 1", bound="fewer"), "north", "request~3")
    again.append(Promise(what="sum 1", bound="fewer"), "south", "request~3")
    again.append(Promise(what="sum 2", bound="fewer"), "north", "request~3")
    again.begin_run()
    with pytest.raises(PolicyError, match="bound itself to something else"):
        again.append(Promise(what="sum 2", bound="all"), "north", "request")


@pytest.mark.slow
def test_over_mutual_tls_between_processes_the_sum_is_exact(tmp_path):
    from tests.support.bridge import Bridge
    from tests.support.certificates import authority

    bridge = Bridge(tmp_path, "tcp", authority())
    try:
        found, _ = live(bridge.engine(), two_sums)
        assert found == [((np.arange(4) * 21.0 * k).tolist(), 6) for k in (1, 2)]
    finally:
        bridge.close()
