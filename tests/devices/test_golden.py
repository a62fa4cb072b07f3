"""Numbers of the published studies: W. Wu, "Towards Efficient Horizontal Federated Learning", PhD thesis, Warwick 2021."""

from __future__ import annotations

import math

import numpy as np
import pytest

from atoll.core.requests.party import Roster
from atoll.devices import Backhaul, Cycles, Fleet, Power, Shannon, Throughput, mec, planned, safa


def one(n=1):
    return Roster(n).all()


def test_safa_constants():
    """Section 3.7.1: 10 MB over 1.4 Mbit/s is 57.14 s each way, over 10 Gbit/s 0.008 s a copy."""
    fleet = safa("kdd", 0.0)
    times = fleet.times(one(), planned(260, epochs=5, batch=100, down=999))
    assert times.down[0] == pytest.approx(57.142857, abs=1e-6)
    assert times.up[0] == times.down[0]
    assert times.wait == pytest.approx(0.008)
    assert fleet.times(one(500), planned([260.0] * 500, down=999)).wait == pytest.approx(4.0)  # all of task 3
    # A note of some bytes is no model; the tables charge one all the same.
    note = planned(260, epochs=5, batch=100, down=67)
    assert fleet.times(one(), note).down[0] == pytest.approx(67 / 175_000.0)
    assert safa("kdd", 0.0, model_over=0).times(one(), note).down[0] == times.down[0]


def test_safa_training_time_and_its_fractional_variant():
    """Eq. 3.5, and what the published program computes: n E / (B s) with the test rows counted in."""
    plan = planned(600, epochs=5, batch=40, down=1)
    speed = safa("mnist").trait("speed", one())[0]
    assert safa("mnist").times(one(), plan).train[0] == pytest.approx(75 / speed)
    assert safa("mnist", compat=True).times(one(), plan).train[0] == pytest.approx(700 * 5 / (40 * speed))
    broken = planned(610, epochs=5, batch=40, down=1)
    assert safa("mnist").times(one(), broken).train[0] == pytest.approx(80 / speed)  # 16 batches an epoch


def at(hertz, bandwidth, bits, cycles, megabytes):
    return Fleet(Cycles(hertz, bits, cycles), Shannon(bandwidth), model_bytes=megabytes * 1e6, power=Power())


@pytest.mark.parametrize(
    ("device", "examples", "talk", "train"),
    [
        # Task 1 and 2, mean device; T_lim of Tables 4.3 and 4.4 is the device three standard deviations below it
        ((0.5e9, 0.5e6, 384, 300, 5), 100, 36.0457, 0.1152),
        ((1e9, 1e6, 6272, 400, 10), 140, 36.0457, 1.75616),
    ],
)
def test_mec_times_of_the_mean_device(device, examples, talk, train):
    times = at(*device).times(one(), planned(examples, epochs=5, down=1))
    assert times.down[0] + times.up[0] == pytest.approx(talk, abs=5e-5)
    assert times.up[0] == pytest.approx(2 * times.down[0])
    assert times.train[0] == pytest.approx(train, abs=5e-6)


@pytest.mark.parametrize(
    ("device", "examples", "limit"),
    [((0.2e9, 0.2e6, 384, 300, 5), 100, 90.402), ((0.1e9, 0.1e6, 6272, 400, 10), 140, 378.0188)],
)
def test_mec_response_time_of_the_extreme_straggler(device, examples, limit):
    assert at(*device).forecast(one(), planned(examples, epochs=5, down=1))[0] == pytest.approx(limit, abs=5e-4)


@pytest.mark.parametrize(("task", "seconds"), [("aerofoil", 0.36), ("mnist", 2.40)])
def test_backhaul(task, seconds):
    """Eq. 4.39; with the limit of task 2, 378.0188 + 2.40 is the 380.42 of Table 4.4."""
    fleet = mec(task)
    there, back = fleet.transfer("server", "edge-0", 7), fleet.transfer("edge-0", "server", 7)
    assert there + back == pytest.approx(seconds)
    assert back == pytest.approx(2 * there)
    assert Backhaul().seconds("edge-0", "edge-1", 5.0) == pytest.approx(3 * 5.0 / 125e6)


def test_a_profile_of_128_neurons_takes_2_46_milliseconds():
    """Eq. 5.30: 8 q bytes over half of 1 MHz log2(101), charged as they are because they hold no model."""
    fleet = Fleet(Cycles(), Shannon(1e6), model_bytes=10e6, model_over=1024)
    times = fleet.times(one(), planned(240, down=50_000, up=8 * 128))
    assert times.up[0] == pytest.approx(2.46e-3, abs=5e-6)
    assert times.down[0] == pytest.approx(8 * 10e6 / (1e6 * math.log2(101)))


def test_mean_devices_of_fedprof():
    """Section 5.6: 36.046 s and 0.434 s (514 examples), 3.011 s (240 examples)."""
    small = at(0.5e9, 0.5e6, 704, 300, 5).times(one(), planned(514, epochs=2, down=1))
    large = at(1e9, 1e6, 6272, 400, 10).times(one(), planned(240, epochs=5, down=1))
    assert (small.down + small.up)[0] == pytest.approx(36.046, abs=1e-3)
    assert (small.train[0], large.train[0]) == pytest.approx((0.434, 3.011), abs=5e-4)


def sizes(mean, std, n, seed=5):
    return np.maximum(1.0, np.random.default_rng(seed).normal(mean, std, n))


@pytest.mark.parametrize(
    ("task", "cohort", "seconds", "hours"),
    [
        ("gas-turbine", 10, 53.5, 0.0523),
        ("gas-turbine", 15, 56.7, 0.0785),
        ("digits", 50, 49.9, 0.2827),
        ("digits", 100, 51.4, 0.5655),
    ],
)
def test_expected_round_and_energy_of_fedprof(task, cohort, seconds, hours):
    """Expectation of FedAvg's round (the slowest of a cohort) and its Wh, beside 51.24, 60.77, 48.86 and 51.24 s of Tables 5.3 and 5.4."""
    n = 2000 * cohort
    small = task == "gas-turbine"
    rows = sizes(514, 154, n) if small else np.full(n, 240.0)
    out = mec(task, seed=3).plan(one(n), planned(rows, epochs=2 if small else 5, down=1))
    assert out.done.all()
    assert out.seconds.reshape(-1, cohort).max(axis=1).mean() == pytest.approx(seconds, rel=0.01)
    assert out.energy.sum() / 2000 / 3600 == pytest.approx(hours, rel=0.01)


@pytest.mark.parametrize(
    ("drop_out", "expected"),
    [(0.1, (51.0, 66.5, 74.0)), (0.3, (67.2, 84.0, 88.6)), (0.6, (82.5, 89.8, 90.35))],
)
def test_expected_round_of_fedavg_in_mec(drop_out, expected):
    """Task 1: whoever is drawn must answer, or the round lasts until T_lim = 90.402 s (ceil(15 C) of 15 clients; Table 4.3).

    What is expected comes from a simulation of a few fleets of 15, which lies within 2 % of the mean over thousands.
    """
    for cohort, mean in zip((2, 5, 8), expected, strict=True):
        n = 8000 * cohort
        fleet = mec("aerofoil", drop_out, regions=1, seed=4)
        out = fleet.plan(one(n), planned(sizes(100, 30, n), epochs=5, down=1, turn=1))
        reply = np.where(out.done, out.seconds, np.inf).reshape(-1, cohort)
        assert np.minimum(90.402, reply.max(axis=1)).mean() == pytest.approx(mean, rel=0.02)


def test_energy_grows_with_the_cube_of_the_clock_rate():
    """Eq. 4.42: s^3 T, which is s^2 at fixed work; 0.5 W for 36.0457 s and 0.7 W for 1.75616 s."""
    plan = planned(140, epochs=5, down=1)
    mean = at(1e9, 1e6, 6272, 400, 10).plan(one(), plan).energy[0]
    assert mean == pytest.approx(0.5 * 36.0457 + 0.7 * 1.75616, abs=1e-4)
    computing = [at(s * 1e9, 1e6, 6272, 400, 10).plan(one(), plan).energy[0] - 0.5 * 36.0457 for s in (1, 2, 3)]
    assert np.array(computing) / computing[0] == pytest.approx([1, 4, 9], rel=1e-3)


def test_a_drop_out_has_spent_half_of_its_round_on_average():
    """The hypothesis under which Fig. 4.9 is met: the instant of a drop-out is uniform in the round."""
    n = 40_000
    plan = planned(np.full(n, 140.0), epochs=5, down=1, turn=1)
    fleet = mec("mnist", 0.5, seed=2, regions=1)
    out, whole = fleet.plan(one(n), plan), mec("mnist", 0.0, seed=2, regions=1).plan(one(n), plan)
    lost = ~out.done
    assert np.array_equal(out.energy[~lost], whole.energy[~lost])
    assert (out.energy[lost] / whole.energy[lost]).mean() == pytest.approx(0.5, abs=0.01)


@pytest.mark.slow
def test_ten_devices_at_twenty_per_cent_all_finish_one_time_in_nine():
    """(1 - 0.2)^10 = 0.107 (section 1.3)."""
    fleet = Fleet(link=Throughput(1e6), trace=safa(crash=0.2, seed=7).trace)
    alive = ~fleet.record(20_000, 10).crashed
    assert alive.all(axis=1).mean() == pytest.approx(0.8**10, abs=0.006)


@pytest.mark.parametrize("crash", [0.1, 0.3, 0.5, 0.7])
@pytest.mark.parametrize("tolerance", [1, 5])
def test_synchronisation_ratio_of_a_lag_tolerant_server(crash, tolerance):
    """In the long run (1 - cr) / (1 - cr^(tau + 1)) of the devices are sent the model: those that finished, and those that lag more than tau rounds."""
    crashed = safa(crash=crash, seed=11).record(600, 500).crashed
    lag, sent = np.zeros(500, dtype=int), []
    for row in crashed:
        fresh = (lag == 0) | (lag > tolerance)
        sent.append(fresh.mean())
        lag = np.where(row, np.where(fresh, 1, lag + 1), 0)
    assert np.mean(sent[20:]) == pytest.approx((1 - crash) / (1 - crash ** (tolerance + 1)), abs=0.005)


def test_futility_of_waiting_is_half_the_crash_probability():
    """A uniform crash point wastes cr / 2 of all work: 0.05, 0.15, 0.25 and 0.35 in Table A.6."""
    for crash in (0.1, 0.3, 0.5, 0.7):
        n = 50_000
        out = safa("kdd", crash, seed=1).plan(one(n), planned(np.full(n, 260.0), batch=100, down=1, turn=2))
        assert np.where(out.done, 0.0, out.fraction).mean() == pytest.approx(crash / 2, abs=0.005)
