"""Every byte that crosses is metered: arguments, round parameters, letters of both legs, what roles say and return."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.sealing import sealed_nbytes
from atoll.core.world import World
from atoll.devices import Fleet, Throughput
from atoll.devices.rules import BatchRate
from atoll.engines import ENGINES, Inline
from atoll.engines.link import SocketLink
from atoll.simulation import run_in
from atoll.stages import RandomK
from atoll.testing import Timetable
from atoll.testing.lying.sites import Rehearsal

SIZE = 20_000
FRAME = 1024
"""Bytes of a frame around a message, at most: names, keys, the words of the protocol. The guide states this number."""


@task
def grows(island, message, by=None, tag=""):
    return np.arange(SIZE if by is None else len(by), dtype=np.float64)


@task
async def half(island, message, blinds):
    return {name: Sum(total.value) for name, total in (await island.totals()).items()}


class Halves(Reducer):
    async def reduce(self, reduction):
        return await reduction.fold(half.with_args(blinds=np.zeros(10)), "words")


@task
def writes(island, names, size):
    for name in names:
        if name != island.name:
            island.post(name, np.zeros(size, np.uint8))
    return "written"


@task
def reads(island, message):
    return len(island.inbox)


@task
def notes(island, message):
    island.note(np.zeros(1000))
    return 1


@task
def adds(island, message, bias):
    return {"x": Sum(message["x"] + bias)}


@task
async def caller(island, peers, load):
    for _ in range(3):
        await peers.send("called", load)
        await peers.recv("called")
    return load[: len(load) // 2]


@task
async def called(island, peers):
    for _ in range(3):
        await peers.send("caller", (await peers.recv("caller")) * 2)


def live(program, n=3, engine=None, **more):
    return run_in(World(Community([float(i) for i in range(n)]), engine or Inline(), **more), program)[0]


def spent(program, **more):
    """The totals of a program, and its result."""

    async def counted(fed):
        result = await program(fed)
        return fed.bytes(), result, fed.meter

    return live(counted, **more)


def test_arguments_of_tasks_are_sent():
    args = {"by": np.zeros(100), "tag": "a"}
    total, _, _ = spent(lambda fed: fed.ask_all(fed.parties, grows.with_args(**args), "hello"))
    assert total["bytes_down"] == 3 * (M.nbytes("hello") + M.nbytes(args))
    plain, _, _ = spent(lambda fed: fed.ask_all(fed.parties, grows, "hello"))
    assert plain["bytes_down"] == 3 * M.nbytes("hello")  # without arguments nothing is added


def test_arguments_of_a_wrapped_task_are_sent():
    inner = adds.with_args(bias=np.zeros(50))
    total, got, _ = spent(lambda fed: fed.sum(fed.parties, inner, {"x": np.ones(50)}, reducer=Halves()))
    sent = ({"x": np.ones(50)}, {"bias": np.zeros(50)}, "words", {"blinds": np.zeros(10)})
    assert total["bytes_down"] == got.bytes_down == 3 * sum(map(M.nbytes, sent))
    assert total["bytes_up"] == got.bytes_up


def test_round_parameters_of_stages_are_sent():
    x = {"x": np.ones(100)}

    async def program(fed):
        return await fed.sum(fed.parties, adds.with_args(bias=1.0), x, uplink=[RandomK(0.1, shared=True)])

    total, result, _ = spent(program)
    seed = 2**63  # its size is what counts
    assert total["bytes_down"] == 3 * (M.nbytes(x) + M.nbytes({"bias": 1.0}) + M.nbytes(seed)) == result.bytes_down
    assert total["bytes_up"] == result.bytes_up


def test_notes_are_part_of_a_reply():
    total, _, _ = spent(lambda fed: fed.ask_all(fed.parties, notes))
    assert total["bytes_up"] == 3 * (M.nbytes(1) + M.nbytes(np.zeros(1000)))


def test_letters_are_metered_on_both_legs():
    async def program(fed):
        names = fed.parties.names
        first = await fed.exchange(fed.parties, writes.with_args(size=500), names)
        before = fed.bytes()
        await fed.exchange(fed.parties, reads, mail=first.mail)
        return before, fed.bytes(), sum(map(first.mail.nbytes, names))

    before, after, letters = live(program)
    assert 6 * M.nbytes(np.zeros(500, np.uint8)) < letters
    assert before["bytes_up"] == 3 * M.nbytes("written") + letters
    assert after["bytes_down"] - before["bytes_down"] == 3 * M.nbytes(None) + letters
    assert (after["bytes_relayed"], after["messages_relayed"]) == (letters, 6)
    assert before["bytes_relayed"] == 0  # the relay still holds them


def test_a_session_is_metered_by_link_with_its_arguments_and_results():
    load = np.zeros(1000)
    message, args, result = sealed_nbytes(M.nbytes(load)), M.nbytes({"load": load}), M.nbytes(load[:500])
    roles = {"caller": ("client-0", caller.with_args(load=load)), "called": ("client-2", called)}
    total, _, meter = spent(lambda fed: fed.session(roles))
    assert total == {
        "bytes_down": args + 6 * message, "messages_down": 2 + 6,
        "bytes_up": result + M.nbytes(None) + 6 * message, "messages_up": 2 + 6,
        "bytes_relayed": 6 * message, "messages_relayed": 6, "bytes_between": 0, "messages_between": 0,
    }  # fmt: skip
    assert meter.links("server", "down") == {0: args + 3 * message, 2: 3 * message}
    assert meter.links("server", "up", count="messages") == {0: 4, 2: 4}
    devices = meter.devices(3)
    assert devices["bytes_up"].tolist() == [result + 3 * message, 0, M.nbytes(None) + 3 * message]
    assert devices["asked"].tolist() == devices["answered"].tolist() == [1, 0, 1]


def test_a_session_that_fails_is_metered_up_to_there():
    async def program(fed):
        roles = {"caller": ("client-0", caller.with_args(load=np.zeros(10))), "called": ("client-1", reads)}
        with pytest.raises(Exception, match="reads"):
            await fed.session(roles)
        return fed.bytes()

    assert live(program)["messages_up"] == 1


@pytest.mark.parametrize("verb", ["ask", "ask_all", "exchange", "relay"])
def test_every_verb_takes_the_bytes_of_both_ways(verb):
    """A model of devices is told them, and the meter too."""
    told = []

    class Told(Timetable):
        def plan(self, parties, plan):
            told.append((np.max(plan.down), plan.up))
            return super().plan(parties, plan)

    async def program(fed):
        terms = {"down": np.array([7]), "up": lambda: 99}
        who = "client-0" if verb == "ask" else fed.parties[:1]
        await getattr(fed, verb)(who, grows, np.zeros(50), **terms)
        return fed.bytes()["bytes_down"]

    assert live(program, cost=Told()) == 7
    assert told == [(7, 99)]


def test_supersteps_take_the_time_of_their_bytes():
    """At 1000 bytes a second each way: letters and arguments take theirs as the message does."""
    fleet = Fleet(compute=BatchRate(1.0), link=Throughput(1000.0))

    async def program(fed):
        names = fed.parties.names
        start = writes.with_args(size=5000)
        first = await fed.exchange(fed.parties, start, names, up=10_000)
        moment = fed.clock.now()
        await fed.exchange(fed.parties, reads, mail=first.mail, up=M.nbytes(2))
        request = M.nbytes(names) + M.nbytes(dict(start.args))
        return moment, fed.clock.now() - moment, request, max(map(first.mail.nbytes, names))

    first, second, request, letters = live(program, cost=fleet)
    assert letters > 10_000
    assert first == pytest.approx((request + 10_000) / 1000)
    assert second == pytest.approx((M.nbytes(None) + letters + M.nbytes(2)) / 1000)


@task
async def share_and_add(island, names):
    """A half that seals a letter to each party beside its totals."""
    for name in names:
        island.post(name, np.zeros(5000, np.uint8))
    return {name: float(total.value.sum()) for name, total in (await island.totals()).items()}


class InTwoSteps(Reducer):
    """Letters in the step that wraps, which the second step delivers."""

    async def reduce(self, reduction):
        first = await reduction.exchange(reduction.parties, share_and_add, reduction.parties.names, wraps=True)
        self.__dict__["between"] = reduction.clock.now()
        self.__dict__["letters"] = max(map(first.mail.nbytes, reduction.parties.names))
        await reduction.exchange(first.senders, reads, mail=first.mail, up=M.nbytes(3))
        return await reduction.fold()


def test_supersteps_of_a_reducer_take_the_time_of_their_bytes():
    """At 1000 bytes a second each way: what the half is sent beside the program's message, and the letters that are delivered."""
    fleet, reducer = Fleet(compute=BatchRate(1.0), link=Throughput(1000.0)), InTwoSteps()

    async def program(fed):
        inner = adds.with_args(bias=np.zeros(50))
        await fed.sum(fed.parties, inner, {"x": np.ones(50)}, reducer=reducer, up=4000)
        return fed.parties.names, fed.clock.now()

    names, end = live(program, cost=fleet)
    sent = M.nbytes({"x": np.ones(50)}) + M.nbytes({"bias": np.zeros(50)})
    assert reducer.between == pytest.approx((sent + M.nbytes(list(names)) + 4000) / 1000)
    second = (M.nbytes(None) + reducer.letters + M.nbytes(3)) / 1000
    third = (sent + 4000) / 1000
    assert end == pytest.approx(reducer.between + second + third)


# ---------------------------------------------------------------------- what really crosses


@pytest.fixture
def crossed(monkeypatch):
    """Bytes and messages that this process wrote to links and read from them."""
    found = {"down": 0, "up": 0, "frames": 0}
    pieces, exactly = SocketLink._pieces, SocketLink._exactly

    def counted(size, tree):
        found["frames"] += 1
        for piece in pieces(size, tree):
            found["down"] += memoryview(piece).nbytes
            yield piece

    async def read(self, size):
        buffer = await exactly(self, size)
        found["up"] += len(buffer)
        return buffer

    monkeypatch.setattr(SocketLink, "_pieces", staticmethod(counted))
    monkeypatch.setattr(SocketLink, "_exactly", read)
    return found


async def asks(fed):
    await fed.ask_all(fed.parties, grows.with_args(by=np.zeros(SIZE)), {"x": np.zeros(3 * SIZE)})


async def sums(fed):
    await fed.sum(
        fed.parties, adds.with_args(bias=np.ones(SIZE)), {"x": np.ones(SIZE)}, uplink=[RandomK(0.5, shared=True)]
    )


async def exchanges(fed):
    names = fed.parties.names
    first = await fed.exchange(fed.parties, writes.with_args(size=SIZE), names)
    await fed.exchange(fed.parties, reads, np.zeros(SIZE), mail=first.mail)


async def talks(fed):
    load = np.zeros(SIZE)
    await fed.session({"caller": ("client-0", caller.with_args(load=load)), "called": ("client-1", called)})


@pytest.mark.parametrize("engine", ["socket", "network"])
@pytest.mark.parametrize("program", [asks, sums, exchanges, talks])
def test_the_meter_says_what_crosses_the_wire(crossed, engine, program):
    """Each party at a worker of its own: what the sockets carry is what was metered, and at most 1 KiB a message around it."""
    made = Rehearsal(3) if engine == "network" else ENGINES[engine](3)
    total, _, _ = spent(program, engine=made)
    for way in ("down", "up"):
        metered, frames = total[f"bytes_{way}"], total[f"messages_{way}"]
        assert metered <= crossed[way] <= metered + FRAME * frames, (way, metered, crossed[way], frames)
