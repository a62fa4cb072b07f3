"""The study of what privacy costs: accuracy against epsilon, with what each point promises."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError
from atoll.study import privacy_cost

pytestmark = pytest.mark.network

FEW = {"parties": 4, "rounds": 2, "seeds": 1}


@pytest.mark.slow
def test_accuracy_falls_with_epsilon_and_every_point_says_what_it_promises(tmp_path: Path) -> None:
    found = privacy_cost(atoll.data.digits(), [0.02, 60.0], ["ExampleDP"], **FEW)
    tight, loose = found.points
    assert tight.accuracy < 0.6 < loose.accuracy <= 1.0
    assert found.without > 0.8
    assert "epsilon 60 at delta 1e-05 for one example (add-remove neighbours) against the server" in loose.claim
    page = found.report(tmp_path / "cost.html").read_text(encoding="utf-8")
    assert "<svg" in page
    assert loose.claim in page


def test_a_training_that_is_refused_is_a_point_with_the_reason() -> None:
    found = privacy_cost(atoll.data.iris(), [1.0], ["ExampleDP"], clip=-1.0, **FEW)
    (point,) = found.points
    assert math.isnan(point.accuracy)
    assert "clip=-1.0" in point.claim
    assert found.plain()["points"][0]["accuracy"] is None
    assert "refused" in str(found)


def test_what_does_not_exist_is_refused() -> None:
    with pytest.raises(ConfigError, match="mechanism 'CentralPD'"):
        privacy_cost(atoll.data.iris(), [1.0], ["CentralPD"], **FEW)
    with pytest.raises(ConfigError, match="targets are no classes"):
        privacy_cost(_regression(), [1.0], **FEW)


def _regression() -> atoll.data.Dataset:
    draw = np.random.default_rng(0)
    return atoll.data.Dataset({"x": draw.normal(size=(40, 3)), "y": draw.normal(size=40)}, task="regression")
