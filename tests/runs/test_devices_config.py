"""Fleets in a configuration: presets by name, and every rule and distribution below ``devices:``."""

from __future__ import annotations

import json

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.core.requests.party import Roster
from atoll.devices import Fleet, planned, safa
from atoll.runs.config import json_schema, parse_config, to_job
from atoll.runs.registries import registry

BASE = {
    "data": {"source": {"name": "digits"}, "partition": {"name": "iid", "parties": 10}},
    "model": {"name": "linear", "features": 64, "outputs": 10},
    "rounds": 3,
}
WHOLE = {
    "name": "Fleet",
    "compute": {"name": "Cycles", "hertz": {"name": "Normal", "mean": 1e9, "std": 1e8, "low": 1e8}},
    "link": {"name": "Shannon", "bandwidth": [1e6] * 10},
    "trace": {
        "name": "GeneratedTrace",
        "crash": {"name": "ByRegion", "values": {"a": 0.1, "b": {"name": "Normal", "mean": 0.4, "std": 0.1}}},
    },
    "availability": {"name": "Windows", "windows": [[0, 1.0, 2.0]]},
    "backhaul": {"edges": 3},
    "power": {"transmit": 0.4},
    "battery": {"capacity": {"name": "Uniform", "low": 5.0, "high": 9.0}},
    "memory": {"size": 1e9},
    "regions": ["a"] * 5 + ["b"] * 5,
}


def devices(said):
    return parse_config({**BASE, "devices": said})


@pytest.mark.parametrize(
    "said", ["safa", {"name": "mec", "drop_out": 0.3}, {"name": "exponential", "crash": 0.2}, WHOLE]
)
def test_a_fleet_is_made_and_written_down(said):
    config = devices(said)
    fleet = config.devices.build("devices")
    assert isinstance(fleet, Fleet)
    assert parse_config(config.plain()).plain() == config.plain()
    plan = planned([9.0] * 10, down=100, turn=1)
    again = parse_config(config.plain()).devices.build("devices")
    assert np.array_equal(fleet.plan(Roster(10).all(), plan).seconds, again.plan(Roster(10).all(), plan).seconds)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"name": "safa", "crash": 1.3}, r"crash=1.3 is not a probability.*devices \(GeneratedTrace\)"),
        ({"name": "safa", "task": "minst"}, r"devices.task='minst' should be 'boston', 'mnist' or 'kdd'"),
        ({"name": "flete"}, "devices.name='flete' is not a known device model. Did you mean 'Fleet'"),
        ({"name": "safa", "crash": {"name": "Norml"}}, r"^devices.crash.name='Norml' is not a known distribution. Did you mean 'Normal'"),
        ({"name": "safa", "crash": {"name": "Normal", "mean": 0.3}}, r"^devices.crash.std is missing.*add std: ... to Normal"),
        ({"name": "Fleet", "link": {"name": "Throughput", "down": 0}}, r"^devices.link.down=0.0 can be 0"),
        ({"name": "Fleet", "power": {"transmitter": 1}}, "devices.power.transmitter=1 is not a setting. Did you mean 'transmit'"),
        ({"name": "Fleet", "trace": {"name": "load_trace", "path": "none.npz"}}, "there is no such file"),
        ({"name": "Fleet", "power": {}}, "power needs the clock rate"),
        ({"name": "safa", "crash": "often"}, "devices.crash='often' should be a valid number"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(said, match):
    with pytest.raises(ConfigError, match=match):
        devices(said)


def test_all_parts_of_devices_are_configurable():
    for kind in ("device model", "distribution", "compute rule", "link rule", "availability", "trace"):
        assert set(registry(kind).parts()) <= set(atoll.devices.__all__)
    assert set(registry("device model").parts()) == {"Fleet", "exponential", "load_fleet", "mec", "safa"}
    assert "BatchRate" in json.dumps(json_schema())


def test_a_run_with_devices_and_a_recorded_trace_takes_the_same_time(tmp_path):
    path = safa(crash=0.4, seed=3).record(3, 10).save(tmp_path / "trace.npz")
    drawn = {"name": "Fleet", "trace": {"name": "GeneratedTrace", "crash": 0.4, "seed": 3}}
    replayed = {"name": "Fleet", "trace": {"name": "load_trace", "path": str(path)}}
    whole = devices(drawn).devices.build("devices").recorded(3, 10).save(tmp_path / "fleet.npz")
    rows = []
    for said in (drawn, replayed, {"name": "load_fleet", "path": str(whole)}):
        config = devices(said)
        training, islands = to_job(config)
        result = atoll.simulate(training, islands, devices=config.devices.build("devices"))
        rows.append([(row["clock"], row["replied"]) for row in result.metrics])
    assert rows[0] == rows[1] == rows[2]
    assert {replied for _, replied in rows[0]} != {10}
