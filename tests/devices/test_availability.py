"""Who is there, and until when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.errors import ConfigError
from atoll.devices import Availability, Diurnal, Markov, Windows
from atoll.devices.traits import DrawnPopulation

N = 300
ALL = np.arange(N)
kinds = st.sampled_from([
    Diurnal(0.4, day=100.0, devices=0.3, seed=2),
    Markov(30.0, 70.0, step=4.0, seed=3),
    Windows([(p, 3.0 * k * p, 3.0 * k * p + 20) for p in range(0, N, 2) for k in (1, 9)], others=False),
])  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(kinds, st.floats(0, 1000))
def test_a_device_stays_until_it_leaves(kind, now):
    people = DrawnPopulation(N, 3)
    there = kind.there(people, ALL, now)
    leaves = kind.leaves(people, ALL, now, np.full(N, now + 500.0))
    assert (leaves[there] > now).all()
    for p in np.flatnonzero(there)[::37]:
        me = np.array([p])
        end = leaves[p]
        for moment in np.linspace(now, min(end, now + 500.0), 7)[:-1]:
            assert kind.there(people, me, float(moment))[0]
        if end < now + 400.0:
            assert not kind.there(people, me, float(np.nextafter(end, np.inf)))[0]


def test_days():
    day = Diurnal(0.25, day=1000.0, regions=1.0, devices=0.1, seed=4)
    people = DrawnPopulation(N, 5)
    over = np.array([day.there(people, ALL, t) for t in np.arange(0, 1000, 5.0)])
    assert over.mean(axis=0) == pytest.approx(np.full(N, 0.25), abs=0.006)
    assert np.array_equal(day.there(people, ALL, 123.0), day.there(people, ALL, 10_123.0))
    near = np.corrcoef(over[:, 0], over[:, 1])[0, 1]  # the same region
    assert near > 0.5
    assert Diurnal(1.0).leaves(people, ALL, 5.0, np.full(N, 1e9)).tolist() == [np.inf] * N
    assert not Diurnal(0.0).there(people, ALL, 5.0).any()


def test_a_markov_chain_is_stationary_and_stays_as_long_as_it_says():
    chain = Markov(on=40.0, off=120.0, step=1.0, seed=1)
    people, many = DrawnPopulation(1), np.arange(20_000)
    for now in (0.0, 1.0, 5000.0):
        assert chain.there(people, many, now).mean() == pytest.approx(0.25, abs=0.01)
    there = many[chain.there(people, many, 0.0)]
    stay = chain.leaves(people, there, 0.0, np.full(len(there), 1e4))
    assert stay.mean() == pytest.approx(40.0, rel=0.05)  # memoryless
    assert (chain.leaves(people, there, 0.0, np.full(len(there), 3.0)) >= 1.0).all()
    later = chain.there(people, many, 40.0)[there].mean()
    assert later == pytest.approx(0.25 + 0.75 * (1 - 1 / 40 - 1 / 120) ** 40, abs=0.02)


def test_windows_that_touch_are_one():
    kind = Windows([(1, 0.0, 5.0), (1, 5.0, 9.0), (1, 2.0, 3.0), (0, 20.0, 30.0)])
    people, who, far = DrawnPopulation(3), np.arange(3), np.full(3, 1e9)
    assert kind.there(people, who, 4.0).tolist() == [False, True, True]
    assert kind.leaves(people, who, 4.0, far)[1:].tolist() == [9.0, np.inf]
    assert kind.there(people, who, 9.0).tolist() == [False, False, True]
    assert kind.there(people, who, 20.0).tolist() == [True, False, True]


@settings(max_examples=20, deadline=None)
@given(
    st.builds(Diurnal, st.sampled_from([0.0, 0.3, 0.99, 1.0]), st.just(20.0), seed=st.integers(0, 9))
    | st.builds(Markov, st.just(9.0), st.sampled_from([12.0, 90.0, np.inf]), st.sampled_from([1.0, 0.7]), st.integers(0, 9)),
    st.floats(1.0, 60.0),
    st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5),
)  # fmt: skip
def test_what_is_recorded_says_the_same_to_the_bit(kind, until, shares):
    """At any moment, and at those at which somebody comes or goes, and just before."""
    people, who = DrawnPopulation(20, 3), np.array([7, 3, 19, 0, 3])
    known = kind.recorded(people, until)
    edges = np.concatenate(known.columns[1:])[:40:5]
    moments = [s * until for s in shares] + [float(m) for m in edges] + [float(np.nextafter(m, 0)) for m in edges]
    for now in (m for m in moments if 0 <= m < until):
        there = kind.there(people, who, now)
        assert np.array_equal(known.there(people, who, now), there)
        ends = np.array([40.0, 1.0, 20.0, 3.0, 0.5]) + now
        ours, its = (k.leaves(people, who, now, ends)[there] for k in (kind, known))
        assert np.array_equal(np.where(ours < ends[there], ours, np.inf), np.where(its < ends[there], its, np.inf))
    with pytest.raises(ConfigError, match=r"the windows are known up to .* s .*record them with a later until"):
        known.there(people, who, until)


def test_windows_are_recorded_as_they_are_and_a_rule_of_ones_own_says_what_it_needs():
    kind, people = Windows([(1, 0.0, 5.0)], until=9.0), DrawnPopulation(3)
    assert kind.recorded(people, 9.0) is kind
    with pytest.raises(ConfigError, match=r"until=10 s, but the windows are known up to 9 s.*ask for at most 9 s"):
        kind.recorded(people, 10.0)
    with pytest.raises(ConfigError, match=r"Availability cannot be recorded.*give it a method recorded"):
        Availability().recorded(people, 9.0)
    with pytest.raises(ConfigError, match="until=0 seconds"):
        Windows([], until=0)
    with pytest.raises(ConfigError, match="no device ever comes or goes"):
        Markov(np.inf, np.inf)
