"""A fleet whose every draw is data: recorded, saved, loaded, and the same to the bit."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import atoll
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Parties, Roster
from atoll.devices import (
    Backhaul,
    BatchRate,
    Battery,
    ByRegion,
    Compute,
    Cycles,
    DeviceMemory,
    Diurnal,
    Exponential,
    Fleet,
    GeneratedTrace,
    Markov,
    Normal,
    Power,
    Recorded,
    Shannon,
    Throughput,
    Uniform,
    Windows,
    load_fleet,
    load_trace,
    mec,
    planned,
    safa,
)
from atoll.models.idle import IdleIslands, IdleModel

N, TURNS, UNTIL = 14, 3, 150.0
NAMES = ["north"] * 5 + ["south"] * 9

traits = st.sampled_from(
    [5.0, Uniform(4.0, 9.0), Exponential(5.0, 3.0), ByRegion({"north": 4.0, "south": Normal(6.0, 1.0, 3.0)})]
)
fleets = st.builds(
    lambda size, hertz, link, point, availability, power, more, seed: Fleet(
        Cycles(hertz, 1e3, 1e-3) if power else BatchRate(hertz, 3),
        link,
        GeneratedTrace(Uniform(0.0, 0.6), point, outage=0.1, seed=seed),
        availability,
        power=power,
        battery=Battery(size, watts=0.25, reserve=0.1) if power else None,
        memory=DeviceMemory(ByRegion({"north": Uniform(1e3, 3e5), "south": 1e5})),
        regions=NAMES,
        seed=seed,
        **more,
    ),
    traits,
    traits,
    st.builds(Throughput, traits, st.none() | traits) | st.builds(Shannon, traits, traits),
    st.sampled_from(["during", "before", "uniform", 0.5]),
    st.sampled_from([None, Diurnal(0.4, 40.0, seed=1), Markov(20.0, 15.0, 0.7), Windows([(3, 0.0, 40.0), (9, 9.0, 90.0)], until=160.0), Windows([(0, 0.0, 9.0)])]),
    st.none() | st.just(Power(lost="parts")),
    st.sampled_from([{}, {"latency": 0.25, "egress": 1e5, "backhaul": Backhaul(1e6, 3), "model_bytes": 2e4, "model_over": 9, "notice": 2.0}]),
    st.integers(0, 4),
)  # fmt: skip


@settings(max_examples=15, deadline=None)
@given(
    fleets,
    st.lists(st.integers(0, N - 1), min_size=1, unique=True),
    st.integers(0, TURNS),
    st.floats(0, UNTIL, exclude_max=True),
)
def test_a_fleet_from_a_file_is_the_one_that_was_recorded(tmp_path_factory, fleet, who, turn, now):  # fmt: skip
    path = tmp_path_factory.mktemp("fleet") / "fleet.npz"
    again = load_fleet(fleet.recorded(TURNS, N, UNTIL).save(path))
    parties = Parties(Roster(N), np.array(who))
    plan = planned(10.0 + np.array(who), down=300, turn=turn, now=now)
    plan = replace(plan, lacking=lambda: np.linspace(0.0, 5.0, len(who)))
    one, other = fleet.plan(parties, plan), again.plan(parties, plan)
    for name in ("seconds", "done", "fraction", "energy", "reason"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    if one.spending is not None:
        assert all(
            np.array_equal(a, b)
            for a, b in zip(vars(one.spending).values(), vars(other.spending).values(), strict=True)
        )
    assert np.array_equal(fleet.forecast(parties, plan), again.forecast(parties, plan))
    assert np.array_equal(fleet.available(parties, now), again.available(parties, now))
    assert fleet.traits.keys() == again.traits.keys()
    assert all(np.array_equal(fleet.trait(name, parties), again.trait(name, parties)) for name in fleet.traits)
    assert fleet.region(parties) == again.region(parties)
    assert fleet.transfer("server", "edge", 100) == again.transfer("server", "edge", 100)
    assert fleet.recharge == again.recharge
    with pytest.raises(ConfigError, match=r"the trace has 4 \(0 to 3\)"):
        again.require_turns(parties, TURNS + 1)


def test_a_training_under_a_fleet_from_a_file_is_the_same(tmp_path):
    fleet = replace(
        mec("aerofoil", 0.3, regions=2, seed=2), availability=Markov(300.0, 60.0, 5.0), battery=Battery(80.0, 0.05)
    )
    path = fleet.recorded(6, 8, 5000.0).save(tmp_path / "fleet.npz")
    job = atoll.Training(
        model=IdleModel(), rounds=6, selection=atoll.Uniform(5), pacing=atoll.Synchronous(deadline=90.0)
    )

    def rows(devices):
        return atoll.simulate(job, IdleIslands([40] * 8), devices=devices, engine="inline").metrics

    assert rows(load_fleet(path)) == rows(fleet)
    short = replace(fleet.recorded(6, 8, 100.0), trace=GeneratedTrace())
    with pytest.raises(ConfigError, match=r"the windows are known up to 100 s.*record them with a later until"):
        rows(short)


def test_who_says_nothing_of_the_end_of_something_endless_is_asked():
    with pytest.raises(ConfigError, match=r"until=None: Diurnal has no end.*until=86400"):
        Fleet(availability=Diurnal()).recorded(2, 3)
    with pytest.raises(ConfigError, match="until=inf"):
        Fleet(availability=Markov()).recorded(2, 3, float("inf"))
    assert Fleet(availability=Windows([(0, 0.0, 9.0)])).recorded(2, 3).availability.until is None


@dataclass(frozen=True, eq=False)
class Mine(Compute):
    """A rule of one's own."""

    pace: Uniform

    @property
    def trait(self):
        return self.pace

    def seconds(self, work, speed):
        return work.examples / speed


def test_rules_of_ones_own_are_recorded_and_not_saved(tmp_path):
    fleet = Fleet(Mine(Uniform(1.0, 2.0)))
    known, everyone = fleet.recorded(1, 4), Roster(4).all()
    assert np.array_equal(known.trait("speed", everyone), fleet.trait("speed", everyone))
    with pytest.raises(ConfigError, match=r"a fleet file cannot contain Mine \(in Fleet.save: fleet.compute\)"):
        known.save(tmp_path / "fleet.npz")
    with pytest.raises(ConfigError, match=r"cannot contain Exponential.*save what fleet.recorded"):
        safa().save(tmp_path / "fleet.npz")


def rewritten(path, change):
    with np.load(path, allow_pickle=False) as file:
        content = {name: file[name] for name in file.files}
    header = json.loads(str(content["header"][()]))
    change(header, content)
    np.savez(path, **{**content, "header": np.array(json.dumps(header))})


def signed(change):
    """A change by somebody who knows how the digest is made."""
    from atoll.devices.traces import digest

    def both(header, content):
        change(header, content)
        header["digest"] = digest(header, {k: v for k, v in content.items() if k != "header"})

    return both


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (lambda h, c: h.update(version=2), "the fleet has version 2, but this Atoll reads up to 1"),
        (lambda h, c: h.update(format="something"), "it has another header"),
        (lambda h, c: h["rules"].update(latency=3.0), "the file is damaged"),
        (lambda h, c: c.update({"fleet.trace.points": np.zeros(3)}), "the file is damaged"),
        (lambda h, c: c.update({"fleet.trace.points": np.array([None])}), "the file is not a fleet"),
        (signed(lambda h, c: h.update(rules=None)), "it has another header"),
        (signed(lambda h, c: h["rules"].update(latency="late")), "the file is not a fleet"),
        (signed(lambda h, c: h["rules"].update(latency=-1.0)), "the file is not a fleet: latency=-1.0"),
        (signed(lambda h, c: h["rules"].update(speed=1.0)), "'speed' is not a setting of Fleet"),
        (signed(lambda h, c: h["rules"]["compute"].update(name="system")), "the file is not a fleet: 'system'"),
        (signed(lambda h, c: c.pop("fleet.compute.speed.values")), "the file is not a fleet"),
        (signed(lambda h, c: c.update({"fleet.trace.points": np.zeros(99)})), "the file is not a fleet"),
    ],
)  # fmt: skip
def test_a_file_that_is_no_good(tmp_path, change, match):
    path = safa(crash=0.5).recorded(4, 9).save(tmp_path / "fleet.npz")
    rewritten(path, change)
    with pytest.raises(ConfigError, match=match):
        load_fleet(path)


def test_other_files_are_refused(tmp_path):
    fleet = safa(crash=0.5).recorded(4, 9)
    with pytest.raises(ConfigError, match="it has another header"):
        load_fleet(fleet.trace.save(tmp_path / "trace.npz"))
    with pytest.raises(ConfigError, match="the file is not a trace"):
        load_trace(fleet.save(tmp_path / "fleet.npz"))
    with pytest.raises(ConfigError, match="there is no such file"):
        load_fleet(tmp_path / "none.npz")
    wrapped = load_fleet(tmp_path / "fleet.npz", wrap=True)
    assert isinstance(wrapped.trace, Recorded)
    wrapped.require_turns(Roster(9).all(), 99)
