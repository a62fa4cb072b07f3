"""A site's policy has the last word: what it insists on is refused in words, party by party, on every path."""

from __future__ import annotations

import numpy as np
import pytest

import atoll
from atoll.algorithms import Upcycled
from atoll.core.algebra.aggregate import Sum
from atoll.core.errors import ConfigError, PolicyError, QuorumError
from atoll.core.requests.cohort import Community
from atoll.core.requests.policy import SitePolicy
from atoll.core.requests.task import Batch, Task, task
from atoll.core.world import World
from atoll.engines import Batched, Inline, Processes
from atoll.stages import Clip, GaussianNoise
from atoll.statistics import Statistics
from atoll.testing import live
from atoll.testing.lying.sites import Rehearsal

BLOCKS = []


def one(island, message):
    return {"u": Sum({"w": np.ones(message)})}


def many(cohort, message):
    BLOCKS.append(len(cohort))
    yield Batch(np.arange(len(cohort)), {"u": Sum({"w": np.ones((len(cohort), message))})})


ONES = Task("tests.core.test_policy:ONES", one, many=many)


@task
def looks(island, message):
    return {"rows": 3}


ENGINES = [
    Inline,
    lambda: Batched(1),
    pytest.param(lambda: Processes(2), id="processes"),
    pytest.param(lambda: Rehearsal(2), id="network"),
]


def ask(engine, policy, *, size=8, parties=4, **terms):
    async def program(fed):
        got = await fed.sum(fed.parties, ONES, size, **terms)
        return got["u"]["w"][0], got.rejected, got.senders.names

    return live(World(Community([None] * parties), engine(), policy=policy), program).result


@pytest.mark.parametrize("engine", ENGINES)
def test_a_site_refuses_an_uplink_without_its_stages_and_the_others_go_on(engine):
    strict = {"client-1": SitePolicy(stages=[Clip(1.0)])}
    value, rejected, senders = ask(engine, strict)
    assert value == 3.0
    assert list(senders) == ["client-0", "client-2", "client-3"]
    assert list(rejected) == ["client-1"]
    assert "the uplink lacks Clip(bound=1.0)" in rejected["client-1"]
    assert "put Clip(bound=1.0) or a stricter one into uplink" in rejected["client-1"]
    assert not ask(engine, strict, uplink=[Clip(0.5)])[1]
    assert list(ask(engine, strict, uplink=[Clip(2.0)])[1]) == ["client-1"]


@pytest.mark.parametrize("engine", ENGINES)
def test_replies_that_are_too_large_stay(engine):
    value, rejected, _ = ask(engine, {"client-2": SitePolicy(largest_reply=2000)}, size=1000)
    assert value == 3.0
    assert "is larger than 2000" in rejected["client-2"]
    assert not ask(engine, {"client-2": SitePolicy(largest_reply=2000)}, size=10)[1]


@pytest.mark.parametrize("engine", ENGINES)
def test_small_cohorts_and_other_tasks_are_refused(engine):
    with pytest.raises(QuorumError, match=r"a sum may have 1 replies, but this site requires at least 3"):
        ask(engine, SitePolicy(smallest_cohort=3))
    assert ask(engine, SitePolicy(smallest_cohort=3), quorum=3)[0] == 4.0
    with pytest.raises(QuorumError, match=r"the task tests.core.test_policy:ONES may not run here"):
        ask(engine, SitePolicy(tasks=["atoll.*"]))
    assert ask(engine, SitePolicy(tasks=["tests.core.*:ON?S"]))[0] == 4.0


@pytest.mark.parametrize("engine", ENGINES)
def test_single_replies_are_refused_where_stages_or_sums_are_wanted(engine):
    for policy, words in (
        (SitePolicy(stages=[Clip(1.0)]), "the uplink lacks Clip"),
        (SitePolicy(smallest_cohort=2), "a sum may have 1 replies"),
        (SitePolicy(largest_reply=10), "larger than 10"),
    ):

        async def program(fed):
            return await fed.ask("client-0", looks)

        with pytest.raises(PolicyError, match=words):
            live(World(Community([None] * 2), engine(), policy=policy), program)
    free = SitePolicy(stages=[Clip(1.0)], free=["*:looks"])
    assert live(World(Community([None] * 2), engine(), policy=free), program).result == {"rows": 3}


def test_a_declarative_policy_keeps_the_block_path():
    BLOCKS.clear()
    ask(lambda: Batched(1), {"client-1": SitePolicy(stages=[Clip(1.0)])})
    assert BLOCKS == [3]


def test_what_is_at_least_as_strict():
    noise = [Clip(1.0), GaussianNoise(1.0)]
    covered = [[Clip(0.5), GaussianNoise(1.5)], [Clip(1.0), Clip(9.0), GaussianNoise(1.0)]]
    lacking = [[Clip(1.0)], [Clip(1.0), GaussianNoise(0.5)], [Clip(1.0), GaussianNoise(1.0, trusted=True)]]
    for given in covered:
        assert not ask(Inline, SitePolicy(stages=noise), uplink=given)[1]
    for given in lacking:
        with pytest.raises(QuorumError, match="the uplink lacks GaussianNoise"):
            ask(Inline, SitePolicy(stages=noise), uplink=given)


@pytest.mark.parametrize("engine", ["inline", "batched"])
def test_a_training_names_the_site_that_refused(engine):
    islands = atoll.data.iid(atoll.data.iris(), parties=4, seed=0)
    job = atoll.Training(
        model=atoll.models.linear(4, 3), algorithm=atoll.FedAvg(lr=0.1), selection=atoll.Everyone(), rounds=1
    )
    name = str(islands.names[2])
    result = atoll.simulate(job, islands, engine=engine, policy={name: SitePolicy(stages=[Clip(1.0)])})
    (row,) = result.metrics
    assert (row["replied"], row["rejected"]) == (3, 1)
    assert "the uplink lacks Clip(bound=1.0)" in row["rejected_clients"][name]


FLOWERS = atoll.data.iid(atoll.data.iris(), parties=4, seed=0)


def training(algorithm):
    return atoll.Training(model=atoll.models.linear(4, 3), algorithm=algorithm, selection=atoll.Everyone(), rounds=1)


async def counts(fed):
    return len(fed.parties)


class Mine(atoll.FedAvg):
    """An algorithm of one's own with a name of Atoll's."""


Mine.__qualname__ = Mine.__name__ = "FedAvg"


@pytest.mark.parametrize(
    ("job", "allow", "words"),
    [
        (training(atoll.FedAvg(lr=0.1)), ["FedAvg"], None),
        (training(atoll.FedAvg(lr=0.1)), ["Fed*"], None),
        (training(atoll.FedAvg(lr=0.1)), ["training"], None),
        (training(atoll.FedAvg(lr=0.1)), ["statistics", "Scaffold"], "FedAvg may not run here"),
        (training(Upcycled(coefficient=0.3, base=atoll.FedAvg(lr=0.1))), ["FedAvg"], "Upcycled may not run here"),
        (training(Upcycled(coefficient=0.3, base=atoll.FedAvg(lr=0.1))), ["Upcycled"], "FedAvg may not run here"),
        (training(Upcycled(coefficient=0.3, base=atoll.FedAvg(lr=0.1))), ["Upcycled", "FedAvg"], None),
        (
            training(Mine(lr=0.1)),
            ["FedAvg", "training"],
            r"the job's own code, .*test_policy:FedAvg, may not run here",
        ),
        (Statistics(), ["statistics"], None),
        (Statistics(), ["training"], "statistics may not run here"),
        (counts, ["*:counts"], None),
        (counts, ["program"], r"the job's own code, .*test_policy:counts, may not run here"),
        (counts, ["FedAvg"], r"the job's own code, .*test_policy:counts, may not run here"),
    ],
)
def test_a_policy_allows_jobs_and_algorithms_by_name(job, allow, words):
    name = str(FLOWERS.names[1])
    if words is None:
        atoll.simulate(job, FLOWERS, policy={name: SitePolicy(allow=allow)})
        return
    with pytest.raises(PolicyError, match=words) as found:
        atoll.simulate(job, FLOWERS, policy={name: SitePolicy(allow=allow)})
    assert found.value.where == f"the policy of {name}"
    assert f"use one of {', '.join(allow)}, let the site add" in found.value.remedy
    with pytest.raises(PolicyError, match=words):
        atoll.simulate(job, FLOWERS, policy=SitePolicy(allow=allow))


def test_code_of_a_jobs_own_is_allowed_by_module():
    policy = SitePolicy(allow=["FedAvg", "walking:*", "models.net:make"])
    for name in ("walking:walk", "walking:", "models.net:make", "models.net:"):
        policy.admit_code(name)
    for name in ("walker:walk", "models.net:other", "models:", "numpy:"):
        with pytest.raises(PolicyError, match=rf"the job's own code, {name}\*?, may not run here"):
            policy.admit_code(name)


def test_a_policy_of_nobody_is_refused():
    """Its name is misspelt, and whoever was meant would have none."""
    with pytest.raises(ConfigError, match=r"no party is named 'client-9'"):
        World(Community([None]), Inline(), policy={"client-9": SitePolicy()})


def test_bad_policies_are_refused():
    with pytest.raises(ConfigError, match="smallest_cohort=0"):
        SitePolicy(smallest_cohort=0)
    with pytest.raises(ConfigError, match="give stages"):
        SitePolicy(stages=["Clip"])
    with pytest.raises(ConfigError, match="give a policy"):
        World(Community([None]), Inline(), policy="strict")
