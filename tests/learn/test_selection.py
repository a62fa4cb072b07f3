"""Selection rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import atoll
from atoll.aggregation import EqualWeights
from atoll.algorithms import FedAvg, Scaffold
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, DataError, QuorumError
from atoll.core.requests.party import Roster
from atoll.learn import Training
from atoll.selection import Candidates, Everyone, Once, Schedule, SizeProportional, Uniform
from atoll.topology import Hierarchical
from tests.support.learn_toys import FEATURES, flat, islands


def candidates(n, number=1, sizes=None, seed=0):
    return Candidates(Roster(n).all(), number, Rng.of(seed).child(number), lambda: sizes)


def test_a_fraction_is_rounded_up_and_zero_means_one_client():
    """McMahan et al. 2017: m = max(C K, 1); Wu 2021 rounds up."""
    assert Uniform(0.0).cohort_size(100) == 1
    assert Uniform(0.1).cohort_size(100) == 10
    assert Uniform(0.1).cohort_size(101) == 11
    assert Uniform(1.0).cohort_size(7) == 7
    assert Uniform(0.07).cohort_size(100) == 7  # 0.07 * 100 = 7.000000000000001
    assert Uniform(1).cohort_size(7) == 1
    assert Uniform(50).cohort_size(7) == 7


@given(st.floats(0.0, 1.0), st.integers(1, 10_000))
def test_a_cohort_is_never_empty_nor_more_than_everyone(fraction, population):
    size = Uniform(fraction).cohort_size(population)
    assert 1 <= size <= population
    assert size in (1, math.ceil(fraction * population), math.ceil(fraction * population - 1e-9))


@given(st.integers(1, 60), st.integers(1, 60), st.integers(0, 3))
def test_uniform_draws_distinct_clients(population, count, number):
    drawn = Uniform(count).invite(candidates(population, number), count, None)
    assert len(set(drawn.tolist())) == len(drawn) == min(count, population)
    assert drawn.min() >= 0
    assert drawn.max() < population


def test_every_client_is_drawn_equally_often():
    """Chi-square over 3000 draws of 3 out of 12 with a fixed seed; 31.3 is the 0.1 % point at 11 degrees of freedom."""
    counts = np.zeros(12)
    for number in range(3000):
        counts[Uniform(3).invite(candidates(12, number), 3, None)] += 1
    assert ((counts - 750) ** 2 / 750).sum() < 31.3


def test_a_round_draws_the_same_clients_whatever_ran_before():
    first = Uniform(3).invite(candidates(50, 7), 3, None)
    Uniform(3).invite(candidates(50, 8), 3, None)
    np.testing.assert_array_equal(first, Uniform(3).invite(candidates(50, 7), 3, None))
    assert first.tolist() != Uniform(3).invite(candidates(50, 8), 3, None).tolist()


@pytest.mark.parametrize(
    ("count", "text"), [(0, "count=0 clients"), (-3, "count=-3 clients"), (1.5, "count=1.5 is not a fraction")]
)
def test_a_count_that_cannot_be(count, text):
    with pytest.raises(ConfigError, match=text):
        Uniform(count)


def test_everyone_in_order():
    assert Everyone().cohort_size(4) == 4
    assert Everyone().invite(candidates(4), 2, None).tolist() == [0, 1, 2, 3]


def test_a_schedule_repeats():
    plan = Schedule([[2], [0, 1]])
    rounds = [plan.invite(candidates(3, number), 9, None).tolist() for number in (1, 2, 3, 4)]
    assert rounds == [[2], [0, 1], [2], [0, 1]]
    assert plan.cohort_size(3) == 2


@pytest.mark.parametrize(("row", "named"), [([0, 5], 5), ([-1, 0], -1)])
def test_a_schedule_names_who_does_not_exist_beforehand(row, named):
    job = Training(model=atoll.models.linear(FEATURES, 3), algorithm=FedAvg(), selection=Schedule([[0], row]), rounds=1)
    with pytest.raises(ConfigError, match=f"round 2 of the schedule names client {named} of 3"):
        job.learner(islands([4, 4, 4]))


def test_a_schedule_names_clients_of_the_federation_whoever_is_there():
    there = Roster(6).all()[np.array([1, 4, 5])]
    plan = Schedule([[5, 0, 1], [0, 2]])
    first = plan.invite(Candidates(there, 1, Rng.of(0)), 3, None)
    assert there[first].positions.tolist() == [5, 1]
    with pytest.raises(QuorumError, match="none of the 2 clients that the schedule names is available"):
        plan.invite(Candidates(there, 2, Rng.of(0)), 3, None)


def scheduled(**more):
    model = atoll.models.linear(FEATURES, 3)
    job = Training(model=model, algorithm=FedAvg(lr=0.1), selection=Schedule([[0, 5], [4, 1]]), rounds=2, **more)
    return atoll.simulate(job, islands([6] * 6), engine="inline")


def test_edges_ask_their_own_of_those_whom_a_schedule_names():
    """With one client of each edge, and edges alike, it is the flat training."""
    star, tree = scheduled(), scheduled(topology=Hierarchical(groups=((0, 2, 4), (1, 3, 5))))
    assert tree.metrics.column("selected") == star.metrics.column("selected") == [2, 2]
    np.testing.assert_allclose(flat(tree.params), flat(star.params), rtol=1e-6)


def test_a_schedule_that_leaves_an_edge_without_clients_is_refused_beforehand():
    job = Training(
        model=atoll.models.linear(FEATURES, 3),
        algorithm=FedAvg(),
        selection=Schedule([[0, 5], [0, 1]]),
        topology=Hierarchical(groups=2),
    )
    with pytest.raises(CompositionError, match="round 2 of the schedule names no client of group 1"):
        job.learner(islands([6] * 6))


def test_an_empty_round_is_refused():
    with pytest.raises(ConfigError, match="the schedule has an empty round"):
        Schedule([[0], []])


@pytest.mark.parametrize("rounds", [0.5, 3, [0, 1], [[0.5]], [["client-1"]], None])
def test_what_is_no_schedule_is_refused(rounds):
    with pytest.raises(ConfigError, match=r"give a list of positions for every round, such as \[\[0, 1\], \[2\]\]"):
        Schedule(rounds)


def test_a_client_twice_in_a_round_is_refused():
    with pytest.raises(ConfigError, match="round 2 of the schedule names a client twice"):
        Schedule([[0], [1, 1]])


def test_draws_are_proportional_to_size():
    """Chi-square over 4000 draws with a fixed seed; 18.5 is the 0.1 % point at 4 degrees of freedom."""
    sizes = np.array([1, 2, 3, 10, 0, 4])
    counts = np.zeros(6)
    for number in range(1000):
        np.add.at(counts, SizeProportional(4).invite(candidates(6, number, sizes), 4, None), 1)
    expected = 4000 * sizes / sizes.sum()
    assert counts[4] == 0
    has = expected > 0
    assert ((counts - expected)[has] ** 2 / expected[has]).sum() < 18.5


def test_without_replacement_nobody_is_drawn_twice_and_empty_clients_never():
    drawn = SizeProportional(5, replace=False).invite(candidates(6, 1, np.array([1, 2, 3, 10, 0, 4])), 9, None)
    assert sorted(drawn.tolist()) == [0, 1, 2, 3, 5]
    assert not SizeProportional(5, replace=False).repeats
    assert SizeProportional(5).repeats


def test_sizes_that_are_missing():
    with pytest.raises(ConfigError, match="the clients' sizes are unknown"):
        SizeProportional(2).invite(candidates(3), 2, None)
    with pytest.raises(DataError, match="no client has an example"):
        SizeProportional(2).invite(candidates(3, 1, np.zeros(3)), 2, None)


def test_a_client_drawn_twice_counts_twice():
    """One round, two clients of which one is drawn twice: (2 w_a + w_b) / 3."""

    class Twice(Schedule):
        repeats = True

        def __post_init__(self):
            pass

    def model(plan):
        job = Training(
            model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=plan, aggregation=EqualWeights(), rounds=1
        )  # fmt: skip
        return atoll.simulate(job, islands([6, 12]), engine="inline").params["weight"]

    a, b = model(Schedule([[0]])), model(Schedule([[1]]))
    np.testing.assert_allclose(model(Twice([[0, 0, 1]])), (2 * a + b) / 3, rtol=1e-12)


def test_unknown_sizes_are_never_computed_unless_a_rule_asks():
    class Lazy:
        def __init__(self, data):
            self._data = data
            self.names, self.test = data.names, None

        def __len__(self):
            return len(self._data)

        def shard(self, i):
            return self._data.shard(i)

        @property
        def sizes(self):
            raise AssertionError("sizes were computed")

    job = Training(model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1), selection=Uniform(2), rounds=1)
    atoll.simulate(job, Lazy(islands([5, 6, 7])), engine="inline")
    with pytest.raises(AssertionError, match="sizes were computed"):
        atoll.simulate(job.replace(selection=SizeProportional(2)), Lazy(islands([5, 6, 7])), engine="inline")


def test_once_invites_every_client_once_and_none_again():
    rule, memory = Once(2, seed=4), Once(2).init(Roster(5).all())
    rounds = [rule.invite(candidates(5, number), 2, memory).tolist() for number in (1, 2, 3)]
    assert sorted(client for row in rounds for client in row) == [0, 1, 2, 3, 4]
    assert [len(row) for row in rounds] == [2, 2, 1]
    assert rule.turns(5, 3) == (1, 3)
    with pytest.raises(QuorumError, match=r"all 5 clients have had their turn.*at most 3 rounds"):
        rule.invite(candidates(5, 4), 2, memory)


def test_clients_that_never_return_keep_nothing():
    model = atoll.models.linear(FEATURES, 3)
    job = Training(model=model, algorithm=FedAvg(lr=0.1), selection=Once(2), rounds=3)
    assert atoll.simulate(job, islands([6] * 6), engine="inline").round == 3
    with pytest.raises(
        CompositionError, match=r"Once invites every client once and never again, and Scaffold has clients"
    ):
        atoll.simulate(job.replace(algorithm=Scaffold(lr=0.1)), islands([6] * 6), engine="inline")
