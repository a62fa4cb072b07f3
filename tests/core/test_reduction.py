"""What a reducer may not change: random streams, private state, the moment at which state takes effect, and what the program is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import FedDyn, FedNova, Mime, Scaffold
from atoll.core.algebra.aggregate import Mean, Sum, Total, merge_totals
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.reducer import Plain, Reducer
from atoll.core.requests.cohort import Community
from atoll.core.requests.request import Reduced
from atoll.core.requests.task import task
from atoll.core.world import World
from atoll.engines import ENGINES
from atoll.simulation import run_in
from atoll.stages import Clip, CountSketch, ErrorFeedback, RandomK, TopK
from atoll.testing import Timetable


@task
def begin(island, message):
    """Keeps something of its own, and draws."""
    island.state = {"steps": 1, "drawn": island.rng.generator().random()}
    return len(island.name)


@task
async def openly(island, message):
    """The totals as they are, with a state and draws of the half's own on both sides of the call."""
    before = island.state
    island.state = {"steps": before["steps"] + 1}
    island.rng.generator().random(100)
    totals = await island.totals()
    island.state = {"steps": 3}
    return [[k, t.kind, t.value, float(t.weight), t.role] for k, t in totals.items()]


@task
def end(island, message):
    return island.state["steps"]


@dataclass(frozen=True)
class InSteps(Reducer):
    """Exact, in three supersteps, with state and random draws of its own."""

    least: int = 1

    def check(self, uplink, parties, terms, task):
        super().check(uplink, parties, terms, task)
        uplink.require_summable(type(self).__name__)
        if len(parties) < self.least:
            raise QuorumError(f"{len(parties)} parties, and {self.least} are needed")

    async def reduce(self, reduction):
        first = await reduction.exchange(reduction.parties, begin)
        second = await reduction.exchange(first.senders, openly, wraps=True)
        third = await reduction.ask_all(second.senders, end, quorum=self.least)
        assert set(third.values) == {3}
        totals = merge_totals(
            {name: Total(kind, value, weight, 1, role) for name, kind, value, weight, role in reply}
            for reply in second.values
        )
        return Reduced(totals, second.senders.positions)


class Lasting(InSteps):
    lasting: ClassVar[bool] = True


ISLANDS = atoll.data.dirichlet(atoll.data.digits(), parties=12, alpha=0.5, seed=0)
ALGORITHMS = {
    "FedAvg": atoll.FedAvg(lr=0.1, epochs=1, batch_size=16),
    "Scaffold": Scaffold(lr=0.05, epochs=1, batch_size=16),
    "Mime": Mime(lr=0.05, epochs=1, batch_size=16),
    "FedNova": FedNova(lr=0.05, epochs=1, batch_size=16),
    "FedDyn": FedDyn(lr=0.05, epochs=1, batch_size=16),
}


def leaves(tree):
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in atoll.core.algebra.tree.leaves(tree)])


@pytest.mark.every(4)
@pytest.mark.parametrize("reducer", [InSteps(), Lasting()], ids=["ends", "lasts"])
@pytest.mark.parametrize(
    ("algorithm", "uplink"),
    [
        *[(name, ()) for name in ALGORITHMS],
        ("FedAvg", (Clip(1.0), RandomK(0.3, shared=True))),
        ("Scaffold", (Clip(0.5),)),
    ],
)
def test_a_reducer_changes_no_random_stream_and_no_state(reducer, algorithm, uplink):
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=ALGORITHMS[algorithm],
        selection=atoll.Uniform(6),
        rounds=3,
        uplink=uplink,
        evaluation=atoll.Evaluation(every=3),
    )
    plain = atoll.simulate(job, ISLANDS, engine="inline")
    other = atoll.simulate(job.replace(reducer=reducer), ISLANDS, engine="inline")
    np.testing.assert_allclose(leaves(other.params), leaves(plain.params), atol=1e-6)
    assert other.metrics.column("rejected") == plain.metrics.column("rejected")


CHAINS = [
    (),
    (Clip(1.0),),
    (Clip(1.0), RandomK(0.3, shared=True)),
    (CountSketch(200, 3),),
    (ErrorFeedback(RandomK(0.5, shared=True)),),
]


@settings(max_examples=settings.default.max_examples // 5)
@given(
    algorithm=st.sampled_from(sorted(ALGORITHMS)),
    uplink=st.sampled_from(CHAINS),
    seed=st.integers(0, 2**31),
    cohort=st.integers(2, 5),
)
def test_any_method_with_any_chain_and_seed_is_the_plain_training(algorithm, uplink, seed, cohort):
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=ALGORITHMS[algorithm],
        selection=atoll.Uniform(cohort),
        rounds=2,
        uplink=uplink,
    )
    plain, other = (
        atoll.simulate(job.replace(reducer=r), ISLANDS, seed=seed, engine="inline") for r in (Plain(), InSteps())
    )
    np.testing.assert_allclose(leaves(other.params), leaves(plain.params), atol=1e-6)


def test_an_aggregation_that_asks_for_weights_gets_them():
    job = atoll.Training(
        model=atoll.models.linear(64, 10),
        algorithm=ALGORITHMS["FedAvg"],
        aggregation=atoll.aggregation.Rescaled(),
        rounds=2,
    )
    plain, other = (atoll.simulate(job.replace(reducer=r), ISLANDS, engine="inline") for r in (Plain(), InSteps()))
    np.testing.assert_allclose(leaves(other.params), leaves(plain.params), atol=1e-6)


# ---------------------------------------------------------------------- names, state and commit


@task
def visits(island, message):
    """How often this party's visits counted, and a draw; one reply is not finite where the message says so."""
    count = (island.state or {"count": 0})["count"] + 1
    island.state = {"count": count}
    bad = message == island.name
    return {"x": Mean(np.array([np.nan if bad else float(count), island.rng.generator().random()]), examples=2.0)}


@task
def other(island, message):
    return {"x": Sum(np.array([1.0, island.rng.generator().random()]))}


def world(engine="inline", **more):
    return World(Community(list(range(6))), ENGINES[engine](2), **more)


def test_two_sums_of_one_label_do_not_meet():
    async def program(fed):
        reducer = InSteps()
        return [
            (await fed.sum(fed.parties, each, at=1, reducer=reducer))["x"].tolist()
            for each in (visits, other, visits)[:2]
        ]

    async def plainly(fed):
        return [(await fed.sum(fed.parties, each, at=1))["x"].tolist() for each in (visits, other)]

    np.testing.assert_allclose(run_in(world(), program)[0], run_in(world(), plainly)[0], rtol=1e-12)


async def _visited(fed):
    return [float((await fed.sum(fed.parties[i : i + 1], visits, at=("look", i)))["x"][0]) for i in range(6)]


@pytest.mark.parametrize("engine", ["inline", "batched", "processes", "socket"])
@pytest.mark.parametrize("reducer", [InSteps(), InSteps(least=5), Plain()], ids=["steps", "unmasking fails", "plain"])
def test_a_sum_that_fails_leaves_everyone_as_they_were(engine, reducer):
    """The third step, the quorum of usable replies, and the quorum of the plain sum: whatever fails it, no client counts the visit."""
    lost = {} if reducer == InSteps() else {":end/": ["client-0", "client-1"]}
    message = "client-2"
    if isinstance(reducer, InSteps) and reducer.least == 5:
        message = None

    async def program(fed):
        with pytest.raises(QuorumError, match="fewer than the quorum of") as failed:
            await fed.sum(fed.parties, visits, message, reducer=reducer, quorum=6)
        told = failed.value.combined
        return await _visited(fed), None if told is None else sorted(told.rejected)

    counts, rejected = run_in(world(engine, cost=Timetable(lost=lost)), program)[0]
    assert counts == [1.0] * 6, "each counts its first visit"
    assert rejected == ([] if message is None else ["client-2"])


def test_a_sum_below_the_quorum_is_told_to_nobody():
    """Who was in it, and why others were not, is told; of their values nothing."""

    async def program(fed):
        with pytest.raises(QuorumError, match="fewer than the quorum of 6") as failed:
            await fed.sum(fed.parties, visits, "client-2", quorum=6)
        return failed.value.combined

    told = run_in(world("inline"), program)[0]
    assert (told.value, told.weight, told.kinds, told.roles) == ({}, {}, {}, {})
    assert (told.n, told.senders.names, list(told.rejected)) == (
        5,
        [f"client-{i}" for i in (0, 1, 3, 4, 5)],
        ["client-2"],
    )


@pytest.mark.parametrize("engine", ["inline", "batched", "processes", "socket"])
def test_only_those_in_the_sum_keep_what_it_left(engine):
    async def program(fed):
        got = await fed.sum(fed.parties, visits, "client-2", reducer=InSteps())
        assert got.rejected == {"client-2": "x is not finite"}
        assert got.silent.names == ["client-4"]
        assert (got.n, got.kinds, got.weight) == (4, {"x": "mean"}, {"x": 8.0})
        assert got.outcomes.done.tolist() == [True, True, True, True, False, True]
        assert got.outcomes.fraction[4] == 0.5
        assert got.bytes_up > 0 < got.bytes_down
        return await _visited(fed)

    cost = Timetable(lost={":openly/": ["client-4"]})
    assert run_in(world(engine, cost=cost), program)[0] == [2.0, 2.0, 1.0, 2.0, 1.0, 2.0]


def test_late_work_that_is_dropped_is_kept_as_under_the_plain_reducer():
    def program(reducer):
        async def both(fed):
            terms = {"deadline": 2.5, "late": "drop"}
            got = await fed.sum(fed.parties, visits, reducer=reducer, **terms)
            return got.senders.names, await _visited(fed)

        return both

    slow = {"client-1": 3.0}
    plain = run_in(world(cost=Timetable(slow)), program(Plain()))[0]
    other = run_in(world(cost=_ForWork(slow)), program(InSteps()))[0]
    assert plain == other
    assert plain[1] == [2.0] * 6


class _ForWork(Timetable):
    """Slow where it works on the program's task."""

    def plan(self, parties, plan):
        made = super().plan(parties, plan)
        return made if ":openly/" in plan.request else replace(made, seconds=np.ones(len(parties)))


# ---------------------------------------------------------------------- who asks, and whom


def test_a_cohort_that_is_too_small_is_refused_before_anyone_is_asked():
    async def program(fed):
        with pytest.raises(QuorumError, match="2 parties, and 3 are needed"):
            await fed.sum(fed.parties[:2], visits, reducer=InSteps(least=3))
        with pytest.raises(CompositionError, match="ErrorFeedback is not summable"):
            await fed.sum(fed.parties, visits, uplink=[ErrorFeedback(TopK(0.5))], reducer=InSteps())
        with pytest.raises(CompositionError, match="late='arrive' passes single replies to the program"):
            await fed.sum(fed.parties, visits, late="arrive", reducer=InSteps())
        return fed.bytes()["messages_down"]

    assert run_in(world(), program)[0] == 0


def test_the_terms_of_a_sum_are_those_of_the_step_that_wraps_it():
    async def program(fed):
        return [(await fed.sum(fed.parties, visits, reducer=r, accept=3)).senders.names for r in (InSteps(), Plain())]

    seconds = {f"client-{i}": 6.0 - i for i in range(6)}
    names = run_in(world(cost=Timetable(seconds)), program)[0]
    assert names == [["client-3", "client-4", "client-5"]] * 2


def test_what_lasts_is_found_by_the_next_sum_and_what_ends_is_not():
    async def program(fed):
        reducers = [Counting()] * 3 + [CountingOn()] * 3
        return [float((await fed.sum(fed.parties, visits, reducer=reducer))["x"]) for reducer in reducers]

    assert run_in(world(), program)[0] == [6.0, 6.0, 6.0, 6.0, 12.0, 18.0]


@task
async def counting(island, message):
    await island.totals()
    island.state = {"sums": (island.state or {"sums": 0})["sums"] + 1}
    return {"x": Sum(float(island.state["sums"]))}


@dataclass(frozen=True)
class Counting(Reducer):
    """Adds up in how many sums each party was, as far as its half knows."""

    async def reduce(self, reduction):
        return await reduction.fold(counting)


class CountingOn(Counting):
    lasting: ClassVar[bool] = True


async def of_an_early_version(self, fed, parties, task, message, uplink, terms, at):
    """What `reduce` was once given."""


def of_one_argument(self, uplink):
    """What `check` was once given."""


@pytest.mark.parametrize(
    ("name", "method", "match"),
    [
        (
            "reduce",
            of_an_early_version,
            r"Old\.reduce\(self, fed, parties, .*\) is not called so.*in .*:Old.*write `async def reduce\(self, reduction\)`",
        ),
        (
            "check",
            of_one_argument,
            r"Old\.check\(self, uplink\).*write `def check\(self, uplink, parties, terms, task\)`",
        ),
        ("exposures", lambda self: (), r"Old\.exposures\(self\).*write `def exposures\(self, parties\)`"),
        ("word_length", lambda self, uplink: None, r"write `def word_length\(self, uplink, parties\)`"),
        ("sealed_bits", lambda self, bits: None, r"write `def sealed_bits\(self, bits, parties, numbers\)`"),
        ("others", lambda self, n: {}, r"others of Old is a method.*make it an attribute, or a property"),
    ],
    ids=["reduce", "check", "exposures", "word_length", "sealed_bits", "others"],
)
def test_a_reducer_of_an_old_signature_is_refused_when_its_class_is_defined(name, method, match):
    for base in (Reducer, Plain, InSteps):
        with pytest.raises(ConfigError, match=match):
            type("Old", (base,), {name: method})


def test_a_reducer_may_name_what_it_is_given_as_it_likes():
    class Mine(Plain):
        others = property(lambda self: {"keys": "key holder"})

        async def reduce(self, sums, *more):
            return await sums.fold()

        def check(self, *asked):
            return super().check(*asked)

        def exposures(self, n, aloud=False):
            return super().exposures(n)

    assert (
        atoll.simulate(program_of(Mine()), [atoll.data.Dataset({"x": np.eye(2), "y": [0, 1]})] * 2, engine="inline")
        == 4.0
    )


def program_of(reducer):
    async def program(fed):
        return float((await fed.sum(fed.parties, count_rows, reducer=reducer))["rows"])

    return program


@task
def count_rows(island, message):
    return {"rows": Sum(float(len(island.data)))}
