"""HybridFL in a configuration: its estimators are parts inside a part."""

from __future__ import annotations

from typing import Any

import pytest

import atoll
from atoll.core.errors import AtollError
from atoll.learn.pacing.slack import ChanceConstrained, Forgetting
from atoll.pacing import HybridFL
from atoll.runs.config import parse_config, to_job

SLACK = {"name": "ChanceConstrained", "delta": 0.2, "base": {"name": "Forgetting", "memory": 0.8}}


def said(slack: Any = SLACK, **more: Any) -> dict[str, Any]:
    return {
        "data": {"source": {"name": "digits"}, "partition": {"name": "iid", "parties": 20}},
        "model": {"name": "linear", "features": 64, "outputs": 10},
        "rounds": 2,
        "selection": {"name": "Uniform", "count": 0.3},
        "topology": {"name": "Hierarchical", "groups": 4},
        "pacing": {"name": "HybridFL", "deadline": 400.0, "slack": slack},
        "devices": {"name": "mec", "drop_out": 0.3, "edges": 4},
        **more,
    }


def test_it_is_made_written_down_and_run():
    config = parse_config(said())
    job, data = to_job(config)
    assert job.pacing == HybridFL(deadline=400.0, slack=ChanceConstrained(delta=0.2, base=Forgetting(memory=0.8)))
    assert parse_config(config.plain()).plain() == config.plain()
    rows = atoll.simulate(job, data, devices=config.devices.build("devices")).metrics
    assert [row["replied"] for row in rows] == [6, 6]


@pytest.mark.parametrize(
    ("slack", "match"),
    [
        ("LateCuont", "'LateCuont' is not a known slack estimator. Did you mean 'LateCount'"),
        ({"name": "Forgetting", "memory": 1.5}, r"pacing\.slack\.memory=1\.5"),
    ],
)
def test_what_is_wrong_is_named(slack: Any, match: str):
    with pytest.raises(AtollError, match=match):
        parse_config(said(slack))
