"""What every fleet keeps: outcomes are functions of seed, turn and device, and of nothing else."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from atoll.core.requests.party import Parties, Roster
from atoll.core.requests.results import REASONS
from atoll.core.requests.task import Workload
from atoll.devices import (
    BatchRate,
    Battery,
    ByRegion,
    Cycles,
    DeviceMemory,
    Diurnal,
    Equal,
    Exponential,
    Fleet,
    GeneratedTrace,
    GivenTraits,
    Markov,
    Normal,
    Power,
    Shannon,
    Throughput,
    Uniform,
    mec,
    planned,
    safa,
)
from atoll.devices.traits import DrawnPopulation, uniforms

N = 40
COLUMNS = ("seconds", "done", "fraction", "energy", "reason")

fleets = st.builds(
    lambda crash, point, seed, lost, availability, regions: Fleet(
        Cycles(Normal(1e9, 3e8, low=1e8)),
        Shannon(Uniform(0.5e6, 1e6)),
        GeneratedTrace(crash, point, outage=0.1, seed=seed),
        availability,
        latency=0.05,
        notice=2.0,
        model_bytes=1e6,
        model_over=100,
        power=Power(lost=lost),
        battery=Battery(Uniform(5.0, 30.0)),
        memory=DeviceMemory(Uniform(2e6, 2e7)),
        regions=regions,
        seed=seed,
    ),
    st.floats(0, 1) | st.just(Normal(0.3, 0.3)),
    st.sampled_from(["during", "before", "uniform", 0.4]),
    st.integers(0, 5),
    st.sampled_from(["share", "parts", "full"]),
    st.sampled_from([None, Diurnal(0.5, day=100.0), Markov(60.0, 40.0, step=5.0)]),
    st.integers(1, 4),
)


def some(positions):
    return Parties(Roster(N), np.array(positions, dtype=np.int64))


def request(positions, turn=1, now=0.0, lacking=None):
    """A request whose work depends on the position, like a population's sizes do."""
    rows = np.array([50.0 + 7 * p for p in positions])
    work = Workload(rows, rows / 10, np.ones(len(rows)))
    return replace(planned(rows, down=5000, turn=turn, now=now), work=lambda: work, lacking=lacking)


@settings(max_examples=60, deadline=None)
@given(fleets, st.permutations(range(N)), st.integers(1, N), st.integers(0, 9), st.floats(0, 1e3))
def test_outcomes_depend_on_nobody_else_and_on_no_order(fleet, order, count, turn, now):
    everyone, subset = fleet.plan(some(range(N)), request(range(N), turn, now)), order[:count]
    again = replace(fleet)  # with nothing drawn yet
    part = again.plan(some(subset), request(subset, turn, now))
    assert np.array_equal(
        fleet.forecast(some(range(N)), request(range(N)))[subset], fleet.forecast(some(subset), request(subset))
    )
    assert np.array_equal(fleet.available(some(range(N)), now)[subset], fleet.available(some(subset), now))
    for name in COLUMNS:
        assert np.array_equal(getattr(everyone, name)[subset], getattr(part, name)), name


@settings(max_examples=60, deadline=None)
@given(fleets, st.integers(0, 9), st.floats(0, 1e3))
def test_outcomes_make_sense(fleet, turn, now):
    spent = np.linspace(0, 20, N)
    out = fleet.plan(some(range(N)), request(range(N), turn, now, lambda: spent))
    whole = fleet.forecast(some(range(N)), request(range(N), turn, now))
    assert np.array_equal(out.done, out.reason == 0)
    assert np.array_equal(out.seconds[out.done], whole[out.done])
    assert (out.fraction[out.done] == 1.0).all()
    assert (out.seconds >= 0).all()
    assert (out.seconds[~out.done] <= whole[~out.done] + fleet.notice).all()
    assert ((out.fraction >= 0) & (out.fraction <= 1)).all()
    unable = out.reason >= REASONS.index("unavailable")
    assert (out.fraction[unable] == 0).all()
    assert (out.energy[unable] == 0).all()
    crashed, _ = fleet.trace.at(turn, fleet._population(N), np.arange(N))
    assert np.array_equal(crashed & ~unable & (out.reason != REASONS.index("left")), out.reason == 1)
    full = replace(fleet, trace=GeneratedTrace(), availability=None, battery=None, memory=None)
    assert (out.energy <= full.plan(some(range(N)), request(range(N))).energy + 1e-9).all()


@given(st.sampled_from(["during", "before", "uniform", 0.25]))
def test_crash_points(point):
    plain = Fleet(BatchRate(2.0), Throughput(1000.0, 500.0), GeneratedTrace(1.0, point), notice=3.0)
    out = plain.plan(some(range(N)), planned(np.full(N, 10.0), epochs=8, down=2000, turn=1))  # 2 s, 4 s, 4 s
    moment = out.seconds - 3.0
    assert not out.done.any()
    assert np.allclose(out.fraction, np.clip((moment - 2) / 4, 0, 1))
    if point == "before":
        assert (moment == 2).all()
    elif point == 0.25:
        assert (moment == 3).all()
    elif point == "during":
        assert (moment.min(), moment.max()) == pytest.approx((2, 6), abs=0.5)
    else:
        assert (moment.min(), moment.max()) == pytest.approx((0, 10), abs=1)
        assert {0.0, 1.0} < set(out.fraction.tolist())


def test_what_a_crash_costs():
    fleets = {
        lost: Fleet(Cycles(1e9, 1e6, 1e3), Throughput(1000.0), GeneratedTrace(1.0, 0.25), power=Power(1.0, 2.0, lost))
        for lost in ("share", "parts", "full")
    }
    plan = planned(4, down=3000, up=5000)  # 3 s, 4 s at 1 GHz, 5 s
    joules = {lost: fleet.plan(some([0]), plan).energy[0] for lost, fleet in fleets.items()}
    assert joules == {"share": 4.0, "parts": 3.0 + 2.0, "full": 16.0}


def test_egress_delays_everyone_by_all_copies():
    fleet = Fleet(BatchRate(1.0), Throughput(1e3), egress=1e4)
    alone = fleet.plan(some([3]), planned(1, down=1000)).seconds
    mail = np.array([1000, 0, 3000])
    three = fleet.plan(some([3, 4, 5]), planned([1, 1, 1], down=mail, up=500)).seconds
    assert alone == pytest.approx([0.1 + 1 + 1 + 1])
    assert three == pytest.approx([0.4 + 1 + 1 + 0.5, 0.4 + 0 + 1 + 0.5, 0.4 + 3 + 1 + 0.5])
    assert fleet.forecast(some([3]), planned(1, down=1000)) == pytest.approx([3.0])


def test_a_reply_of_unknown_size_is_taken_to_be_the_largest_download():
    fleet = Fleet(BatchRate(1e9), Throughput(100.0))
    assert fleet.forecast(some([0, 1]), planned([1, 1], down=np.array([0, 700]))) == pytest.approx([7.0, 14.0])


def test_a_size_by_decree_counts_for_models_only():
    fleet = Fleet(BatchRate(1e9), Throughput(1.0), model_bytes=1e3, model_over=10)
    assert fleet.charge_bytes([0, 10, 11, 5000]).tolist() == [0, 10, 1000, 1000]
    assert fleet.forecast(some([0]), planned(1, down=400, up=9)) == pytest.approx([1009.0])


def test_servers_answer_at_once_and_never_fail():
    roster = Roster(3, others={"edge-0": "edge"})
    fleet = replace(mec("aerofoil", 1.0), regions=1, egress=1e6, memory=DeviceMemory(1e8))
    parties = Parties(roster, np.array([3, 1]))
    out = fleet.plan(parties, planned([9, 9], down=5))
    assert out.done.tolist() == [True, False]
    assert out.seconds[0] == 5.0  # the copy of the device leaves by the same door
    assert (out.energy[0], out.fraction[0], out.reason[0]) == (0.0, 1.0, 0)
    assert replace(fleet, availability=Diurnal(0.0)).available(parties, 0.0).tolist() == [True, False]


def test_an_empty_battery_declines_and_recharges():
    fleet = Fleet(
        Cycles(1e9, 1e6, 1e3), Throughput(1e9), power=Power(0.0, 1.0), battery=Battery(10.0, watts=0.5, reserve=0.2)
    )
    lacks = np.array([0.0, 4.0, 5.0, 9.0])

    def asked(now):
        lacking = np.maximum(0.0, lacks - fleet.recharge * now)
        return fleet.plan(some(range(4)), replace(planned([4.0] * 4, now=now), lacking=lambda: lacking)).reason.tolist()

    assert asked(0.0) == [0, 0, 5, 5]  # 4 J are needed, and 2 J kept
    assert asked(2.0) == [0, 0, 0, 5]
    assert asked(10.0) == [0, 0, 0, 0]


def test_a_model_that_does_not_fit_is_never_done():
    fleet = Fleet(memory=DeviceMemory(GivenTraits([99.0, 100.0, 1e6]), copies=2.0))
    out = fleet.plan(Roster(3).all(), planned([1.0] * 3, down=50))
    assert out.reason.tolist() == [REASONS.index("too little memory"), 0, 0]


def test_a_device_that_leaves_stops_there():
    from atoll.devices import Windows

    there = Windows([(0, 0.0, 5.0), (1, 1.0, 50.0), (2, 0.0, 4.0), (2, 4.0, 9.0)])
    fleet = Fleet(BatchRate(1.0), Throughput(100.0), availability=there)
    out = fleet.plan(Roster(4).all(), planned([1.0] * 4, epochs=6, down=100))  # 1 s, 6 s, 1 s
    assert [REASONS[r] for r in out.reason] == ["left", "unavailable", "answered", "answered"]
    assert out.seconds.tolist() == [5.0, 0.0, 8.0, 8.0]
    assert out.fraction.tolist() == pytest.approx([4 / 6, 0, 1, 1])


# ---------------------------------------------------------------------- draws


@pytest.mark.parametrize(
    ("trait", "mean", "std", "low", "high"),
    [
        (Equal(3.0), 3.0, 0.0, 3.0, 3.0),
        (Uniform(2.0, 4.0), 3.0, 2 / np.sqrt(12), 2.0, 4.0),
        (Normal(5.0, 2.0), 5.0, 2.0, -np.inf, np.inf),
        (Exponential(2.0), 2.0, 2.0, 0.0, np.inf),
        (Exponential(2.0, 1.5), 3.5, 2.0, 1.5, np.inf),
    ],
)
def test_moments_of_traits(trait, mean, std, low, high):
    drawn = trait.draw(77, DrawnPopulation(100_000), np.arange(100_000))
    assert drawn.mean() == pytest.approx(mean, abs=0.03)
    assert drawn.std() == pytest.approx(std, abs=0.03)
    assert low <= drawn.min()
    assert drawn.max() <= high
    assert trait.support[0] <= drawn.min()


def test_an_exponential_with_a_minimum_is_one_drawn_again_until_it_is_large_enough():
    rng = np.random.default_rng(0)
    again = rng.exponential(1.0, 400_000)
    again = again[again >= 0.7]
    drawn = Exponential(1.0, 0.7).draw(3, DrawnPopulation(len(again)), np.arange(len(again)))
    at = [0.1, 0.5, 0.9, 0.99]
    assert np.quantile(drawn, at) == pytest.approx(np.quantile(again, at), rel=0.02)


def test_a_clipped_normal_is_clipped_and_not_drawn_again():
    drawn = Normal(1.0, 0.5, low=0.5, high=1.25).draw(1, DrawnPopulation(50_000), np.arange(50_000))
    assert (drawn == 0.5).mean() == pytest.approx(0.1587, abs=0.01)
    assert (drawn == 1.25).mean() == pytest.approx(0.3085, abs=0.01)


def test_draws_of_neighbours_and_turns_are_independent():
    every = np.array([uniforms(key, np.arange(20_000)) for key in (0, 1, 2, 3, 2**63)])
    assert np.abs(np.corrcoef(every) - np.eye(5)).max() < 0.03
    assert abs(np.corrcoef(every[0, :-1], every[0, 1:])[0, 1]) < 0.03
    assert np.histogram(every[0], 10, (0, 1))[0] == pytest.approx(np.full(10, 2000), rel=0.1)


def test_regions_have_traits_and_outages_of_their_own():
    names = ["north"] * 2500 + ["south"] * 1500
    crash = ByRegion({"north": Normal(0.43, 0.15), "south": 0.0})
    fleet = Fleet(
        BatchRate(ByRegion({"north": 2.0, "south": Uniform(4.0, 5.0)})), trace=GeneratedTrace(crash), regions=names
    )
    everyone = Roster(4000).all()
    speed = fleet.trait("speed", everyone)
    assert (speed[:2500] == 2.0).all()
    assert 4.0 <= speed[2500:].min() < speed[2500:].max() <= 5.0
    crashed = fleet.record(20, 4000).crashed
    assert crashed[:, :2500].mean() == pytest.approx(0.43, abs=0.01)
    assert not crashed[:, 2500:].any()
    assert fleet.region(everyone[2499:2501]) == ["north", "south"]
    out = replace(fleet, trace=GeneratedTrace(outage=0.3, seed=1)).record(400, 4000).crashed
    assert (out[:, :2500].all(axis=1) | ~out[:, :2500].any(axis=1)).all()  # all of a region or none
    assert out.mean(axis=0) == pytest.approx(np.full(4000, 0.3), abs=0.08)
    assert abs(np.corrcoef(out[:, 0], out[:, -1])[0, 1]) < 0.15


def test_presets_repeat_themselves():
    everyone, plan = Roster(20).all(), planned([100.0] * 20, batch=10, down=5, turn=3)
    for make in (safa, mec):
        assert np.array_equal(make(seed=1).plan(everyone, plan).seconds, make(seed=1).plan(everyone, plan).seconds)
        assert not np.array_equal(make(seed=1).plan(everyone, plan).seconds, make(seed=2).plan(everyone, plan).seconds)
