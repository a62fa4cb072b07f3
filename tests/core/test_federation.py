"""The verbs of a federation: what they refuse, and what they promise about names, scopes and nested programs."""

from __future__ import annotations

import asyncio
import contextlib

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.reducer import TreeReducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable
from atoll.testing.conformance.reducer import Unsummable


@task
def draw(island, message):
    return float(island.rng.generator().random())


@task
def mean(island, message):
    island.state = (island.state or 0) + 1
    return {"x": Mean(np.float64(island.data), examples=1.0), "runs": Sum(float(island.state))}


@task
def nan(island, message):
    return {"x": Mean({"w": np.array([1.0, np.nan if island.data in message else 0.0])})}


@task
def plain(island, message):
    return 5


def live(program, data=(1.0, 2.0, 3.0, 4.0), **more):
    people = Community(list(data), others={"edge": None, "edge-2": None})
    return run_in(World(people, Inline(), **more), program)[0]


def test_a_label_is_used_once():
    async def program(fed):
        first = await fed.ask("client-0", draw, at=("round", 1))
        second = await fed.ask("client-0", draw, at=("round", 2))
        assert first != second
        await fed.ask("client-0", draw, at=("round", 1))

    with pytest.raises(ConfigError, match=r"the label '.*draw/@round/1' is used by a second request \(in main\)"):
        live(program)


@pytest.mark.parametrize("ask", [dict, list, lambda sums: sums[0], lambda sums: sums[["x"]], lambda sums: sums["run"]])
def test_a_sum_that_is_asked_for_a_name_that_it_has_not_says_so(ask):
    """Also for a name that is no string: ``dict(sums)`` asks for the place 0."""

    async def program(fed):
        ask(await fed.sum(fed.parties, mean))

    with pytest.raises(ConfigError, match=r"is in no reply.*Remedy: use one of x, runs"):
        live(program)


def test_labels_fix_the_stream_whatever_ran_before():
    async def one(fed):
        return await fed.ask("client-0", draw, at=3)

    async def other(fed):
        await fed.ask_all(fed.parties, draw)
        return await fed.ask("client-0", draw, at=3)

    assert live(one) == live(other)


def test_what_is_not_a_task_is_refused():
    with pytest.raises(ConfigError, match=r"is not a task.*decorate the function with @atoll\.task"):
        live(lambda fed: fed.ask("client-0", draw.run))


def test_a_sum_wants_aggregates():
    with pytest.raises(ValueError, match=r"the reply to a sum must be a dict of aggregates, not int"):
        live(lambda fed: fed.sum(fed.parties, plain))


def test_replies_that_are_not_finite_are_kept_out_and_named():
    async def program(fed):
        got = await fed.sum(fed.parties, nan, [2.0, 4.0], quorum=2)
        return got.senders.names, got.rejected, got.silent.names, got["x"]["w"].tolist()

    rejected = {"client-1": "x/w is not finite", "client-3": "x/w is not finite"}
    assert live(program) == (["client-0", "client-2"], rejected, [], [1.0, 0.0])
    with pytest.raises(
        QuorumError, match=r"2 of 4 replies can be used.*first client-1: x/w is not finite; look at that party's data"
    ):
        live(lambda fed: fed.sum(fed.parties, nan, [2.0, 4.0], quorum=3))


def test_a_secure_reducer_refuses_before_anyone_is_asked():
    class Secure(TreeReducer):
        secure = True

    async def program(fed):
        with pytest.raises(CompositionError, match=r"Unsummable is not summable: .*Secure sees only sums"):
            await fed.sum(fed.parties, mean, uplink=[Unsummable()], reducer=Secure(2))
        return fed.bytes()["messages_down"]

    assert live(program) == 0
    with pytest.raises(CompositionError, match="late='arrive' passes single replies to the program"):
        live(lambda fed: fed.sum(fed.parties, mean, reducer=TreeReducer(2), late="arrive"))


def test_a_scope_of_one_name_is_one_scope():
    async def program(fed):
        inner, same = fed.scope("inner", fed.parties[:2]), fed.scope("inner", fed.parties[:2])
        runs = [(await scope.sum(scope.parties, mean))["runs"] for scope in (inner, fed, same, inner)]
        return inner is same, runs, fed.bytes()["messages_down"]

    assert live(program) == (True, [2.0, 4.0, 4.0, 6.0], 10)


@pytest.mark.parametrize("name", ["", "a/b", "nest:x"])
def test_scope_names(name):
    async def program(fed):
        fed.scope(name)

    with pytest.raises(ConfigError, match="scope name"):
        live(program)


async def visit(edge, message):
    got = await edge.sum(edge.parties, mean, message)
    inside = edge.scope("deep")
    await inside.ask_all(inside.parties, draw)
    return {"runs": got["runs"], "hub": edge.hub}


def test_a_nested_program_is_metered_at_its_hub_and_clocked():
    async def program(fed):
        cost = [fed.nest("edge", visit, fed.parties[:2], b"x" * 100), fed.nest("edge-2", visit, fed.parties[2:])]
        parts = await asyncio.gather(*cost)
        again = await fed.nest("edge", visit, fed.parties[:2])
        return [p["runs"] for p in [*parts, again]], fed.clock.now(), fed.meter.links("edge"), fed.below()

    runs, now, links, below = live(program, cost=Timetable(latency=1.0))
    assert runs == [2.0, 2.0, 4.0]  # what members keep outlives a visit
    assert now == 2 * (1 + 2 + 1)
    assert sorted(links) == [0, 1]
    assert below == []


def test_a_nested_program_that_fails_leaves_nothing_behind():
    async def fails(edge, message):
        await edge.sum(edge.parties, mean)
        raise ValueError("the edge fell over")

    async def program(fed):
        with pytest.raises(ValueError, match="the edge fell over"):
            await fed.nest("edge", fails, fed.parties)
        return fed.below(), fed.bytes()["messages_down"]

    assert live(program) == ([], 5)


async def tour(edge, message):
    """Members keep something for the edge, and something for a scope of this visit alone."""
    await edge.sum(edge.parties, mean)
    await edge.scope("deep").sum(edge.parties, mean)
    await edge.checkpoint(None)
    if message == "fall over":
        raise ValueError(message)


@pytest.mark.parametrize("message", ["", "fall over"])
def test_private_state_of_a_visits_own_scopes_goes_with_the_visit(tmp_path, message):
    async def program(fed):
        for _ in range(3):
            with pytest.raises(ValueError, match="fall over") if message else contextlib.nullcontext():
                await fed.nest("edge", tour, fed.parties, message)
        await fed.checkpoint(None)
        store, checkpoints = fed.world.engine.host.store, fed.world.checkpoints
        kept = {slot: len(store.list_touched(slot)) for slot in sorted(store.tables)}
        return kept, sorted(checkpoints.chains), sorted(checkpoints.slots["main"]["homes"])

    kept, chains, homes = live(program, folder=tmp_path)
    assert {slot: n for slot, n in kept.items() if n} == {"main/nest:edge": 4}
    assert "main/nest:edge" in chains
    assert not any("deep" in home for home in [*kept, *chains, *homes])


def test_the_inner_seed_of_a_scope_is_its_own():
    async def program(fed):
        scopes = [fed, fed.scope("a"), fed.scope("b")]
        return [await s.ask("client-0", draw) for s in scopes], [s.rng.key for s in scopes]

    draws, keys = live(program)
    assert len(set(draws)) == len(set(keys)) == 3
