"""Sites that insist on sums: a policy admits steps of Atoll's own secure reducers against a server that may lie, and nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import PolicyError, QuorumError
from atoll.core.federation.federation import run_program
from atoll.core.federation.reducer import Plain
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import task
from atoll.core.time.clock import run
from atoll.core.world import World
from atoll.engines import Batched, Inline
from atoll.reducers import SecureAggregation
from atoll.runs import parse_policy

POLICY = SitePolicy(sums_only=True, smallest_cohort=5)


@task
def value(island, message):
    return {"x": Sum(np.ones(3) * island.data)}


@task(promise=lambda message: 100)
def boasting(island, message):
    return {"x": Sum(np.ones(3) * island.data)}


def summed(reducer, asked=value, engine=Inline, policy=POLICY, parties=6, **terms):
    world = World(Community([float(i) for i in range(parties)]), engine(), policy=policy)
    return run(run_program(world, lambda fed: fed.sum(fed.parties, asked, reducer=reducer, **terms)))[0]


@pytest.mark.parametrize("engine", [Inline, Batched])
def test_a_sum_that_is_large_enough_is_given(engine):
    found = summed(SecureAggregation(least=5, server="active"), engine=engine, quorum=5)
    assert found["x"].tolist() == [15.0] * 3


@pytest.mark.parametrize(
    ("reducer", "asked", "why"),
    [
        (Plain(), value, "would let the server see more than a sum"),
        (Plain(), boasting, "would let the server see more than a sum"),
        (SecureAggregation(threshold=5, server="honest"), value, "a sum of 0 parties, but this site requires at least 5, against a server that may lie"),
        (SecureAggregation(masks="virtual", server="active", threshold=5, least=5), value, "a sum of 0 parties"),
    ],
)  # fmt: skip
def test_everything_else_is_refused(reducer, asked, why):
    with pytest.raises((PolicyError, QuorumError), match=why):
        summed(reducer, asked, quorum=5)


def test_a_smaller_sum_than_the_site_asks_for_is_refused():
    with pytest.raises((PolicyError, QuorumError), match="a sum of 5 parties, but this site requires at least 6"):
        summed(SecureAggregation(threshold=5, server="active"), policy=SitePolicy(sums_only=True, smallest_cohort=6))


def test_single_replies_are_refused():
    world = World(Community([1.0, 2.0]), Inline(), policy=POLICY)
    with pytest.raises(PolicyError, match=r"value would let the server see more than a sum.*reducer=SecureAggregation"):
        run(run_program(world, lambda fed: fed.ask_all(fed.parties, value)))


def test_a_file_has_the_setting():
    assert parse_policy({"sums_only": True, "smallest_cohort": 5}) == POLICY
