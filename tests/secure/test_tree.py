"""Several cohorts of one round: each a secure sum of its own, and then one sum of them."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.core.algebra.aggregate import Mean, Sum
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.federation.reducer import Plain
from atoll.core.requests.cohort import Community
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import OneShot, SecureAggregation, SecureTree, TwoServers
from atoll.secure import FixedPoint
from atoll.stages import ScalarQuantizer
from atoll.testing import Timetable, check_reducer

CODEC = FixedPoint(value_bits=12, weight_bits=6, max_weight=64.0, value_range=4.0)
CLIENTS = 23


@task
def value(island, message):
    island.state = {"seen": (0 if island.state is None else island.state["seen"]) + 1}
    return {
        "x": Mean(np.arange(3.0) * island.data, examples=2.0),
        "n": Sum(np.int64(island.state["seen"]), role="side"),
    }


def summed(reducer, lost=None, engine=Inline, sums=1, **terms):
    world = World(Community([float(i % 4) for i in range(CLIENTS)]), engine(), cost=Timetable(lost=lost or {}))

    async def program(fed):
        return [await fed.sum(fed.parties, value, None, reducer=reducer, at=i, **terms) for i in range(sums)]

    return run(run_program(world, program))[0]


def cohort_of(tree, name, sums=1):
    """The names of a client's cohort in a sum, read from who is asked with it."""
    seen = []
    honest = tree.cohorts

    def spying(parties, key=0):
        made = honest(parties, key)
        seen.append(made)
        return made

    object.__setattr__(tree, "cohorts", spying)
    summed(tree)
    object.__delattr__(tree, "cohorts")
    (mine,) = [part for part in seen[-1] if int(name.rpartition("-")[2]) in part]
    return [f"client-{i}" for i in mine.tolist()]


@pytest.mark.every(3)
@pytest.mark.parametrize("engine", [Inline, Batched])
@pytest.mark.parametrize(
    "reducer", [SecureAggregation(codec=CODEC), SecureAggregation(codec=CODEC, server="active"), SecureAggregation(codec=CODEC, masks="virtual"), OneShot(codec=CODEC)],
    ids=["masks", "active", "virtual", "one shot"],
)  # fmt: skip
def test_the_sum_of_cohorts_is_the_plain_sum(reducer, engine):
    first, second = summed(SecureTree(reducer, 6), engine=engine, sums=2)
    plain = summed(Plain(), sums=2)
    for ours, theirs in zip((first, second), plain, strict=True):
        assert np.abs(ours["x"] - theirs["x"]).max() < 1e-3
        assert (int(ours["n"]), ours.weight, ours.n) == (int(theirs["n"]), theirs.weight, CLIENTS)
        assert ours.senders.names == theirs.senders.names
    assert int(second["n"]) == 2 * CLIENTS, "what a task keeps takes effect once the sum has succeeded"


def test_a_cohort_that_loses_too_many_is_left_out_and_the_others_count():
    tree = SecureTree(SecureAggregation(threshold=5, codec=CODEC), 6)
    gone = cohort_of(tree, "client-0")
    assert len(gone) in (7, 8)
    (found,) = summed(tree, {":masked/": gone[:4]})
    assert found.senders.names == [n for n in (f"client-{i}" for i in range(CLIENTS)) if n not in gone]
    assert int(found["n"]) == CLIENTS - len(gone)
    (found,) = summed(tree, {":masked/": gone[:2]}, quorum=6)
    assert found.n == CLIENTS - (2 if len(gone) == 8 else len(gone)), (
        "a cohort with fewer than the quorum is not opened"
    )
    with pytest.raises(QuorumError, match="fewer than the quorum of 1"):
        summed(tree, {":masked/": [f"client-{i}" for i in range(CLIENTS)]})


def test_cohorts_are_random_partitions_of_size_or_more():
    tree = SecureTree(size=6)
    one, other = tree.cohorts(CLIENTS, 1), tree.cohorts(CLIENTS, 2)
    assert [sorted(np.concatenate(parts).tolist()) for parts in (one, other)] == [list(range(CLIENTS))] * 2
    assert [p.tolist() for p in one] != [p.tolist() for p in other]
    assert {len(part) for part in one} == {7, 8}
    assert [len(part) for part in tree.cohorts(5)] == [5]


def test_a_training_with_short_words_is_the_plain_one():
    islands = atoll.data.dirichlet(atoll.data.digits(), parties=12, alpha=0.5, seed=0)
    islands = islands.with_public(islands.shard(0).dataset())
    job = atoll.Training(
        model=atoll.models.linear(64, 10), algorithm=atoll.FedAvg(lr=0.2), rounds=2, uplink=[ScalarQuantizer(8, 16)]
    )
    plain, tree = (atoll.simulate(job.replace(reducer=reducer), islands) for reducer in (Plain(), SecureTree(size=4)))
    assert np.array_equal(plain.params["weight"], tree.params["weight"])
    assert tree.metrics.column("overflowed") == [0.0, 0.0]
    assert tree.metrics.bytes_up < atoll.simulate(job.replace(reducer=SecureAggregation()), islands).metrics.bytes_up


@pytest.mark.slow  # its quick sibling is that of SecureAggregation, which adds up each cohort
def test_the_laws_of_reducers_hold():
    from atoll.secure.masking.party_steps import deal

    check_reducer(SecureTree(SecureAggregation(threshold=2), 3), proved=[deal])


@pytest.mark.parametrize(
    ("settings", "match"),
    [({"reducer": TwoServers()}, r"reducer=TwoServers\(\)"), ({"reducer": Plain()}, r"reducer=Plain\(\)"), ({"size": 1}, "size=1")],
    ids=["helpers", "plain", "size"],
)  # fmt: skip
def test_settings_without_a_meaning_are_refused(settings, match):
    with pytest.raises(ConfigError, match=match):
        SecureTree(**settings)


def test_a_round_that_a_cohort_cannot_add_up_is_refused_beforehand():
    with pytest.raises(QuorumError, match="fewer than 9"):
        summed(SecureTree(SecureAggregation(threshold=9), 6))
    with pytest.raises(CompositionError, match="accept=2, below the threshold"):
        summed(SecureTree(SecureAggregation(threshold=4), 6), accept=6)
    with pytest.raises(CompositionError, match=r"quorum=9 in cohorts of 7 parties.*size=9 or more"):
        summed(SecureTree(size=6), quorum=9)
    exposed = SecureTree(size=6).exposures(CLIENTS)
    assert exposed[0].sees.startswith("in each of 3 cohorts, the sum of the replies of 4 clients or more")
