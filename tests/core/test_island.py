"""What a task sees: its data, its state, its randomness, its entropy, its letters."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import CompositionError, ConfigError, PolicyError, QuorumError, TaskError
from atoll.core.event import Laplace
from atoll.core.federation.reducer import Reducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.island import Secret
from atoll.core.requests.policy import Policy
from atoll.core.requests.task import Task, task
from atoll.core.world import World
from atoll.engines import Inline
from atoll.simulation import run_in


def test_a_seeded_secret_repeats_and_the_systems_does_not():
    def draw(seed):
        secret = Secret(seed)
        return secret.bytes(5), secret.uint64((2, 3)).tolist(), secret.integer(10**40), secret.uniform(4).tolist()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(None) != draw(None)


def test_a_secret_never_repeats_within_a_stream():
    secret = Secret(7)
    words = np.concatenate([secret.uint64(100) for _ in range(20)])
    assert len(np.unique(words)) == 2000


def test_secret_integers_are_uniform_and_below():
    secret = Secret(3)
    draws = np.array([secret.integer(6) for _ in range(6000)])
    assert set(draws) == set(range(6))
    # chi-square with 5 degrees of freedom: above 20.5 once in a thousand seeds
    assert (((np.bincount(draws) - 1000) ** 2) / 1000).sum() < 20.5
    assert secret.integer(1) == 0
    with pytest.raises(ConfigError, match="below=0"):
        secret.integer(0)
    uniform = secret.uniform(5000)
    assert 0 <= uniform.min() <= uniform.max() < 1
    assert abs(uniform.mean() - 0.5) < 0.02


@task
def draws(island, message):
    return {"rng": island.rng.generator().random(), "secret": island.secret.bytes(8)}


@task
def keeps(island, message):
    state = island.state or {"seen": []}
    state["seen"].append(message)
    if message != "only look":
        island.state = state
    return len(state["seen"])


@task
def posts_twice(island, message):
    island.post("client-1", 1)
    island.post("client-1", 2)


@task
def leaks(island, message):
    if message == "mail":
        island.post("client-1", "raw data")
    if message == "note":
        island.note("raw data")
    return "raw data" if message == "reply" else "a sum"


@task
async def talks(island, peers):
    await peers.send("other", "raw data")


@task
async def listens(island, peers):
    return await peers.recv("one")


class NoRawData(Policy):
    def release(self, party, task, reply):
        if reply == "raw data":
            raise PolicyError("raw data stay here", where=party.name, remedy="ask for a sum")


def live(program, **more):
    return run_in(World(Community([1.0, 2.0, 3.0]), Inline(), **more), program)[0]


def test_streams_are_keyed_by_request_and_party():
    async def program(fed):
        return [r for _ in range(2) for r in (await fed.ask_all(fed.parties, draws)).values]

    first, second = live(program, secret_seed=1), live(program, secret_seed=1)
    assert first == second
    assert len({r["rng"] for r in first}) == len({r["secret"] for r in first}) == 6
    other = live(program, secret_seed=2)
    assert [r["rng"] for r in other] == [r["rng"] for r in first]
    assert {r["secret"] for r in other}.isdisjoint({r["secret"] for r in first})


def test_a_seeded_secret_is_in_the_ledger():
    world = World(Community([1.0]), Inline(), secret_seed=1)
    run_in(world, lambda fed: fed.ask_all(fed.parties, draws))
    assert [e["kind"] for e in world.ledger] == ["seeded-secret"]


def test_state_changes_when_it_is_assigned_and_not_before():
    async def program(fed):
        return [await fed.ask("client-0", keeps, m) for m in ("a", "only look", "b", "only look", "c")]

    assert live(program) == [1, 2, 2, 3, 3]


def test_one_envelope_each():
    with pytest.raises(
        ConfigError, match=r"client-0 posted two envelopes to 'client-1'.*put everything into one payload"
    ):
        live(lambda fed: fed.ask("client-0", posts_twice))


@pytest.mark.parametrize("way", ["reply", "mail", "note"])
def test_a_policy_sees_every_way_out(way):
    async def program(fed):
        await fed.ask("client-0", leaks, "nothing")
        await fed.ask("client-0", leaks, way)

    live(program)
    with pytest.raises(PolicyError, match=r"raw data stay here \(in client-0; main/.*leaks/1 at client-0\)"):
        live(program, policy=NoRawData())


def test_a_policy_sees_what_is_said_in_a_session():
    async def program(fed):
        await fed.session({"one": ("client-0", talks), "other": ("client-1", listens)})

    live(program)
    with pytest.raises(PolicyError, match="raw data stay here"):
        live(program, policy=NoRawData())


def test_a_policy_sees_single_replies_of_a_vectorised_sum():
    from atoll.testing.conformance.tasks import scale

    class Vectorised(Inline):
        vectorised = True

    class Nothing(Policy):
        def release(self, party, task, reply):
            raise PolicyError("nothing leaves")

    async def program(fed):
        await fed.sum(fed.parties, scale, {"w": np.ones(2)})

    run_in(World(Community([1.0]), Vectorised()), program)
    with pytest.raises(QuorumError, match="first client-0: refused by its policy: nothing leaves"):
        run_in(World(Community([1.0]), Vectorised(), policy=Nothing()), program)


@task
async def half(island, message):
    return {k: Sum(t.value) for k, t in (await island.totals()).items()}


@task
def inner(island, message):
    from atoll.core.algebra.aggregate import Mean, Parts

    if message == "single":
        return {"x": Parts(1.0)}
    return {"x": Mean(np.array([np.nan if message == island.name else island.data]), examples=2.0)}


class Halves(Reducer):
    async def reduce(self, reduction):
        return await reduction.fold(half)


def halves(message=None, **more):
    return live(lambda fed: fed.sum(fed.parties, inner, message, reducer=Halves(), **more))


def test_a_task_wraps_another():
    assert halves()["x"].tolist() == [12.0]


def test_what_a_wrapping_task_refuses():
    with pytest.raises(ConfigError, match="this request wraps no other"):
        live(lambda fed: fed.ask("client-1", half))
    with pytest.raises(CompositionError, match="'x' is a single reply, which this reducer does not reveal"):
        halves("single")


def test_a_wrapped_reply_that_is_not_finite_is_kept_out_and_named():
    got = halves("client-1")
    assert (got["x"].tolist(), got.n, got.rejected) == ([8.0], 2, {"client-1": "x is not finite"})
    assert (got.silent.names, got.senders.names) == ([], ["client-0", "client-2"])
    with pytest.raises(QuorumError, match="2 of 3 replies can be used"):
        halves("client-1", quorum=3)


@task
def spends(island, message):
    island.spend(Laplace(epsilon=1.0))
    raise ValueError("after spending")


def test_spending_stays_in_the_ledger_when_the_task_fails():
    world = World(Community([1.0]), Inline())
    with pytest.raises(TaskError, match="after spending"):
        run_in(world, lambda fed: fed.ask("client-0", spends))
    assert [(e["kind"], e["party"]) for e in world.ledger] == [("laplace", "client-0")]


def test_spending_needs_a_ledger():
    from atoll.core.requests.island import Island
    from atoll.core.requests.party import Party

    with pytest.raises(PolicyError, match="somebody has no privacy ledger"):
        Island(Party("somebody", "client", 0), lambda: None, 0).spend(Laplace(epsilon=1.0))


def test_a_closure_cannot_travel():
    with pytest.raises(ConfigError, match=r"no task named .*<locals>.* can be found here.*top level of a module"):
        live(lambda fed: fed.ask("client-0", task(lambda island, message: 1)))
    assert (
        live(
            lambda fed: fed.ask("client-0", Task("mine", lambda i, m: 1)),
            registry={"mine": Task("mine", lambda i, m: 1)},
        )
        == 1
    )


def test_normal_numbers_are_those_of_a_fresh_stream_and_never_the_same_again():
    """The generator is one of the thread's; what was drawn with it before changes nothing."""
    one, two = Secret(b"s" * 32), Secret(b"s" * 32)
    for count in (3, 1000, 1):
        np.testing.assert_array_equal(one.normal(count), two.stream().standard_normal(count))
    assert Secret().normal(4).tolist() != Secret().normal(4).tolist()
