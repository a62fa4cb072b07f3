"""Traces: recorded, saved, replayed, and the same for every method."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.algorithms import Upcycled
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties, Roster
from atoll.devices import Fleet, GeneratedTrace, Normal, Recorded, load_trace, mec, planned, safa
from atoll.devices.traits import DrawnPopulation
from atoll.pacing import SAFA, FedBuff, PaceSteering

N = 30


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(["during", "before", "uniform", 0.5]), st.integers(0, 9), st.integers(0, 6))
def test_a_recorded_trace_gives_what_was_drawn(point, seed, turn):
    fleet = Fleet(trace=GeneratedTrace(Normal(0.4, 0.3), point, outage=0.1, seed=seed), regions=3)
    replayed = replace(fleet, trace=fleet.record(6, N))
    everyone, plan = Roster(N).all(), planned(np.full(N, 50.0), batch=10, down=100, turn=turn)
    one, other = fleet.plan(everyone, plan), replayed.plan(everyone, plan)
    for name in ("seconds", "done", "fraction", "reason"):
        assert np.array_equal(getattr(one, name), getattr(other, name))


def test_a_file_holds_the_whole_trace(tmp_path):
    trace = mec("aerofoil", 0.4, seed=8).record(12, N)
    path = trace.save(tmp_path / "deep" / "trace.npz")
    again = load_trace(path)
    assert np.array_equal(again.crashed, trace.crashed)
    assert np.array_equal(again.point, trace.point)
    assert (again.span, len(again), again.wrap) == ("response", 13, False)
    with np.load(path, allow_pickle=False) as file:
        assert json.loads(str(file["header"][()]))["version"] == 1


def test_slices():
    trace = safa(crash=0.5).record(9, N)
    assert np.array_equal(trace[3:5].crashed, trace.crashed[3:5])
    assert np.array_equal(trace[:, :7].point, trace.point[:, :7])
    fleet = Fleet(trace=trace[4:])
    plan = planned([1.0] * N, down=1, turn=2)
    assert np.array_equal(~fleet.plan(Roster(N).all(), plan).done, trace.crashed[6])


def test_methods_that_ask_others_meet_the_same_crashes():
    """Whoever is asked in a turn, under whatever key and request: a device crashes in it for all methods or for none."""
    trace = safa(crash=0.4, seed=2).record(20, N)
    rng = np.random.default_rng(0)
    for turn in range(1, 21):
        for fleet in (safa(crash=0.4, seed=2), Fleet(trace=trace), replace(safa("kdd"), trace=trace)):
            asked = np.sort(rng.choice(N, 9, replace=False))
            plan = replace(planned([5.0] * 9, down=1, turn=turn), key=int(rng.integers(1 << 60)), request=f"r{turn}")
            out = fleet.plan(Parties(Roster(N), asked), plan)
            assert np.array_equal(~out.done, trace.crashed[turn, asked])
            assert np.array_equal(out.fraction[~out.done], trace.point[turn, asked][~out.done])


def test_a_trace_that_is_too_short_says_so():
    fleet = Fleet(trace=safa(crash=0.5).record(4, N))
    plan = planned([1.0] * N, turn=5)
    with pytest.raises(ConfigError, match=r"turn 5 is requested, but the trace has 5 \(0 to 4\).*wrap=True"):
        fleet.plan(Roster(N).all(), plan)
    wrapped = Fleet(trace=replace(fleet.trace, wrap=True))
    assert np.array_equal(~wrapped.plan(Roster(N).all(), plan).done, fleet.trace.crashed[0])
    with pytest.raises(ConfigError, match="the trace has 30 devices but the run has 31"):
        fleet.plan(Roster(31).all(), planned([1.0] * 31, turn=1))


def rewritten(path, **changes):
    with np.load(path, allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    header = json.loads(str(content["header"][()]))
    header.update({k: v for k, v in changes.items() if k in header})
    content["header"] = np.array(json.dumps(header))
    content.update({k: v for k, v in changes.items() if k in content})
    np.savez(path, **content)


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"version": 2}, "the trace has version 2, but this Atoll reads up to 1"),
        ({"format": "something"}, "it has another header"),
        ({"turns": "3"}, "it has another header"),
        ({"turns": 0}, "its header is invalid"),
        ({"devices": 31}, "the file is damaged"),
        ({"points": np.zeros(3)}, "the file is damaged"),
        ({"crashed": np.array([None])}, "the file is not a trace"),
    ],
)
def test_a_file_that_is_no_good(tmp_path, changes, match):
    path = safa(crash=0.5).record(4, 30).save(tmp_path / "trace.npz")
    rewritten(path, **changes)
    with pytest.raises(ConfigError, match=match):
        load_trace(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no such file"):
        load_trace(tmp_path / "none.npz")
    (tmp_path / "text").write_text("crash, crash")
    with pytest.raises(ConfigError, match="the file is not a trace"):
        load_trace(tmp_path / "text")
    np.save(tmp_path / "one.npy", np.zeros(3))
    with pytest.raises(ConfigError, match="the file is not a trace"):
        load_trace(tmp_path / "one.npy")
    with zipfile.ZipFile(tmp_path / "z.npz", "w") as file:
        file.writestr("header.npy", b"nothing")
    with pytest.raises(ConfigError, match="the file is not a trace"):
        load_trace(tmp_path / "z.npz")


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ((np.zeros(3, dtype=bool), np.zeros(3)), "crashed has shape"),
        ((np.zeros((2, 2)), np.zeros((2, 2))), "dtype float64"),
        ((np.ones((2, 2), dtype=bool), np.full((2, 2), 1.5)), r"outside \[0, 1\]"),
        ((np.ones((2, 2), dtype=bool), np.zeros((2, 2)), "work"), "within='work'"),
    ],
)
def test_arrays_that_are_no_trace(arguments, match):
    with pytest.raises(ConfigError, match=match):
        Recorded(*arguments)


@dataclass(frozen=True, eq=False)
class Untouched(Recorded):
    """A trace that says whether anyone was asked under it."""

    asked: list = field(default_factory=list)

    def at(self, turn, population, positions):
        self.asked.append(turn)
        return super().at(turn, population, positions)


def run(turns, rounds=6, clients=4, **parts):
    """How many turns were asked for, and the error if there was one."""
    drawn = GeneratedTrace().at
    population = DrawnPopulation(4)
    crashed, point = (
        np.stack(x) for x in zip(*(drawn(t, population, np.arange(4)) for t in range(turns)), strict=True)
    )
    trace = Untouched(crashed, point)
    islands = atoll.data.iid(atoll.data.digits().take(slice(0, 40)), parties=clients)
    job = atoll.Training(model=atoll.models.linear(64, 10), rounds=rounds, **parts)
    try:
        atoll.simulate(job, islands, devices=Fleet(trace=trace), engine="inline")
    except ConfigError as error:
        return max(trace.asked, default=None), str(error)
    return max(trace.asked), None


@pytest.mark.parametrize("pacing", [atoll.Synchronous(), SAFA(resume=False), PaceSteering(period=10.0)])
def test_a_trace_shorter_than_the_rounds_is_refused_before_anyone_is_contacted(pacing):
    asked, said = run(6, pacing=pacing)
    assert asked is None
    assert "the run has turns up to 6, but the trace has 6 (0 to 5)" in said
    assert "wrap=True" in said
    assert run(7, pacing=pacing) == (6, None)


def test_a_trace_of_other_devices_is_refused_before_anyone_is_contacted():
    asked, said = run(7, clients=5)
    assert asked is None
    assert "the trace has 4 devices but the run has 5" in said


def test_rounds_of_the_server_alone_need_no_turn():
    """Of seven rounds, Upcycled holds every second one without clients: four turns."""
    job = {"algorithm": Upcycled(base=atoll.FedAvg(), coefficient=0.1), "rounds": 7}
    assert run(5, **job) == (4, None)
    asked, said = run(4, **job)
    assert asked is None
    assert "the run has turns up to 4, but the trace has 4 (0 to 3)" in said


def test_a_run_that_may_end_sooner_is_refused_at_the_turn_that_is_missing():
    def stop(row):
        if row["round"] == 5:
            raise atoll.StopRun

    assert run(6, callbacks=[stop]) == (5, None)
    asked, said = run(6, pacing=FedBuff(buffer=2), selection=atoll.Uniform(2))
    assert asked == 6
    assert "turn 6 is requested, but the trace has 6 (0 to 5)" in said
