"""Scripts of NVFlare's client API run unchanged. Needs the extra ``nvflare``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.errors import ConfigError, TaskError
from atoll.models import Script

HEAD = """
import nvflare.client as flare
import numpy as np

flare.init()
steps = {"north": 1, "south": 3}[flare.get_site_name()]
while flare.is_running():
    received = flare.receive()
    w = np.array(received.params["w"])
"""
FULL = (
    HEAD
    + """
    made = flare.FLModel(
        params={"w": w + steps * (received.current_round + 1)}, metrics={"accuracy": 0.5},
        meta={"NUM_STEPS_CURRENT_ROUND": steps},
    )
    flare.log("steps", steps, None)
    flare.send(made)
"""
)
DIFF = (
    HEAD
    + """
    difference = {"w": np.full(3, float(steps * (received.current_round + 1)))}
    flare.send(flare.FLModel(params_type=flare.ParamsType.DIFF, params=difference, meta={"NUM_STEPS_CURRENT_ROUND": steps}))
"""
)
HEAVY = HEAD + "\n    flare.send(flare.FLModel(params={'w': w}, optimizer_params={'m': w}))\n"
RANKED = "import nvflare.client as flare\nflare.init(rank='1')\n"
DATA = atoll.data.Dataset({"x": np.zeros((2, 1)), "y": np.zeros(2, np.int64)}, classes=2)
installed = pytest.mark.skipif(importlib.util.find_spec("nvflare") is None, reason="needs the extra nvflare")


def run(folder: Path, text: str, **settings: Any) -> Any:
    (folder / "train.py").write_text(text, encoding="utf-8")
    script = Script(script=str(folder / "train.py"), model={"w": np.zeros(3)}, speaks="nvflare", **settings)
    job = atoll.Training(model=script, selection=atoll.Everyone(), rounds=2)
    return atoll.simulate(job, atoll.data.Islands.from_datasets({"north": DATA, "south": DATA}), engine="inline")


@installed
@pytest.mark.parametrize("text", [FULL, pytest.param(DIFF, marks=pytest.mark.slow)], ids=["full", "difference"])
def test_a_script_runs_unchanged_and_weighs_by_its_steps(
    text: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """As NVFlare's FedAvg: (1 * 1 + 3 * 3) / 4 in round 1, and twice as much in round 2."""
    result = run(tmp_path, text)
    np.testing.assert_allclose(result.params["w"], np.full(3, 2.5 + 5.0))
    if text is FULL:
        assert result.metrics.last("accuracy") == 0.5
        assert "south: steps 3" in capfd.readouterr().out


@installed
@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [(HEAVY, "optimizer_params have no counterpart"), (RANKED, "rank=1"), (HEAD + "\n    break\n", "exit code 0")],
)
def test_what_has_no_counterpart_is_named(text: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=said):
        run(tmp_path, text)


@pytest.mark.skipif(importlib.util.find_spec("nvflare") is not None, reason="NVFlare is installed")
def test_without_nvflare_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"needs nvflare, which is not installed"):
        run(tmp_path, FULL)


def test_an_unknown_way_to_talk_is_named() -> None:
    with pytest.raises(ConfigError, match="speaks='fedml'"):
        Script(script="train.py", model={}, speaks="fedml")  # type: ignore[arg-type]
