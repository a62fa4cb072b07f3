"""Named results stay at their party: they take effect with the party's state, and later jobs read them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.core import message as M
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import AtollError, CheckpointError, ConfigError, MessageError, PolicyError, SessionError
from atoll.core.persistence.named_results import NamedResults, require_name
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in
from atoll.testing import Timetable, killed_and_resumed


@task
def leaves(island, message):
    island.leave("half", {"w": np.full(3, island.data), "at": message})
    return {"n": Sum(1.0)}


@task
def reads(island, message):
    return island.left(message)


@task
async def talks(island, peers):
    island.leave("half", {"w": island.data})
    await peers.work()


PAIR = {"a": ("client-0", talks), "b": ("client-1", talks)}


def ran(program, folder, **more):
    world = World(Community([1.0, 2.0, 3.0]), more.pop("engine", None) or Inline(), folder=folder, **more)
    return run_in(world, program)[0]


def in_folder(folder):
    return {
        (one.party, one.name): M.fingerprint(NamedResults(folder).get(one.party, one.name))
        for one in NamedResults(folder).all()
    }


def test_a_later_job_reads_what_an_earlier_one_left(tmp_path):
    async def first(fed):
        await fed.sum(fed.parties[:2], leaves, 7)
        with pytest.raises(AtollError, match=r"client-0 has no result named 'half'.*first run the job"):
            await fed.ask("client-0", reads, "half")  # not before the job has ended
        return "done"

    async def second(fed):
        with pytest.raises(ConfigError, match=r"has no result named 'hald'\. Did you mean 'half'\?"):
            await fed.ask("client-0", reads, "hald")
        return (await fed.ask_all(fed.parties[:2], reads, "half")).by_name()

    ran(first, tmp_path / "one")
    told = ran(second, tmp_path / "two", results=tmp_path / "one" / "results")
    assert {name: (value["w"].tolist(), value["at"]) for name, value in told.items()} == {
        "client-0": ([1.0] * 3, 7),
        "client-1": ([2.0] * 3, 7),
    }
    assert [(one.party, one.name, one.job) for one in NamedResults(tmp_path / "one" / "results").all()] == [
        ("client-0", "half", ""),
        ("client-1", "half", ""),
    ]
    assert not (tmp_path / "two" / "results").exists()


def test_simulate_shares_a_folder_of_results(tmp_path):
    async def first(fed):
        await fed.ask_all(fed.parties, leaves, 1)

    async def second(fed):
        return await fed.ask("south", reads, "half")

    data = {"north": 1.0, "south": 2.0}
    atoll.simulate(first, data, engine="inline", folder=tmp_path / "run")
    found = atoll.simulate(second, data, engine="inline", results=tmp_path / "run" / "results")
    np.testing.assert_array_equal(found["w"], [2.0] * 3)


def test_the_newest_counts_and_scopes_have_names_of_their_own(tmp_path):
    async def program(fed):
        for at in range(3):
            await fed.ask_all(fed.parties[:1], leaves, at)
        await fed.scope("inner").ask_all(fed.parties[:1], leaves, "inner")

    ran(program, tmp_path)
    found = NamedResults(tmp_path / "results")
    assert [one.name for one in found.all("client-0")] == ["half", "inner/half"]
    assert (found.get("client-0", "half")["at"], found.get("client-0", "inner/half")["at"]) == (2, "inner")


def test_what_fails_leaves_nothing(tmp_path):
    async def program(fed):
        with pytest.raises(AtollError, match="quorum"):
            await fed.sum(fed.parties, leaves, 1, quorum=3)
        with pytest.raises(SessionError, match="was lost"):
            await fed.session(PAIR)
        await fed.sum(fed.parties, leaves, 2, quorum=2)

    cost = Timetable(lost={"leaves": ["client-2"], "talks": ["client-1"]})
    ran(program, tmp_path, cost=cost)
    found = NamedResults(tmp_path / "results")
    assert [(one.party, found.get(one.party, one.name)["at"]) for one in found.all()] == [
        ("client-0", 2),
        ("client-1", 2),
    ]


def test_a_program_that_fails_leaves_nothing(tmp_path):
    async def program(fed):
        await fed.ask_all(fed.parties, leaves, 1)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        ran(program, tmp_path)
    assert NamedResults(tmp_path / "results").all() == []


def test_a_run_that_is_killed_leaves_exactly_what_an_undisturbed_one_leaves(tmp_path):
    async def program(fed):
        done = await fed.restore(0)
        for at in range(done, 3):
            await fed.sum(fed.parties, leaves, at)
            await fed.session(PAIR, at=at)
            await fed.checkpoint(at + 1)
        return "done"

    def make(folder, resume):
        return World(Community([1.0, 2.0, 3.0]), Inline(), folder=folder, resume=resume)

    killed_and_resumed(make, program, tmp_path, points=5)
    folders = sorted(tmp_path.iterdir())
    whole = in_folder(tmp_path / "undisturbed" / "results")
    assert {(party, name) for party, name in whole} == {(f"client-{i}", "half") for i in range(3)}
    assert len(folders) == 6
    assert all(in_folder(folder / "results") == whole for folder in folders)


def test_a_policy_may_let_nothing_stay(tmp_path):
    async def program(fed):
        got = await fed.sum(fed.parties, leaves, 1)
        return got.senders.names, got.rejected

    told = ran(program, tmp_path, policy={"client-1": SitePolicy(results=False)})
    assert told[0] == ["client-0", "client-2"]
    assert "may leave no result 'half' here" in told[1]["client-1"]
    assert [one.party for one in NamedResults(tmp_path / "results").all()] == ["client-0", "client-2"]


@task
def leaves_badly(island, message):
    island.leave(message["name"], message.get("value", island))


@pytest.mark.parametrize(
    ("message", "error", "told"),
    [
        ({"name": "a/b", "value": 1}, ConfigError, "'a/b' is not a valid name of a result"),
        ({"name": "", "value": 1}, ConfigError, "'' is not a valid name of a result"),
        ({"name": "x"}, MessageError, "cannot be sent"),
    ],
)
def test_bad_results_are_refused(message, error, told):
    async def program(fed):
        await fed.ask("client-0", leaves_badly, message)

    with pytest.raises(error, match=told):
        ran(program, None)


def test_a_damaged_file_is_named(tmp_path):
    made = NamedResults(tmp_path)
    made.put("a/b c", "x", 1)
    path = made.all()[0].path
    assert path.parent.parent == tmp_path
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=r"x\.msg"):
        made.get("a/b c", "x")


@given(st.text(max_size=12))
def test_a_name_never_leads_out_of_its_folder(text):
    try:
        require_name(text)
    except ConfigError:
        return
    assert "/" not in text
    assert not text.startswith(".")


@pytest.mark.parametrize("folder", [True, False])
def test_a_record_may_only_grow_whoever_writes_meanwhile(tmp_path, folder):
    """Of two jobs that have read the same record the second to write is refused; what is no record is replaced."""
    one = NamedResults(tmp_path if folder else None)
    other = NamedResults(tmp_path) if folder else one
    one.put("a", "told", {"sets": ["x"], "of": np.arange(2)}, at_once=True)
    other.put("a", "told", {"sets": ["x", "y"], "of": np.arange(2)}, at_once=True)
    for less in ({"sets": ["x", "z"], "of": np.arange(2)}, {"sets": ["x", "y", "z"]}, {"sets": ["x", "y"], "of": np.arange(3)}):  # fmt: skip
        with pytest.raises(PolicyError, match="'told' is a record of a, which may only grow"):
            one.put("a", "told", less, at_once=True)
    assert one.get("a", "told")["sets"] == ["x", "y"]
    one.put("a", "half", {"w": 1.0})
    one.put("a", "half", {})
    assert one.get("a", "half") == {}
