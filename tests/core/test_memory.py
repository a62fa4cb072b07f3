"""What stages remember at the parties: the same on every path, kept through a crash, and only of replies that are in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.errors import CompositionError
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.stage import Stage, WithMemory
from atoll.core.requests.task import Batch, Task, task
from atoll.core.world import World
from atoll.engines import Batched, Inline, LoopbackSocket, Processes
from atoll.stages import ErrorFeedback, Shift, Threshold, TopK
from atoll.testing import Timetable, killed_and_resumed, live
from atoll.testing.conformance.laws import close


@dataclass(frozen=True)
class Late(Stage, WithMemory):
    """Sends what it was given last time."""

    remembers: ClassVar[bool] = True

    def fresh(self, value):
        return {"last": T.zeros_like(value)}

    def remember(self, value, memory, context):
        return memory["last"], {"last": value}


def reply(x, n):
    return {"u": Mean({"w": x, "b": x[..., :1]}, examples=n), "s": Sum({"z": 2 * x}), "n": Sum(n, role="metric")}


VALUES = np.random.default_rng(0).normal(size=(6, 5))


def run(island, message):
    """Replies with its row, and counts its visits in its own state."""
    i = island.party.position
    island.state = {"visits": np.float64(0 if island.state is None else island.state["visits"]) + 1.0}
    x = VALUES[i] * message
    return reply(np.full(5, np.nan) if i == 2 and message == 3.0 else x, float(i + 1))


def many(cohort, message):
    for places in np.array_split(np.arange(len(cohort)), 2):
        at = cohort.positions[places]
        x = VALUES[at] * message
        if message == 3.0:
            x = np.where((at == 2)[:, None], np.nan, x)
        before = cohort.states(places, fresh={"visits": np.float64(0.0)})
        yield Batch(places, reply(x, (at + 1).astype(float)), {"visits": before["visits"] + 1.0})


VISIT = Task("tests:visit", run, many)


@task
def visits(island, message):
    """What the task itself keeps."""
    return {"visits": Sum(island.state["visits"])}


STAGES = {
    "late": [Late()],
    "feedback": [ErrorFeedback(TopK(0.4))],
    "ragged": [ErrorFeedback(Threshold(1.0))],
    "shift": [Shift(TopK(0.4), a=0.5)],
    "clip": [atoll.Clip(2.0), ErrorFeedback(TopK(0.4, "tensor"))],
}
ENGINES = {"batched": lambda: Batched(1), "processes": lambda: Processes(2), "socket": lambda: LoopbackSocket(2)}


def program(stages):
    async def sums(fed):
        state = await fed.restore([])
        while len(state) < 5:
            cohort = fed.parties[np.array([[0, 1, 2, 3, 4, 5], [2, 3], [5, 1, 2]][len(state) % 3])]
            got = await fed.sum(cohort, VISIT, float(len(state)) + 1.0, uplink=stages)
            row = {"u": got["u"], "s": got["s"], "up": got.bytes_up, "who": got.senders.positions}
            seen = await fed.sum(fed.parties[np.array([0, 2])], visits)
            state = [*state, {**row, "visits": float(seen["visits"])}]
            await fed.checkpoint(state)
        return state

    return sums


def world(engine, folder=None, resume=False, **more):
    known = {VISIT.name: VISIT, visits.name: visits, Late().name: Late}
    return World(Community([None] * 6), engine, registry=known, folder=folder, resume=resume, **more)


@pytest.mark.parametrize(
    ("engine", "name"), [(e, n) for e in ENGINES for n in STAGES if e != "socket" or n == "feedback"]
)
def test_memory_is_the_same_on_every_engine(engine, name):
    stages = STAGES[name]
    one = live(world(Inline()), program(stages)).result
    other = live(world(ENGINES[engine]()), program(stages)).result
    close(other, one, engine, 1e-12)
    # Client 2 was kept out of the third round, with what it would have left behind.
    assert [2 in row["who"] for row in one] == [True, True, False, True, True]


@pytest.mark.every(3)
@pytest.mark.parametrize("name", STAGES)
def test_memory_survives_crashes(name, tmp_path):
    killed_and_resumed(lambda f, r: world(Inline(), f, r), program(STAGES[name]), tmp_path, points=6)
    killed_and_resumed(lambda f, r: world(Batched(1), f, r), program(STAGES[name]), tmp_path / "batched", points=4)


def test_what_is_remembered_is_of_the_last_reply_that_was_in():
    """Client 2 is rejected in its third visit: its fourth reply is what it gave in the second."""
    result = live(world(Inline()), program(STAGES["late"])).result
    sums = [row["s"]["z"] / 2 for row in result]
    np.testing.assert_allclose(sums[0], 0.0)
    np.testing.assert_allclose(sums[1], VALUES[2] + VALUES[3])
    np.testing.assert_allclose(sums[2], VALUES[5] + VALUES[1])
    np.testing.assert_allclose(sums[3], VALUES[[0, 4]].sum(0) + 2 * VALUES[[2, 3]].sum(0) + 3 * VALUES[[1, 5]].sum(0))
    assert result[-1]["visits"] > 0  # the task's own state is there, untouched by the stages'


@pytest.mark.parametrize("late", ["cancel", "drop", "arrive"])
@pytest.mark.parametrize("engine", [Inline, Batched])
def test_a_late_reply_leaves_no_memory(engine, late):
    """Client 4 is late in the first round: in the second it begins anew, while the others send what they had then."""

    async def rounds(fed):
        for number, deadline in ((0, 5.0), (1, None)):
            got = await fed.sum(fed.parties, VISIT, float(number) + 1.0, uplink=[Late()], deadline=deadline, late=late)
        return got["s"]["z"] / 2

    found = live(world(engine(), cost=Timetable(seconds={"client-4": 50.0})), rounds).result
    np.testing.assert_allclose(found, VALUES[[0, 1, 2, 3, 5]].sum(0))


def test_chains_of_another_place_remember_for_themselves():
    from atoll.core.requests.chain import Chain

    async def two(fed):
        for place in ("a", "b", "a"):
            got = await fed.sum(fed.parties, VISIT, {"a": 1.0, "b": 7.0}[place], uplink=Chain([Late()], place))
        return got["s"]["z"] / 2

    np.testing.assert_allclose(live(world(Inline()), two).result, VALUES.sum(0))


@dataclass(frozen=True)
class Sealed(Reducer):
    """Sees sums only."""

    secure: ClassVar[bool] = True


@pytest.mark.parametrize("stage", [ErrorFeedback(TopK(0.4)), Shift(TopK(0.4), a=0.5)], ids=repr)
def test_a_secure_reducer_refuses_what_must_be_seen(stage):
    async def ask(fed):
        await fed.sum(fed.parties, VISIT, 1.0, uplink=[stage], reducer=Sealed())

    with pytest.raises(CompositionError, match=f"{type(stage).__name__} is not summable"):
        live(world(Inline()), ask)


def test_nothing_that_wants_numbers_stands_behind_a_binary_form():
    from atoll.core.requests.chain import Chain

    with pytest.raises(
        CompositionError, match="Clip acts on the client's value and stands behind TopK, which sends a binary form"
    ):
        Chain([TopK(0.1), atoll.Clip(1.0)])


def test_memory_inside_memory_is_refused():
    with pytest.raises(CompositionError, match="ErrorFeedback around ErrorFeedback"):
        ErrorFeedback(ErrorFeedback(TopK(0.1)))


def test_what_is_infinite_once_encoded_is_rejected():
    """A norm beyond 32 bits is infinite on the wire."""
    big = np.array([1e300, -1e300, 1.0])

    def huge(island, message):
        return {"u": Mean({"w": big if island.party.position == 1 else np.ones(3)})}

    def huge_many(cohort, message):
        x = np.where((cohort.positions == 1)[:, None], big, np.ones(3))
        yield Batch(np.arange(len(cohort)), {"u": Mean({"w": x}, examples=np.ones(len(cohort)))})

    work = Task("tests:huge", huge, huge_many)

    async def ask(fed):
        return (await fed.sum(fed.parties, work, uplink=[atoll.stages.QSGD(7)])).rejected

    for engine in (Inline(), Batched(1)):
        found = live(World(Community([None] * 3), engine, registry={work.name: work}), ask).result
        assert list(found) == ["client-1"]
        assert "is not finite once encoded" in found["client-1"]


@dataclass(frozen=True)
class LateSummand(Late):
    """The same with weighted values."""

    on: ClassVar[str] = "summand"


def some(island, message):
    x = VALUES[island.party.position] * message["x"]
    return {name: Sum({"z": x * k}) for k, name in enumerate(message["names"], 1)}


def some_many(cohort, message):
    for places in np.array_split(np.arange(len(cohort)), 2):
        x = VALUES[cohort.positions[places]] * message["x"]
        yield Batch(places, {name: Sum({"z": x * k}) for k, name in enumerate(message["names"], 1)})


SOME = Task("tests:some", some, some_many)
VISITS = [([0, 1, 2, 3, 4, 5], "a"), ([1, 2], "b"), ([0, 1, 4], "ab"), ([0, 1, 2, 3], "a"), ([0, 1, 2, 3, 4, 5], "ab")]


@pytest.mark.parametrize("stage", [Late(), LateSummand()], ids=repr)
@pytest.mark.parametrize("engine", [Inline, lambda: Batched(1), pytest.param(lambda: Processes(2), id="processes")])
def test_aggregates_that_a_reply_leaves_out_stay_remembered(engine, stage):
    """Replies hold other aggregates from visit to visit; each client sends what it was given the last time it sent that one."""

    async def visit(fed):
        found = []
        for number, (who, names) in enumerate(VISITS, 1):
            message = {"x": float(number), "names": list(names)}
            got = await fed.sum(fed.parties[np.array(who)], SOME, message, uplink=[stage])
            found.append({name: got[name]["z"] for name in names})
        return found

    known = {SOME.name: SOME, stage.name: type(stage)}
    found = live(World(Community([None] * 6), engine(), registry=known), visit).result
    last: dict[tuple[int, str], np.ndarray] = {}
    for number, ((who, names), got) in enumerate(zip(VISITS, found, strict=True), 1):
        for k, name in enumerate(names, 1):
            wanted = sum(last.get((i, name), np.zeros(5)) for i in who)
            np.testing.assert_allclose(got[name], wanted, atol=1e-12)
            last.update({(i, name): VALUES[i] * number * k for i in who})
