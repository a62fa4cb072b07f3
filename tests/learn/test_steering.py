"""Pace steering (Bonawitz et al. 2019, section 2.3): check-ins at the wanted rate, together where clients are few, apart where they are many."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.aggregation import KeepGlobal, Renormalised
from atoll.algorithms import VRLSGD, FedAvg, Scaffold, Upcycled
from atoll.core.errors import CompositionError, ConfigError, QuorumError
from atoll.learn import Training
from atoll.learn.pacing.steering import DAY, activity, return_times
from atoll.models.quadratic import Quadratic, quadratics
from atoll.pacing import PaceSteering, Synchronous
from atoll.selection import Everyone, Uniform
from atoll.stages import QSGD
from tests.support.async_toys import CLIENTS, DATA, DIM, FULL, job, survives
from tests.support.learn_toys import Fixed, flat

COSINE = tuple(0.5 - 0.4 * np.cos(2 * np.pi * (np.arange(24) + 0.5) / 24))


def check_ins(population, goal, period, periods, *, day=(), told=(), small=10.0, seed=0):
    """Clients that come at the time told if they are there, and are then told another: how many came in each period."""
    rng = np.random.default_rng(seed)
    rule = {"population": population, "goal": goal, "period": period, "small": small, "day": told}
    due, came = return_times(0.0, population, rng, **rule), np.zeros(periods)
    for at in range(periods):
        while (due <= (at + 1) * period).any():
            who = np.flatnonzero(due == due.min())
            came[at] += (rng.random(len(who)) < activity(due[who], day)).sum()
            due[who] = return_times(float(due[who[0]]), len(who), rng, **rule)
    return came


def test_a_large_population_checks_in_at_the_wanted_rate_from_the_first_period_on():
    """Poisson with mean 40 in each period: sigma of the mean of 100 periods is 0.63."""
    came = check_ins(1500, 40, 600.0, 100)
    assert came.mean() == pytest.approx(40, abs=2.5)
    assert came[:10].mean() == pytest.approx(40, abs=8)
    assert came.std() == pytest.approx(np.sqrt(40), rel=0.25)


@pytest.mark.slow
def test_a_day_is_levelled_out():
    """Between a tenth and nine tenths are there by the hour; steered, every hour has the goal; not steered, it follows the day."""
    steered, blind = (
        check_ins(1500, 40, 600.0, 144, day=COSINE, told=told).reshape(24, 6).mean(axis=1) for told in (COSINE, ())
    )
    assert abs(steered - 40).max() < 13  # five sigma of a mean of six Poisson numbers
    assert blind.max() > 4 * blind.min()
    assert np.corrcoef(blind, COSINE)[0, 1] > 0.95


def test_a_small_population_comes_together_and_enough_of_it():
    """At every multiple of the period Binomial(120, (20 + 2 sqrt 20) / 120), of mean 28.9 and sigma 4.7; in between nobody."""
    rng = np.random.default_rng(0)
    times = return_times(130.0, 120, rng, population=120, goal=20, period=60.0)
    assert (times % 60.0 == 0).all()
    assert times.min() > 130.0
    came = check_ins(120, 20, 60.0, 200)
    assert came.mean() == pytest.approx(20 + 2 * np.sqrt(20), abs=1.2)
    assert (came >= 20).mean() > 0.94


def test_whoever_is_needed_every_time_comes_every_time():
    assert (return_times(5.0, 8, np.random.default_rng(0), population=8, goal=7, period=10.0) == 10.0).all()
    assert (return_times(10.0, 8, np.random.default_rng(0), population=8, goal=7, period=10.0) == 20.0).all()


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.0, 3 * DAY), st.integers(1, 300), st.integers(1, 50), st.floats(1.0, 5000.0),
    st.lists(st.floats(0.05, 1.0), max_size=24), st.integers(0, 99),
)  # fmt: skip
def test_times_lie_ahead(now, population, goal, period, day, seed):
    goal = min(goal, population)
    times = return_times(now, 20, np.random.default_rng(seed), population=population, goal=goal, period=period, day=day)
    assert times.shape == (20,)
    assert np.isfinite(times).all()
    assert (times > now).all()


@given(st.floats(0.0, 3 * DAY), st.lists(st.floats(0.05, 1.0), min_size=1, max_size=24))
@settings(max_examples=40, deadline=None)
def test_the_delay_integrates_to_what_was_drawn(now, day):
    """Integral of 1/a over the delay, part of a day by part of a day, against the exponential of the same stream."""
    wanted = np.random.default_rng(3).exponential(size=4) * 100 * 600.0 / 5
    times = return_times(now, 4, np.random.default_rng(3), population=100, goal=5, period=600.0, small=0.0, day=day)
    for time, drawn in zip(times, wanted, strict=True):
        part = DAY / len(day)
        grid = np.array([now, *np.arange(now // part + 1, time / part) * part, time])
        total = (np.diff(grid) / activity((grid[1:] + grid[:-1]) / 2, day)).sum()
        assert total == pytest.approx(drawn, rel=1e-9)


# ---------------------------------------------------------------------- trainings

MANY = quadratics(60, DIM, seed=1)


class Diurnal(Fixed):
    """Everyone takes two seconds; client k is there when its own number says so, for the hour's share of the clients."""

    def available(self, parties, now):
        lots = (parties.positions * 0.6180339887 + np.floor(now / 3600.0) * 0.377) % 1.0
        return lots < activity(np.full(len(parties), now), COSINE)


def steer(pacing, *, rounds=30, data=MANY, devices=None, algorithm=None, **more):
    parts = {"model": Quadratic(DIM), "selection": Uniform(5), "rounds": rounds, **more}
    made = Training(algorithm=algorithm or FedAvg(**FULL), pacing=pacing, **parts)
    return atoll.simulate(made, data, engine="inline", devices=devices or Fixed([2.0] * 60))


def test_rounds_of_a_large_population_come_once_a_period_or_so():
    rows = steer(PaceSteering(goal=5, period=100.0, small=1.0), rounds=60).metrics
    rate = sum(rows.column("checked_in")) / rows[-1]["t_end"] * 100.0
    assert rate == pytest.approx(5.0, abs=1.0)
    assert np.mean(rows.column("gathering")) == pytest.approx(98.0, rel=0.3)
    assert set(rows.column("replied")) <= {1, 2, 3, 4, 5}


def test_a_small_population_meets_at_the_periods():
    rows = steer(PaceSteering(goal=5, period=100.0, small=12.0), rounds=20).metrics
    assert [row["t_end"] for row in rows] == [100.0 * k + 2.0 for k in range(1, 21)]
    assert min(rows.column("checked_in")) >= 5
    assert np.mean(rows.column("checked_in")) == pytest.approx(5 + 2 * np.sqrt(5), abs=1.5)
    assert all(row["turned_away"] == row["checked_in"] - row["selected"] for row in rows)
    assert sum(rows.column("turned_away")) > 0


def test_devices_that_sleep_are_missed_and_the_rate_holds():
    rows = steer(
        PaceSteering(goal=5, period=600.0, small=0.0, day=COSINE), rounds=144, devices=Diurnal([2.0] * 60)
    ).metrics
    rate = sum(rows.column("checked_in")) / rows[-1]["t_end"] * 600.0
    assert rate == pytest.approx(5.0, abs=1.0)
    assert sum(rows.column("missed")) > 0


def test_everyone_at_every_rendezvous_is_synchronous():
    steered = steer(
        PaceSteering(goal=CLIENTS, period=10.0), data=DATA, selection=Everyone(), devices=Fixed([2.0] * CLIENTS)
    )
    plain = steer(Synchronous(), data=DATA, selection=Everyone(), devices=Fixed([2.0] * CLIENTS))
    np.testing.assert_allclose(flat(steered.params), flat(plain.params), rtol=1e-12)
    assert [row["t_end"] for row in steered.metrics] == [10.0 * k + 2.0 for k in range(1, 31)]


def test_clients_that_are_never_there_end_the_training():
    class Never(Fixed):
        def available(self, parties, now):
            return np.zeros(len(parties), dtype=bool)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("atoll.learn.pacing.steering.MOST_LOOKS", 50)
        with pytest.raises(QuorumError, match="0 of 5 clients checked in"):
            steer(PaceSteering(period=100.0), devices=Never([2.0] * 60))


def test_a_round_of_the_server_alone_waits_for_nobody():
    rows = steer(PaceSteering(period=100.0), algorithm=Upcycled(base=FedAvg(**FULL), coefficient=0.3), rounds=6).metrics
    assert [row["t_end"] - row["t_start"] for row in rows][1::2] == [0.0] * 3


def test_operators_that_weigh_the_population_know_it():
    """When everybody checks in, nobody is left out, and KeepGlobal is the mean."""
    kept, plain = (
        steer(PaceSteering(period=100.0), selection=Everyone(), aggregation=way, rounds=2).params
        for way in (KeepGlobal(), Renormalised())
    )
    np.testing.assert_allclose(flat(kept), flat(plain), rtol=1e-12)


@pytest.mark.quick("10.0")
@pytest.mark.parametrize("small", [0.0, 10.0])
def test_a_killed_run_goes_on_where_it_was(tmp_path, small):
    made = job(
        PaceSteering(goal=2, period=30.0, small=small),
        Scaffold(**FULL),
        selection=Uniform(2),
        rounds=5,
        uplink=(QSGD(levels=8),),
    )
    survives(made, tmp_path, points=12)


@pytest.mark.parametrize("engine", ["batched", "processes"])
def test_engines_agree(engine):
    made = Training(
        model=Quadratic(DIM),
        algorithm=FedAvg(**FULL),
        pacing=PaceSteering(goal=8, period=50.0),
        selection=Uniform(5),
        rounds=4,
    )
    one, other = (
        atoll.simulate(made, MANY, engine=e, devices=Fixed([2.0] * 60), workers=2) for e in ("inline", engine)
    )
    np.testing.assert_allclose(flat(other.params), flat(one.params), rtol=1e-10)
    assert one.metrics.column("checked_in") == other.metrics.column("checked_in")


@pytest.mark.parametrize(
    ("pacing", "more", "text"),
    [
        (PaceSteering(goal=2), {"selection": Uniform(3)}, "goal=2 check-ins for a cohort of 3 out of 5"),
        (PaceSteering(goal=6), {"selection": Uniform(3)}, "goal=6 check-ins for a cohort of 3 out of 5"),
        (PaceSteering(), {"algorithm": VRLSGD(**FULL)}, "VRLSGD needs every client"),
    ],
)
def test_what_makes_no_sense_is_refused(pacing, more, text):
    with pytest.raises(CompositionError, match=text):
        job(pacing, **more).learner(DATA)


@pytest.mark.parametrize(
    ("setting", "text"),
    [
        ({"goal": 0}, "goal=0"),
        ({"period": 0.0}, "period=0.0"),
        ({"small": -1.0}, "small=-1.0"),
        ({"day": (0.5, 0.0)}, "day="),
    ],
)
def test_bad_settings(setting, text):
    with pytest.raises(ConfigError, match=text):
        PaceSteering(**setting)
