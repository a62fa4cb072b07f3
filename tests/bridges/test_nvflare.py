"""Scripts of NVFlare's client API run unchanged, and the page about them is true. What runs a script needs the extra ``nvflare``."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.bridges.nvflare import FlareApi
from atoll.core.errors import ConfigError, DataError, TaskError
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


class Answered:
    """A connection's side of one round."""

    name, settings = "north", {}

    def __init__(self) -> None:
        self.answers: list[Any] = []

    def rounds(self) -> Any:
        yield SimpleNamespace(
            model={"w": np.ones(3)},
            round=1,
            kind="train",
            reply=lambda *given, **named: self.answers.append((given, named)),
        )


@pytest.fixture
def flare_api(monkeypatch: pytest.MonkeyPatch) -> FlareApi:
    """The functions behind ``flare.init`` and its like, with a model of the same fields where NVFlare is not installed."""

    class Model(SimpleNamespace):
        def __init__(self, params: Any = None, **more: Any) -> None:
            fields = {"params_type": None, "optimizer_params": None, "metrics": None, "meta": {}, **more}
            super().__init__(params=params, **fields)

    standing_in = SimpleNamespace(FLModel=Model, ParamsType=SimpleNamespace(FULL="FULL", DIFF="DIFF"))
    monkeypatch.setitem(sys.modules, "nvflare.app_common.abstract.fl_model", standing_in)
    return FlareApi(Answered())  # type: ignore[arg-type]


def test_a_rank_other_than_0_is_refused_by_name(flare_api: FlareApi) -> None:
    flare_api.init()
    flare_api.init(rank="0")
    with pytest.raises(ConfigError, match=r"rank=1.*rank 0 speak"):
        flare_api.init(rank="1")


def test_an_optimizers_state_and_an_answer_to_nothing_are_refused_by_name(flare_api: FlareApi) -> None:
    received = flare_api.receive()
    assert (received.current_round, received.params["w"].tolist()) == (0, [1.0, 1.0, 1.0])
    received.optimizer_params = {"m": np.ones(3)}
    with pytest.raises(DataError, match="optimizer_params have no counterpart"):
        flare_api.send(received)
    difference = type(received)({"w": np.full(3, 2.0)}, params_type="DIFF", meta={"NUM_STEPS_CURRENT_ROUND": 5})
    flare_api.send(difference)
    ((params,), named) = flare_api._fed.answers[0]  # type: ignore[attr-defined]
    assert (params["w"].tolist(), named["examples"]) == ([3.0, 3.0, 3.0], 5.0)
    with pytest.raises(DataError, match=r"no model was received.*flare.receive\(\) first"):
        flare_api.send(difference)


@pytest.mark.parametrize("steps", [-5, float("nan"), float("inf"), 2.0**54, "7", None])
def test_steps_that_are_no_weight_are_refused_by_name(flare_api: FlareApi, steps: Any) -> None:
    received = flare_api.receive()
    received.meta = {"NUM_STEPS_CURRENT_ROUND": steps}
    with pytest.raises(DataError, match=r"meta\['NUM_STEPS_CURRENT_ROUND'\] = .*flare.send.*count the local steps"):
        flare_api.send(received)


@pytest.mark.parametrize(
    ("meta", "weight"),
    [({}, 1.0), ({"NUM_STEPS_CURRENT_ROUND": 0}, 0.0), ({"NUM_STEPS_CURRENT_ROUND": np.int64(3)}, 3.0)],
)
def test_steps_are_the_weight_and_1_without_a_word(flare_api: FlareApi, meta: dict[str, Any], weight: float) -> None:
    received = flare_api.receive()
    received.meta = meta
    flare_api.send(received)
    assert flare_api._fed.answers[0][1]["examples"] == weight  # type: ignore[attr-defined]


PAGE = Path(__file__).resolve().parents[2] / "docs" / "coming-from" / "nvflare.md"
# What the page's script has of its own, for a model of three numbers.
AROUND = """
class Model:
    def load_state_dict(self, params):
        self.w = np.array(params["w"])

    def state_dict(self):
        return {"w": self.w}


def rows_of(site):
    return {"north": 1, "south": 3}[site]


def train(model, rows, epochs, lr):
    model.w = model.w + rows * epochs * lr


import numpy as np

model, steps = Model(), 2
"""


@installed
@pytest.mark.slow
def test_the_script_of_the_page_runs(tmp_path: Path) -> None:
    """Two rounds, each adds the mean of 1 and 3 times 2 epochs times 0.1."""
    found = re.search(r"```python\n# client.py\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    result = run(tmp_path, AROUND + found[1])
    np.testing.assert_allclose(result.params["w"], np.full(3, 0.8))


@pytest.mark.skipif(importlib.util.find_spec("nvflare") is not None, reason="NVFlare is installed")
@pytest.mark.network
def test_without_nvflare_the_extra_is_named(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"needs nvflare, which is not installed"):
        run(tmp_path, FULL)


def test_an_unknown_way_to_talk_is_named() -> None:
    with pytest.raises(ConfigError, match="speaks='fedml'"):
        Script(script="train.py", model={}, speaks="fedml")  # type: ignore[arg-type]
