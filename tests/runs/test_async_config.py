"""Asynchronous pacings in a configuration, with staleness functions as parts inside a part."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.core.errors import AtollError
from atoll.pacing import FedAsync, FedBuff, HingeStaleness, PaceSteering, PartialBarrier, PolynomialStaleness, Tiered
from atoll.runs.config import parse_config, to_job
from atoll.runs.registries import registry


def said(pacing: Any) -> dict[str, Any]:
    return {
        "data": {"source": {"name": "digits"}, "partition": {"name": "iid", "parties": 8}},
        "model": {"name": "linear", "features": 64, "outputs": 10},
        "rounds": 3,
        "selection": {"name": "Uniform", "count": 4},
        "pacing": pacing,
        "devices": {"name": "exponential"},
    }


@pytest.mark.every(3)
@pytest.mark.parametrize(
    ("pacing", "made"),
    [
        (
            {"name": "FedAsync", "arrivals": 2, "staleness": {"name": "HingeStaleness", "b": 2}},
            FedAsync(arrivals=2, staleness=HingeStaleness(b=2)),
        ),
        ({"name": "FedBuff", "buffer": 3}, FedBuff(buffer=3, staleness=PolynomialStaleness(a=0.5))),
        ({"name": "PartialBarrier", "replies": 2, "max_delay": 4}, PartialBarrier(replies=2, max_delay=4)),
        ({"name": "Tiered", "tiers": 2}, Tiered(tiers=2)),
        ({"name": "PaceSteering", "goal": 6, "day": [0.5, 1.0]}, PaceSteering(goal=6, day=(0.5, 1.0))),
    ],
    ids=lambda x: x["name"] if isinstance(x, dict) else "",
)
def test_it_is_made_written_down_and_run(pacing: Any, made: Any):
    config = parse_config(said(pacing))
    job, data = to_job(config)
    assert job.pacing == made
    assert parse_config(config.plain()).plain() == config.plain()
    result = atoll.simulate(job, data, devices=config.devices.build("devices"))
    assert len(result.metrics) == 3
    assert min(result.metrics.column("replied")) > 0


def test_pacings_are_pacings():
    found = set(registry("pacing").parts())
    assert {"FedAsync", "FedBuff", "PartialBarrier", "Tiered", "PaceSteering", "Synchronous", "SAFA"} <= found
    assert not {"Pacing", "HingeStaleness"} & found
    assert set(registry("staleness").parts()) == {"ConstantStaleness", "HingeStaleness", "PolynomialStaleness"}


def test_what_is_wrong_is_named():
    with pytest.raises(AtollError, match=r"pacing\.staleness\.a=-1"):
        parse_config(said({"name": "FedAsync", "staleness": {"name": "PolynomialStaleness", "a": -1.0}}))
