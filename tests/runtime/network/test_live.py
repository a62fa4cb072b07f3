"""On a real clock nobody foretells a reply: rounds close by what has come, and what was decided is decided again."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from functools import partial

import numpy as np
import pytest

from atoll.core.errors import QuorumError, SessionError, TaskError
from atoll.core.federation.federation import run_program
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import Clock, run
from atoll.core.time.deadline import Quota
from atoll.core.world import World
from atoll.engines import Inline
from atoll.testing.conformance.engine import SIZE, every_verb
from atoll.testing.lying.sites import Rehearsal
from tests.support.gates import Gate, asked, counted, talks, wait_at, wait_in

pytestmark = pytest.mark.network


def world(parties=3, folder=None, resume=False, population=None, **terms):
    people = population or Community([float(i + 1) for i in range(parties)])
    engine = Rehearsal(parties, **terms)
    return World(people, engine, clock=Clock(virtual=False), folder=folder, resume=resume)


def live(made, program):
    return run(run_program(made, program), virtual=False)[0]


def test_every_verb_gives_what_a_simulation_gives():
    def people():
        return Community([float(i + 1) for i in range(SIZE)], others={"hub": "its own data"})

    real = live(world(SIZE, population=people()), every_verb)
    simulated = run(run_program(World(people(), Inline()), every_verb))[0]
    for name in simulated:
        if name != "flight":  # when each came is another matter
            np.testing.assert_equal(real[name], simulated[name])


@pytest.mark.parametrize("terms", [{"accept": 2}, {"deadline": 1.5}])
def test_a_round_closes_without_the_slow_and_their_work_is_undone(tmp_path, terms):
    gate = Gate(tmp_path / "gate", "client-1")

    async def program(fed):
        await fed.sum(fed.parties, counted, {})  # from here on everyone is quick
        first = await fed.sum(fed.parties, counted, {"gate": gate.path}, **terms)
        gate.open("client-1")
        second = await fed.sum(fed.parties, counted, {})
        return first.senders.names, first["runs"], second["runs"], second.outcomes.done.all()

    names, first, second, done = live(world(), program)
    assert names == ["client-0", "client-2"]
    assert (first, second) == (2.0 + 2.0, 3.0 + 2.0 + 3.0)  # the slow one's second run left nothing behind
    assert done


@pytest.mark.parametrize("how", ["together", "one by one"])
def test_a_party_that_is_drawn_twice_is_asked_once_and_counts_twice(how):
    """However its round closes, and however its replies are used: `SizeProportional` draws with replacement."""

    async def rounds(fed):
        drawn = fed.parties[np.array([2, 0, 2])]
        for terms in ({}, {"deadline": 60.0}, {"quorum": 2}):
            got = await fed.sum(drawn, counted, {}, **terms)
            yield got.senders.names, got["runs"], got["who"].tolist()
        yield (await fed.ask_all(drawn, asked, {})).values
        first = await fed.sum(drawn[0:3:2], counted, {}, accept=1)
        yield first.senders.names, first["runs"]  # the other one is nobody's work

    async def flown(fed):
        for _ in range(2):
            await fed.send(fed.parties[np.array([2, 0, 2])], counted, {}, ahead=True)
            for one in await fed.arrivals(3):
                got = await fed.combine([one])
                yield one.party.name, got.n, got["runs"]
        await fed.send(fed.parties[np.array([1, 1])], counted, {})
        here = await fed.arrivals(2)
        assert here[0].cancel()
        yield (await fed.combine([here[1]]))["runs"]

    async def program(fed):
        return [told async for told in (rounds if how == "together" else flown)(fed)]

    told, simulated = live(world(), program), run(run_program(World(Community([1.0, 2.0, 3.0]), Inline()), program))[0]
    if how == "together":
        assert told == simulated
        assert told[0][:2] == (["client-2", "client-0", "client-2"], 3.0)
    else:
        assert [sorted(told[:3]), sorted(told[3:6]), told[6]] == [simulated[:3], simulated[3:6], 1.0]
        assert simulated[:3] == [("client-0", 1, 1.0), ("client-2", 1, 1.0), ("client-2", 1, 1.0)]


def test_who_was_in_how_often_is_decided_once(tmp_path):
    class Died(BaseException):
        pass

    def program(dies):
        async def rounds(fed):
            await fed.restore(None)
            got = await fed.sum(fed.parties[np.array([0, 0, 0])], counted, {}, accept=2)
            if dies:
                raise Died("here")
            return got.n, got["runs"]

        return rounds

    with pytest.raises(Died, match="here"):
        live(world(1, folder=tmp_path / "run"), program(True))
    assert live(world(1, folder=tmp_path / "run", resume=True), program(False)) == (2, 2.0)


def test_a_late_reply_arrives(tmp_path):
    gate = Gate(tmp_path / "gate", "client-2")

    async def program(fed):
        first = await fed.sum(fed.parties, counted, {"gate": gate.path}, accept=2, late="arrive")
        gate.open("client-2")
        late = await fed.arrivals(1)
        combined = await fed.combine(late)
        return first.n, late.positions.tolist(), combined["who"], fed.under_way

    n, positions, value, left = live(world(), program)
    assert (n, positions, left) == (2, [2], 0)
    np.testing.assert_equal(value, [3.0])


def test_a_finished_reply_that_was_lost_with_its_site_is_not_waited_for():
    """The server knows that the site is gone before it asks for the reply that the site kept."""
    made = world(on_lost="drop")

    async def program(fed):
        await fed.send(fed.parties, counted, {})
        here = await fed.arrivals(3)
        os.kill(made.engine.processes[2].pid, signal.SIGKILL)
        assert (await fed.ask_all(fed.parties, asked, {}, quorum=2)).senders.names == ["client-0", "client-1"]
        async with asyncio.timeout(20):
            return await fed.combine(here)

    found = live(made, program)
    assert found.senders.names == ["client-0", "client-1"]
    assert found.rejected == {"client-2": "the party was lost"}


def test_what_is_cancelled_leaves_no_state(tmp_path):
    gate = Gate(tmp_path / "gate", "client-0")

    async def program(fed):
        await fed.send(fed.parties, counted, {"gate": gate.path})
        here = await fed.arrivals(2)
        assert fed.cancel() == 1
        gate.open("client-0")
        assert here[0].cancel()
        return (await fed.combine([here[1]])).n, (await fed.ask_all(fed.parties, asked, {})).values

    n, runs = live(world(), program)
    assert n == 1
    assert sorted(runs) == [1, 1, 2]


def test_who_was_in_is_decided_once(tmp_path):
    """The program dies after a round that closed without client-0. The second time client-0 is there first, and is out all the same."""
    gate = Gate(tmp_path / "gate", "client-0")

    class Died(BaseException):
        pass

    def program(dies):
        async def rounds(fed):
            await fed.restore(None)
            got = await fed.sum(fed.parties, counted, {"gate": gate.path}, accept=2)
            if dies:
                raise Died("here")
            return got.senders.names

        return rounds

    with pytest.raises(Died, match="here"):
        live(world(folder=tmp_path / "run"), program(True))
    gate.open("client-0")
    again = world(folder=tmp_path / "run", resume=True)
    assert live(again, program(False)) == ["client-1", "client-2"]


def test_a_round_with_too_few_is_asked_again_by_whoever_resumes_it(tmp_path):
    """Two rounds miss their quorum. The program goes on after the first, which stays closed, and ends after the second."""
    gate = Gate(tmp_path / "gate", "client-0")

    def program(deadline):
        async def rounds(fed):
            await fed.restore(None)
            ask = partial(fed.sum, fed.parties, counted, {"gate": gate.path}, deadline=deadline, quorum=2)
            with pytest.raises(QuorumError, match="of 2 parties answered"):
                await ask(at=1)
            try:
                return (await ask(at=2)).senders.names
            except QuorumError as error:
                raise QuorumError(error.what, where="round 2") from error  # as a training says it

        return rounds

    with pytest.raises(QuorumError, match="of 2 parties answered"):
        live(world(2, folder=tmp_path / "run"), program(0.05))
    gate.open("client-0")
    again = world(2, folder=tmp_path / "run", resume=True)
    assert live(again, program(None)) == ["client-0", "client-1"]


def test_hubs_share_a_quota(tmp_path):
    gate = Gate(tmp_path / "gate", "client-0", "client-3")

    async def program(fed):
        quota = Quota(4)
        halves = [fed.scope("a", fed.parties[:3]), fed.scope("b", fed.parties[3:])]
        shares = [quota.share() for _ in halves]
        got = await asyncio.gather(
            *(
                one.sum(one.parties, counted, {"gate": gate.path}, accept=share, quorum=0)
                for one, share in zip(halves, shares, strict=True)
            )
        )
        gate.open("client-0")
        gate.open("client-3")
        return [one.senders.names for one in got], [share.taken for share in shares]

    names, taken = live(world(6), program)
    assert names == [["client-1", "client-2"], ["client-4", "client-5"]]
    assert taken == [2, 2]


def kill_site(fed, name):
    index = sorted(fed.world.engine.choices["sites"]).index(name)
    os.kill(fed.world.engine.processes[index].pid, signal.SIGKILL)


def test_a_site_that_dies_is_named(tmp_path):
    gate = Gate(tmp_path / "gate", "client-1")

    async def program(fed):
        flight = asyncio.create_task(fed.sum(fed.parties, counted, {"gate": gate.path}))
        await asyncio.sleep(0)
        kill_site(fed, "site-2")
        await flight

    with pytest.raises(TaskError, match=r"job process went away \(in site site-2\)"):
        live(world(), program)


@task
def leaves(island, message):
    sys.exit(3)


@task
async def leaves_talking(island, peers):
    sys.exit(3)


def test_a_task_that_calls_exit_leaves_its_site_alive():
    async def program(fed):
        with pytest.raises(TaskError, match=r"the task called sys.exit\(3\) .*leaves.* at client-1"):
            await fed.sum(fed.parties[1:2], leaves)
        with pytest.raises(TaskError, match=r"the task called sys.exit\(3\) .*leaves_talking.* at client-1"):
            await fed.session({"a": ("client-0", talks), "b": ("client-1", leaves_talking)})
        return (await fed.sum(fed.parties, counted, {})).senders.names

    assert live(world(), program) == ["client-0", "client-1", "client-2"]


def test_a_site_that_dies_can_be_done_without(tmp_path):
    gate = Gate(tmp_path / "gate", "client-1")

    async def program(fed):
        flight = asyncio.create_task(fed.sum(fed.parties, counted, {"gate": gate.path}))
        await asyncio.sleep(0)
        kill_site(fed, "site-2")
        first = await flight
        with pytest.raises(QuorumError, match="2 of 3 parties answered"):
            await fed.sum(fed.parties, counted, {}, quorum=3)
        return first.senders.names, first.silent.names

    assert live(world(on_lost="drop"), program) == (["client-0", "client-2"], ["client-1"])


@pytest.mark.slow
def test_no_progress_is_the_one_rule(tmp_path):
    """A task that waits for ever uses no processor: its site is given up. The others, which have nothing to do, are not."""
    gate = Gate(tmp_path / "gate", "client-1")

    async def program(fed):
        await fed.sum(fed.parties, counted, {"gate": gate.path})

    with pytest.raises(TaskError, match=r"no progress for 2 seconds \(in site site-2\)"):
        live(world(patience=2.0, pulse=0.05), program)


@pytest.mark.slow
def test_a_role_that_hangs_is_found_and_the_one_that_waits_for_it_is_not_blamed(tmp_path):
    gate = Gate(tmp_path / "gate", "client-1")

    async def program(fed):
        first, second = fed.parties[:2]
        return await fed.session({"a": (first, talks), "b": (second, wait_in.with_args(gate=gate.path))})

    with pytest.raises(TaskError, match=r"no progress for \d+ seconds \(in site site-2\)"):
        live(world(2, patience=2.0, pulse=0.05), program)


@task
async def outlives(island, peers):
    """Says that it is there, and goes on without the other."""
    island.state = "it lived"
    await peers.send("b", "here")
    try:
        return await peers.recv("b")
    except SessionError as error:
        return error.what


@task
async def dies_or_waits(island, peers, gate):
    """Ends its whole process once it has heard, if nothing holds it up there."""
    island.state = "it wrote"
    await peers.recv("a")
    if gate is None:
        os.kill(os.getpid(), signal.SIGKILL)
    await asyncio.to_thread(wait_at, gate, island.name)


@task
def state_of(island, message):
    return island.state


@pytest.mark.parametrize("quorum", [1, None])
def test_a_site_that_dies_in_a_session_is_a_role_lost(quorum):
    async def program(fed):
        roles = {"a": ("client-0", outlives), "b": ("client-1", dies_or_waits.with_args(gate=None))}
        try:
            told = await fed.session(roles, quorum=quorum)
        except SessionError as error:
            told = str(error)
        return told, await fed.ask("client-0", state_of), fed.meter.crashed

    told, state, crashed = live(world(2, on_lost="drop"), program)
    if quorum:
        assert (told, state) == ({"a": "role 'b' was lost, and will not send what role 'a' waits for"}, "it lived")
    else:
        assert told.startswith("role 'b' at client-1 was lost when it had sent 0 messages (in main/")
        assert state is None
    assert crashed == 1


def test_a_deadline_ends_a_session_whose_role_hangs(tmp_path):
    gate = Gate(tmp_path / "gate", "client-1")

    async def program(fed):
        roles = {"a": ("client-0", outlives), "b": ("client-1", dies_or_waits.with_args(gate=gate.path))}
        with pytest.raises(SessionError, match=r"'a' at client-0 did not end in time; role 'b'.* within 1.5 s"):
            await fed.session(roles, deadline=1.5)
        gate.open("client-1")
        again = await fed.session({**roles, "b": ("client-1", answers)}, deadline=300.0)
        states = (await fed.ask_all(fed.parties, state_of)).values
        return again["a"], states, fed.meter.parties()[1]["called_off"].tolist()

    assert live(world(2), program) == ("yes", ["it lived", "answered"], [1, 1])


@task
async def answers(island, peers):
    assert island.state is None
    island.state = "answered"
    await peers.recv("a")
    await peers.send("a", "yes")
