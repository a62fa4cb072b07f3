"""Fleets that cannot be say what is wrong and what to do."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.core.errors import CompositionError, ConfigError
from atoll.core.requests.party import Roster
from atoll.devices import (
    Backhaul,
    BatchRate,
    Battery,
    ByRegion,
    Cycles,
    DeviceMemory,
    Diurnal,
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
    Windows,
    mec,
    planned,
    require_feasible,
    safa,
)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: GeneratedTrace(1.2), r"crash=1.2 is not a probability: it can be 1.2.*from 0 to 1"),
        (lambda: GeneratedTrace(-0.1), "it can be -0.1"),
        (lambda: GeneratedTrace(float("nan")), "crash=nan.*use a number, one number a device"),
        (lambda: GeneratedTrace("often"), "crash='often'.*in Generated.*use a number"),
        (lambda: GeneratedTrace([0.1, [0.2]]), r"crash: values=\[0.1, \[0.2\]\].*in Generated"),
        (lambda: BatchRate("fast"), "speed='fast'.*use a number"),
        (lambda: BatchRate(batch="all"), "batch='all'.*use a whole number or None"),
        (lambda: ByRegion([1.0, 2.0]), r"values=\[1.0, 2.0\] names no region"),
        (lambda: Windows(0.5), r"windows of shape \(\)"),
        (lambda: Fleet(regions=1.5), "regions=1.5.*names of regions"),
        (lambda: GeneratedTrace([0.1, 1.5]), "it can be 1.5"),
        (lambda: GeneratedTrace(Uniform(0.5, 2.0)), "it can be 2"),
        (lambda: GeneratedTrace(Exponential(0.1)), "not a probability"),
        (lambda: GeneratedTrace(ByRegion({"a": 0.1, "b": 3.0})), "it can be 3"),
        (lambda: GeneratedTrace(outage=2.0), "outage=2.0 is not a probability"),
        (lambda: GeneratedTrace(point="after"), "point='after'"),
        (lambda: GeneratedTrace(point=1.0), "point=1.0"),
        (lambda: Throughput(0.0), r"down=0.0 can be 0 \(in Throughput\).*above 0"),
        (lambda: Throughput(1.0, [1.0, -2.0]), "up=.* can be -2"),
        (lambda: Shannon(Normal(1e6, 3e5)), "bandwidth=.* can be -inf.*low="),
        (lambda: Shannon(Uniform(0.0, 1.0)), "bandwidth=.* can be 0"),
        (lambda: Shannon(snr=0.0), "snr=0.0"),
        (lambda: Shannon(up=0.0), "up=0.0"),
        (lambda: Backhaul(0.0), "rate=0.0"),
        (lambda: BatchRate(0.0), "speed=0.0"),
        (lambda: BatchRate(batch=0), "batch=0"),
        (lambda: Cycles(bits=0), "bits=0"),
        (lambda: Power(-1.0), "transmit=-1.0"),
        (lambda: Power(lost="some"), "lost='some'"),
        (lambda: Battery(0.0), "capacity=0.0"),
        (lambda: Battery(1.0, reserve=2.0), "reserve=2.0"),
        (lambda: DeviceMemory(copies=0.0), "copies=0.0"),
        (lambda: Diurnal(1.5), "share=1.5 is not a probability"),
        (lambda: Diurnal(day=0.0), "day=0.0 seconds"),
        (lambda: Markov(1.0, 1.0, 2.0), r"step / on \+ step / off <= 1"),
        (lambda: Windows([(0, 5.0, 5.0)]), "a window of device 0 from 5 to 5"),
        (lambda: Normal(0.0, -1.0), "std=-1.0"),
        (lambda: Normal(0.0, 1.0, 2.0, 1.0), "low=2.0 above high=1.0"),
        (lambda: Exponential(0.0), "mean=0.0"),
        (lambda: Uniform(2.0, 1.0), "low=2.0 above high=1.0"),
        (lambda: GivenTraits([]), "values of shape"),
        (lambda: GivenTraits([1.0, float("inf")]), "finite"),
        (lambda: ByRegion({}), "names no region"),
        (lambda: Fleet(latency=-1.0), "latency=-1.0"),
        (lambda: Fleet(egress=0.0), "egress=0.0.*above 0"),
        (lambda: Fleet(model_bytes=0.0), "model_bytes=0.0"),
        (lambda: Fleet(power=Power()), "BatchRate has none"),
        (lambda: Fleet(battery=Battery()), "battery without power"),
        (lambda: Fleet(regions=0), "regions=0"),
        (lambda: Fleet(trace=GeneratedTrace(ByRegion({"0": 0.1, "south": 0.2})), regions=2), "'south' is not a region"),
        (lambda: Fleet(trace=GeneratedTrace(ByRegion({"0": 0.1})), regions=2), "has no entry for region '1'"),
        (lambda: Fleet(BatchRate(ByRegion({"nort": 1.0})), regions=["north"]), "'nort' is not a region.*north"),
        (lambda: safa("minst"), "task='minst'.*mnist"),
        (lambda: mec("digit"), "task='digit'.*digits"),
        (lambda: mec(drop_out=1.5), "drop_out=1.5 is not a probability"),
    ],
)
def test_settings_that_cannot_be(make, match):
    with pytest.raises(ConfigError, match=match):
        make()


@pytest.mark.parametrize(
    ("fleet", "match"),
    [
        (Fleet(BatchRate(GivenTraits([1.0, 2.0]))), "2 values for 3 devices"),
        (Fleet(regions=["a", "b"]), "regions has 2 entries for 3 devices"),
        (Fleet(regions=4), "regions=4 for 3 devices"),
        (Fleet(availability=Windows([(7, 0.0, 1.0)])), "a window of device 7, but there are 3 devices"),
        (Fleet(memory=DeviceMemory(100.0)), "the model needs 1,500 bytes, and no device has more than 100"),
    ],
)
def test_fleets_that_do_not_fit_the_population(fleet, match):
    with pytest.raises(ConfigError, match=match):
        fleet.plan(Roster(3).all(), planned([1.0] * 3, down=500))


def test_traits_that_are_not_there():
    with pytest.raises(ConfigError, match=r"'colour' is not a trait of this fleet.*speed, down"):
        Fleet().trait("colour", Roster(1).all())
    with pytest.raises(ConfigError, match="turns=-1"):
        Fleet().record(-1, 3)


def test_a_deadline_that_nobody_can_meet():
    fleet = Fleet(BatchRate([1.0, 4.0, 2.0]), Throughput(1000.0))
    plan = planned([100.0] * 3, batch=10, epochs=2, down=1000)  # 20 batches, 2 s on the way
    with pytest.raises(
        ConfigError, match="deadline=6 s is met by 0 of 3 devices, but 1 must meet it; the fastest, client-1, after 7 s"
    ):
        require_feasible(fleet, 3, plan, 6.0)
    assert require_feasible(fleet, 3, plan, 7.0).tolist() == [22.0, 7.0, 12.0]
    with pytest.raises(
        ConfigError, match=r"met by 1 of 3 devices, but 2 must.*client-1, after 7 s; 2 of them after 12 s"
    ):
        require_feasible(fleet, Roster(3).all(), plan, 11.0, replies=2)
    with pytest.raises(ConfigError, match="met by 3 of 3 devices, but 4 must"):
        require_feasible(fleet, 3, plan, 100.0, replies=4)
    assert np.all(require_feasible(Fleet(egress=1000.0), 3, planned([1.0] * 3, down=1000), 99.0) > 3.0)


def test_parts_of_another_kind_are_refused():
    with pytest.raises(
        CompositionError, match=r"compute: 3.0 is not an instance of Compute.*use for example BatchRate"
    ):
        Fleet(compute=3.0)
    with pytest.raises(CompositionError, match="battery: 5 is not an instance of Battery"):
        Fleet(power=Power(), compute=Cycles(), battery=5)
