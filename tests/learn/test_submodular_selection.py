"""Selection of clients that stand for all."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import atoll
from atoll.algorithms import FedAvg
from atoll.core.algebra.rng import Rng
from atoll.core.errors import ConfigError, DataError
from atoll.core.requests.party import Roster
from atoll.learn import Training
from atoll.learn.selection.submodular import FacilityLocation, closeness, divergences
from atoll.selection import Candidates, Submodular
from tests.support.fedprof_toys import profile, round_seen, spoiled
from tests.support.learn_toys import flat


def candidates(n, number=1):
    return Candidates(Roster(n).all(), number, Rng.of(0).child(number))


def heard(rule, n, seed=0, examples=None, groups=None):
    rng = np.random.default_rng(seed)
    centres = [profile(rng) for _ in range(groups or n)]
    told = [centres[i % len(centres)] for i in range(n)]
    state = rule.heard(round_seen(n, 1, range(n), told, None, examples=examples), rule.init(Roster(n).all()))
    return state, told


@pytest.mark.parametrize("seed", range(5))
def test_the_choice_is_near_the_best_of_all_sets(seed):
    """At least 1 - 1/e of the optimum, by enumeration of all sets of 3 of 8; with everyone in the pool."""
    sizes = np.random.default_rng(seed).integers(1, 9, 8).astype(float)
    rule = Submodular(3, pool=1.0)
    state, told = heard(rule, 8, seed, sizes)
    found = rule.invite(candidates(8), 3, state)
    value = FacilityLocation(closeness(divergences([p["mean"] for p in told], [p["var"] for p in told])), sizes).value
    best = max(value(some) for some in itertools.combinations(range(8), 3))
    assert (1 - 1 / np.e) * best <= value(found) <= best + 1e-9


def test_one_of_each_kind():
    """Twelve clients with four kinds of profiles: four places are one of each kind."""
    rule = Submodular(4, pool=1.0)
    state, _ = heard(rule, 12, groups=4)
    assert sorted(rule.invite(candidates(12), 4, state) % 4) == [0, 1, 2, 3]


def test_a_pool_changes_from_round_to_round_and_holds_enough():
    rule = Submodular(3, pool=0.5)
    state, _ = heard(rule, 12)
    rounds = [tuple(rule.invite(candidates(12, number), 3, state).tolist()) for number in range(1, 9)]
    assert len(set(rounds)) > 1
    assert all(len(set(some)) == 3 for some in rounds)
    small = Submodular(3, pool=0.01)
    assert len(small.invite(candidates(12), 3, state)) == 3


def test_those_without_rows_or_not_there_are_not_chosen():
    rule = Submodular(4, pool=1.0)
    state, _ = heard(rule, 6, examples=[1, 0, 1, 1, 0, 1])
    assert sorted(rule.invite(candidates(6), 6, state).tolist()) == [0, 2, 3, 5]
    some = Candidates(Roster(6).all()[np.array([2, 3, 4])], 1, Rng.of(0))
    assert sorted(rule.invite(some, 6, state).tolist()) == [0, 1]
    with pytest.raises(DataError, match="no client sent a profile"):
        heard(rule, 2, examples=[0, 0])


def test_surveys_come_every_so_many_rounds_and_replies_carry_no_profile():
    rule = Submodular(3, every=3, pool=0.5)
    job = Training(model=atoll.models.mlp(64, 10, hidden=(8,)), algorithm=FedAvg(lr=0.2), selection=rule, rounds=7)
    whole = atoll.simulate(job, spoiled(), engine="inline")
    up = np.array([row["bytes_up"] for row in whole.metrics])
    assert (up > up.min()).tolist() == [True, False, False, True, False, False, True]
    batched = atoll.simulate(job, spoiled(), engine="batched")
    np.testing.assert_allclose(flat(batched.params), flat(whole.params), rtol=1e-4, atol=1e-5)


def test_it_resumes(tmp_path):
    job = Training(
        model=atoll.models.mlp(64, 10, hidden=(8,)), algorithm=FedAvg(lr=0.2), selection=Submodular(3), rounds=4
    )
    whole = atoll.simulate(job, spoiled(), engine="inline")
    atoll.simulate(job.replace(rounds=2), spoiled(), engine="inline", folder=tmp_path)
    resumed = atoll.simulate(job, spoiled(), engine="inline", folder=tmp_path, resume=True)
    np.testing.assert_array_equal(flat(resumed.params), flat(whole.params))


@pytest.mark.parametrize(("settings", "text"), [({"every": 0}, "every=0"), ({"pool": 0.0}, "pool=0.0")])
def test_settings_that_cannot_be(settings, text):
    with pytest.raises(ConfigError, match=text):
        Submodular(2, **settings)
