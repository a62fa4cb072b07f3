"""FedCS, AFL, power of choice and Oort, set beside their formulas and small cases worked out by hand."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import ValidationError

import atoll
from atoll.aggregation import EqualWeights
from atoll.algorithms import FedAvg
from atoll.core.algebra.rng import Rng
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.core.requests.party import Roster
from atoll.data import Dataset, Islands
from atoll.devices import BatchRate, Fleet
from atoll.learn import Training
from atoll.learn.selection.base import draw, top
from atoll.pacing import Synchronous
from atoll.runs.parts import part_class
from atoll.selection import (
    AFL,
    CyclicGroups,
    DivFL,
    FedCS,
    FixedSample,
    Once,
    Oort,
    PoissonSample,
    PowerOfChoice,
    SizeProportional,
    TiFL,
    Uniform,
    WithLabels,
)
from tests.support.learn_toys import flat, islands
from tests.support.selection_toys import Devices, candidates, seen

SIZES = [5, 6, 7, 8, 9, 10]


# Draws


def test_draws_without_replacement_have_the_shares_of_successive_draws():
    """Shares of three places for rho = .4, .3, .15, .1, .05, enumerated. A simulation had given .300 .279 .201 .144 .076, which is right to 0.001."""
    rho = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    exact = np.zeros(5)
    for order in itertools.permutations(range(5), 3):
        chance, left = 1.0, 1.0
        for k in order:
            chance, left = chance * rho[k] / left, left - rho[k]
        exact[list(order)] += chance / 3
    np.testing.assert_allclose(exact, [0.2994, 0.2786, 0.2008, 0.1444, 0.0768], atol=5e-5)
    counts = np.zeros((2, 5))
    for number in range(6000):
        counts[0, draw(Rng.of(0).child(number), np.log(rho), 3)] += 1
        there = candidates(5, number, sizes=(rho * 100).round())
        counts[1, SizeProportional(3, replace=False).invite(there, 3, None)] += 1
    # The standard error of each share is at most sqrt(.25 * 6000) / 18000 = 0.0022.
    np.testing.assert_allclose(counts / 18000, np.stack([exact, exact]), atol=0.008)


def test_draws_with_replacement_are_proportional():
    rho = np.array([0.4, 0.3, 0.15, 0.1, 0.05])
    found = np.bincount(draw(Rng.of(3), np.log(rho), 20000, replace=True), minlength=5) / 20000
    np.testing.assert_allclose(found, rho, atol=0.015)


def test_scores_below_the_smallest_float_still_have_an_order():
    drawn = draw(Rng.of(0), np.array([-9e5, -5e5, -1e5, -np.inf]), 4)
    assert drawn.tolist() == [2, 1, 0]
    assert draw(Rng.of(0), np.full(3, -np.inf), 2).tolist() == []
    assert top(Rng.of(0), np.array([1.0, -np.inf, 3.0]), 3).tolist() == [2, 0]


# FedCS


@given(st.lists(st.floats(0.1, 20.0), min_size=1, max_size=20), st.floats(0.5, 15.0), st.integers(0, 5))
def test_fedcs_keeps_those_drawn_who_are_in_time(seconds, deadline, number):
    rule = FedCS(0.5, deadline=deadline)
    there = candidates(len(seconds), number, seconds=seconds)
    count = rule.cohort_size(len(seconds))
    chosen = rule.invite(there, count, None)
    drawn = atoll.Uniform(0.5).invite(candidates(len(seconds), number), count, None)
    assert chosen.tolist() == [k for k in drawn.tolist() if seconds[k] <= deadline]


def test_fedcs_admits_greedily_where_uploads_share_a_channel():
    """Forecasts 4, 5, 9, 30 s of which 3 s are the upload: ready at 1, 2, 6, 27. The channel is free at 4, 7, 10; the fourth would end at 30."""
    there = candidates(4, seconds=[4.0, 5.0, 9.0, 30.0])
    assert FedCS(4, deadline=10.0, upload=3.0).invite(there, 4, None).tolist() == [0, 1, 2]
    assert FedCS(4, deadline=9.9, upload=3.0).invite(there, 4, None).tolist() == [0, 1]
    assert FedCS(4, deadline=10.0, upload=3.0, overhead=0.5).invite(there, 4, None).tolist() == [0, 1]
    # With two channels: 4 and 5, then 9 on the first.
    assert FedCS(4, deadline=9.0, upload=3.0, slots=2).invite(there, 4, None).tolist() == [0, 1, 2]


@given(st.lists(st.floats(3.0, 40.0), min_size=1, max_size=9), st.floats(3.0, 60.0), st.sampled_from([3.0, 0.1, 2.7]))
@example([5.333423404992145, 8.6], 8.6, 3.0)  # the second is due at the deadline, which a sum of rounded waits misses
def test_the_greedy_choice_follows_the_papers_algorithm(seconds, deadline, upload):
    """Algorithm 3 of Nishio and Yonetani as it is printed but for the inequality, in exact numbers; the channel's time alone is rounded to a float."""
    exact = Fraction(upload)
    ready = [Fraction(s) - exact for s in seconds]
    left, chosen, theta = list(range(len(seconds))), [], Fraction(0)

    def longer(k):
        return Fraction(float(theta + exact + max(Fraction(0), ready[k] - theta)))

    while left:
        x = max(left, key=lambda k: (1 / (longer(k) - theta), -k))
        left.remove(x)
        if longer(x) <= deadline:
            theta, chosen = longer(x), [*chosen, x]
    rule = FedCS(len(seconds), deadline=deadline, upload=upload)
    assert rule._admit_clients(np.array(seconds), upload) == chosen


def test_fedcs_invites_fewer_and_a_round_without_anyone_fails():
    skip = Synchronous(on_failure="skip")
    job = Training(model=atoll.models.linear(4, 3), selection=FedCS(1.0, deadline=5.0), pacing=skip, rounds=2)
    fast = Devices([1.0, 9.0, 2.0, 9.0, 9.0, 3.0])
    rows = atoll.simulate(job, islands(SIZES), engine="inline", devices=fast).metrics
    assert [row["selected"] for row in rows] == [3, 3]
    one = job.replace(selection=FedCS(1, deadline=5.0), rounds=6)  # draws a slow one now and then
    lone = Devices([9.0, 9.0, 9.0, 1.0, 1.0, 1.0])
    rows = atoll.simulate(one, islands(SIZES), engine="inline", devices=lone).metrics
    assert {row["selected"] for row in rows} == {0, 1}
    assert all(row.get("failed") == (None if row["selected"] else "FedCS invites no client") for row in rows)
    with pytest.raises(QuorumError, match="FedCS invites no client"):
        atoll.simulate(one.replace(pacing=Synchronous()), islands(SIZES), engine="inline", devices=lone)
    with pytest.raises(ConfigError, match=r"no client can answer within deadline=5 s; the fastest, .*FedCS"):
        atoll.simulate(job, islands(SIZES), engine="inline", devices=Devices([9.0] * 6))


def test_fedcs_without_a_forecast():
    with pytest.raises(ConfigError, match="it is unknown how long clients take"):
        FedCS(3).invite(candidates(4), 3, None)
    with pytest.raises(ConfigError, match="it is unknown how long clients take"):
        atoll.simulate(
            Training(model=atoll.models.linear(4, 3), selection=FedCS(3), rounds=1), islands(SIZES), engine="inline"
        )


# Active federated learning


def test_valuations_are_the_root_of_the_rows_times_the_mean_loss():
    rule = AFL(2)
    state = rule.accept(seen(4, 1, [1, 3], [2.0, 0.5], examples=[9, 16]), rule.init(Roster(4).all()))
    np.testing.assert_array_equal(state["value"], [np.nan, 6.0, np.nan, 2.0])


def test_afl_draws_by_the_softmax_of_its_algorithm():
    """Valuations 0, 1, 2, 3; half set aside: the others have p = 1 / (1 + e^-1) and its rest, and nobody else is drawn."""
    rule = AFL(1, alpha1=0.5, alpha2=1.0, alpha3=0.0)
    state = {"who": np.arange(4), "value": np.array([0.0, 1.0, 2.0, 3.0])}
    counts = np.zeros(4)
    for number in range(4000):
        counts[rule.invite(candidates(4, number), 1, state)] += 1
    assert counts[:2].tolist() == [0, 0]
    assert counts[3] / 4000 == pytest.approx(1 / (1 + math.exp(-1)), abs=0.03)  # 4 standard errors


def test_afl_draws_the_last_places_from_everybody():
    rule = AFL(4, alpha1=0.5, alpha2=50.0, alpha3=0.5)
    state = {"who": np.arange(10), "value": np.arange(10.0)}
    counts = np.zeros(10)
    for number in range(2000):
        chosen = rule.invite(candidates(10, number), 4, state)
        assert len(set(chosen.tolist())) == 4
        assert {9, 8} <= set(chosen.tolist())
        counts[chosen] += 1
    np.testing.assert_allclose(counts[:8] / 2000, np.full(8, 2 / 8), atol=0.05)


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 4))
def test_afl_fills_its_places_before_anything_is_known(population, count, number):
    rule = AFL(count)
    chosen = rule.invite(candidates(population, number), min(count, population), rule.init(Roster(population).all()))
    assert len(set(chosen.tolist())) == len(chosen) == min(count, population)


def test_afl_may_ask_everyone_first():
    job = Training(model=atoll.models.linear(4, 3), selection=AFL(2, first=True), rounds=2)
    rows = atoll.simulate(job, islands(SIZES), engine="inline").metrics
    assert rows[0]["bytes_down"] > 2 * rows[1]["bytes_down"]


# Power of choice


def test_power_of_choice_takes_the_worst_of_those_surveyed():
    rule = PowerOfChoice(2, d=4)
    there = candidates(8, sizes=np.ones(8))
    asked = rule.survey(there, 2, None)
    assert len(set(asked.tolist())) == 4
    state = rule.heard(seen(8, 1, np.sort(asked), [0.1, 0.9, 0.3, 0.7]), rule.init(Roster(8).all()))
    assert rule.invite(there, 2, state).tolist() == np.sort(asked)[[1, 3]].tolist()


@given(st.integers(0, 50))
def test_as_many_candidates_as_places_is_sampling_by_size(number):
    sizes = np.array([1.0, 2, 3, 4, 0, 5])
    rule = PowerOfChoice(3, d=3)
    there = candidates(6, number, sizes=sizes)
    asked = rule.survey(there, 3, None)
    assert 4 not in asked
    state = rule.heard(seen(6, number, np.sort(asked), [1.0, 2.0, 3.0]), rule.init(Roster(6).all()))
    assert sorted(rule.invite(there, 3, state).tolist()) == sorted(asked.tolist())


def test_who_did_not_answer_the_survey_is_not_invited():
    rule = PowerOfChoice(2, d=4)
    state = rule.heard(seen(8, 1, [5], [0.2]), rule.init(Roster(8).all()))
    assert rule.invite(candidates(8, sizes=np.ones(8)), 2, state).tolist() == [5]


def test_remembered_losses_bring_new_clients_first():
    rule = PowerOfChoice(2, d=4, variant="rpow")
    there = candidates(4, sizes=np.ones(4))
    assert rule.survey(there, 2, None) is None
    state = rule.accept(seen(4, 1, [0, 2], [5.0, 7.0]), rule.init(Roster(4).all()))
    assert sorted(rule.invite(there, 2, state).tolist()) == [1, 3]
    state = rule.accept(seen(4, 2, [1, 3], [6.0, 1.0]), state)
    assert rule.invite(there, 2, state).tolist() == [2, 1]


def test_a_mini_batch_of_everybody_is_everybody_and_a_smaller_one_is_cheaper():
    """``cpow`` with as many rows as there are is ``pow`` to the bit; with two rows a survey of six clients with up to ten takes less."""
    job = Training(model=atoll.models.linear(4, 3), algorithm=FedAvg(lr=0.1, batch_size=2), rounds=3)
    rules = [PowerOfChoice(2, d=6), *(PowerOfChoice(2, d=6, variant="cpow", rows=rows) for rows in (10, 2))]
    runs = [
        atoll.simulate(job.replace(selection=rule), islands(SIZES), devices=Fleet(compute=BatchRate(1.0)), seed=2)
        for rule in rules
    ]
    whole, same, few = ([(row["t_end"] - row["t_start"]) for row in run.metrics] for run in runs)
    assert same == pytest.approx(whole, rel=1e-3)  # the message says how many rows, which takes its bytes
    np.testing.assert_array_equal(flat(runs[0].params), flat(runs[1].params))
    assert max(few) < min(whole)


def test_power_of_choice_needs_sizes():
    with pytest.raises(ConfigError, match="the clients' sizes are unknown"):
        PowerOfChoice(2).survey(candidates(30), 2, None)


# Oort


def oort_state(utility, last, seconds=None, replies=None, quantile=1.0):
    n = len(utility)
    return {
        "who": np.arange(n),
        "utility": np.asarray(utility, dtype=float),
        "last": np.asarray(last),
        "seconds": np.ones(n) if seconds is None else np.asarray(seconds, dtype=float),
        "replies": np.ones(n, dtype=int) if replies is None else np.asarray(replies),
        "gathered": np.zeros(0),
        "quantile": quantile,
    }


def test_oort_utilities_by_hand():
    """Round 8, sqrt(0.1 ln 8) = 0.456009. Utilities 2, 4, 6 scale to 0, 0.5, 1; the third took 4 s where 2 s are preferred: times (2/4)^2."""
    state = oort_state([2, 4, 6, 0], [1, 4, 1, 0], seconds=[1, 2, 4, 0], quantile=0.5)
    found = Oort(2, clip=1.0).utilities(8, state)
    np.testing.assert_allclose(found[:3], [0.456009, 0.5 + 0.2280045, 1.456009 / 4], atol=1e-6)
    assert found[3] == -np.inf
    np.testing.assert_allclose(Oort(2, clip=1.0, alpha=0.0).utilities(8, state)[2], 1.456009, atol=1e-6)


def test_oort_cuts_off_utilities_above_a_quantile():
    """Of 1, 2, 3, 1000 the 0.7 quantile (lower) is 3: the scale ends there, and the outlier is as good as the third."""
    found = Oort(2, clip=0.7).utilities(1, oort_state([1, 2, 3, 1000], [1, 1, 1, 1]))
    np.testing.assert_allclose(found, [0.0, 0.5, 1.0, 1.0])


def test_statistical_utility_is_rows_times_mean_loss():
    rule = Oort(2)
    state = rule.accept(seen(4, 3, [1, 3], [2.0, 0.5], [10, 20], [1.5, 2.5]), rule.init(Roster(4).all()))
    assert state["utility"].tolist() == [0, 20, 0, 10]
    assert state["seconds"].tolist() == [0, 1.5, 0, 2.5]
    assert state["last"].tolist() == [0, 3, 0, 3]
    assert state["replies"].tolist() == [0, 1, 0, 1]
    assert state["gathered"].tolist() == [30]


def test_oort_explores_fast_clients_and_less_and_less():
    rule = Oort(10, epsilon=0.5, decay=0.5, least=0.1)
    state = oort_state(np.ones(40), [1] * 20 + [0] * 20)
    explored = [
        int((rule.invite(candidates(40, number), 10, state) >= 20).sum()) for number in (1, 2, 3, 4, 20)
    ]  # epsilon = 0.5, 0.25, 0.125, 0.1, 0.1: broken places are rounded at random
    assert explored[0] == 5
    assert explored[1] in (2, 3)
    assert explored[2] in (1, 2)
    assert explored[3:] == [1, 1]
    counts = np.zeros(40)
    speeds = np.where(np.arange(40) % 2, 1.0, 9.0)
    for number in range(1, 1001):
        counts[Oort(1, epsilon=1.0, decay=1.0).invite(candidates(40, number, seconds=speeds), 1, state)] += 1
    assert counts[20::2].sum() / 1000 == pytest.approx(0.1, abs=0.04)  # one of 1 + 9


def test_oort_draws_around_the_cut_off():
    """Three places; utilities 1, 0.9, 0.8, 0.77, 0.2 after scaling: 0.95 * 0.8 = 0.76 admits four."""
    rule = Oort(3, epsilon=0.0, least=0.0, clip=1.0)
    state = oort_state([10, 9, 8, 7.7, 2, 0], [1] * 6)
    drawn = np.zeros(6)
    for number in range(300):
        state["last"][:] = 10**9  # the term of age vanishes
        drawn[rule.invite(candidates(6, number + 1), 3, state)] += 1
    assert drawn[4:].tolist() == [0, 0]
    assert (drawn[:4] > 150).all()
    assert drawn.sum() == 900


def test_oort_leaves_out_who_replied_most_but_not_too_many():
    state = oort_state(np.ones(10), [1] * 10, replies=[9, 1, 8, 7, 6, 1, 1, 1, 1, 1])
    rule = Oort(10, most=5, barred=0.3)
    assert sorted(rule.invite(candidates(10), 10, state).tolist()) == [1, 4, 5, 6, 7, 8, 9]
    assert sorted(Oort(10).invite(candidates(10), 10, state).tolist()) == list(range(10))


def test_the_pacer_allows_longer_rounds_when_less_is_gathered():
    rule = Oort(1, window=2, preferred=0.3, pace=0.1)
    state, quantiles = rule.init(Roster(2).all()), []
    for number, loss in enumerate([4.0, 4.0, 5.0, 5.0, 1.0, 1.0, 0.5], 1):
        state = rule.accept(seen(2, number, [0], [loss]), state)
        quantiles.append(round(state["quantile"], 3))
    # Windows: (8, 10) no; (9, 6) after round 5 yes, which starts anew with that window; (6, 1.5) after round 7 yes.
    assert quantiles == [0.3, 0.3, 0.3, 0.3, 0.4, 0.4, 0.5]


@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 40), st.integers(0, 30))
def test_oort_invites_distinct_clients_and_fills_its_places(population, count, number, tried):
    tried = min(tried, population)
    state = oort_state(np.arange(population), [1] * tried + [0] * (population - tried))
    chosen = Oort(count).invite(candidates(population, number), count, state)
    assert len(set(chosen.tolist())) == len(chosen) == min(count, population)


# All of them


RULES = [
    AFL(2),
    AFL(2, first=True),
    PowerOfChoice(2, d=4),
    PowerOfChoice(2, d=4, variant="rpow"),
    PowerOfChoice(2, d=4, variant="cpow", rows=3),
    Oort(2, window=1),
    FedCS(3, deadline=3.5),
    FedCS(4, deadline=6.5, upload=0.5),
]


@pytest.mark.parametrize("rule", RULES, ids=repr)
def test_the_same_on_engines_and_after_a_resume(rule, tmp_path):
    job = Training(
        model=atoll.models.linear(4, 3),
        algorithm=FedAvg(lr=0.1),
        selection=rule,
        aggregation=EqualWeights(),
        rounds=6,
        checkpoint_every=2,
    )
    devices = Devices([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
    data = islands(SIZES)
    whole = atoll.simulate(job, data, engine="inline", devices=devices)
    batched = atoll.simulate(job, data, engine="batched", devices=devices)
    np.testing.assert_allclose(flat(batched.params), flat(whole.params), rtol=1e-9, atol=1e-12)
    atoll.simulate(job.replace(rounds=4), data, engine="inline", devices=devices, folder=tmp_path)
    resumed = atoll.simulate(job, data, engine="inline", devices=devices, folder=tmp_path, resume=True)
    np.testing.assert_array_equal(flat(resumed.params), flat(whole.params))
    assert [row["selected"] for row in resumed.metrics] == [row["selected"] for row in whole.metrics]


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: FedCS(3, deadline=0.0), "deadline=0.0"),
        (lambda: FedCS(3, slots=0), "slots=0"),
        (lambda: FedCS(3, upload=-1.0), "upload=-1.0"),
        (lambda: FedCS(3, deadline=2.0, overhead=2.0), "overhead=2.0 of deadline=2.0 s"),
        (lambda: AFL(alpha1=1.0), "alpha1=1.0"),
        (lambda: AFL(alpha2=-1.0), "alpha2=-1.0"),
        (lambda: AFL(alpha3=1.5), "alpha3=1.5"),
        (lambda: PowerOfChoice(10, d=5), "d=5 candidates for count=10"),
        (lambda: PowerOfChoice(variant="dpow"), "variant='dpow' is not known"),
        (lambda: PowerOfChoice(variant="cpow", rows=0), "rows=0"),
        (lambda: Oort(epsilon=2.0), "epsilon=2.0"),
        (lambda: Oort(window=0), "window=0"),
        (lambda: Oort(alpha=-1.0), "alpha=-1.0"),
        (lambda: Oort(most=0), "most=0"),
    ],
)
def test_settings_that_cannot_be(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_rules_that_look_at_losses_are_refused_beside_a_mechanism():
    noisy = atoll.algorithms.OutputPerturbation(base=FedAvg(batch_size=None), tau=1.0, sigma=1.0)
    with pytest.raises(CompositionError, match="would leave the clients without noise"):
        Training(model=atoll.models.linear(4, 3), algorithm=noisy, selection=AFL(2))


@pytest.mark.parametrize(
    "said",
    [
        {"name": "FedCS", "count": 0.3, "deadline": 20.0, "upload": 2.0, "slots": 2},
        {"name": "Oort", "count": 5, "alpha": 1.0, "most": 10},
        {"name": "AFL", "count": 5, "alpha2": 0.1, "first": True},
        {"name": "PowerOfChoice", "count": 2, "d": 6, "variant": "cpow", "rows": 8},
        {"name": "FedProf", "count": 5, "alpha": [1.0, 2.0], "explore": 0.1, "layer": "0"},
        {"name": "Submodular", "count": 5, "every": 4},
        {"name": "DivFL", "count": 5, "size": 32},
    ],
    ids=lambda said: said["name"],
)
def test_every_rule_can_be_configured(said):
    made = part_class("selection").model_validate(said).build("selection")
    assert type(made).__name__ == said["name"]
    for name, value in said.items():
        if name != "name":
            assert getattr(made, name) == (tuple(value) if isinstance(value, list) else value)
    with pytest.raises(ValidationError, match="deadlin"):
        part_class("selection").model_validate({"name": "FedCS", "deadlin": 3})


# The order of the list of clients


BY_NAME = {
    "uniform": Uniform(2),
    "poisson": PoissonSample(3),
    "fixed": FixedSample(2),
    "proportional": SizeProportional(2),
    "afl": AFL(2),
    "oort": Oort(2, most=1),
    "power of choice": PowerOfChoice(2, 4),
    "cyclic": CyclicGroups(2),
    "once": Once(2),
    "tifl": TiFL(2, tiers=3),
    "divfl": DivFL(2),
    "with labels": WithLabels(Uniform(2), range(6), 1),
}


@pytest.mark.parametrize("rule", BY_NAME)
def test_the_order_of_the_list_of_clients_does_not_change_who_is_asked(rule: str) -> None:
    r, rows = np.random.default_rng(1), {}
    for name in ("north", "site-10", "east", "site-2", "west", "alpha"):
        x = r.normal(size=(int(r.integers(5, 12)), 2))
        rows[name] = Dataset({"x": x, "y": (x[:, 0] > 0).astype(np.int64)})
    job = Training(
        model=atoll.models.linear(2, 2), algorithm=FedAvg(lr=0.1, batch_size=4), selection=BY_NAME[rule], rounds=3
    )
    told = []
    for order in (list(rows), sorted(rows), list(rows)[::-1]):
        data = Islands.from_datasets({name: rows[name] for name in order})
        assert list(data.names) == order
        found = atoll.simulate(job, data, engine="inline", progress=False, secret_seed=3)
        asked = dict(zip(found.devices.names, found.devices.asked.tolist(), strict=True))
        told.append((asked, found.params["weight"]))
    for asked, weight in told[1:]:
        assert asked == told[0][0]
        np.testing.assert_allclose(weight, told[0][1], rtol=1e-5, atol=1e-7)
