"""What is read of a Flower app's folder, and refused by name; Flower itself is not needed for that."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from atoll.bridges.flower import FlowerApp, changes_of
from atoll.client.connection import name_wrong_count
from atoll.core.errors import AtollError, CompositionError, ConfigError, MissingExtraError

APPS = Path(__file__).parent / "apps"


def write(folder: Path, text: str) -> Path:
    (folder / "pyproject.toml").write_text(text, encoding="utf-8")
    return folder


COMPONENTS = '[tool.flwr.app.components]\nserverapp = "a.b:app"\nclientapp = "a.c:app"\n'


def test_an_app_is_what_its_project_says() -> None:
    app = FlowerApp.read(APPS / "quickstart_numpy")
    assert (app.name, app.serverapp, app.nodes) == ("quickstart-numpy", "quickstart_numpy.server_app:app", 4)
    assert app.configured({"learning-rate": 0.5}) == {"num-server-rounds": 3, "learning-rate": 0.5, "out": ""}


def test_configuration_is_flat_as_in_flower(tmp_path: Path) -> None:
    app = FlowerApp.read(write(tmp_path, COMPONENTS + '[tool.flwr.app.config]\na.b = 1\na.c.d = "x"\n'))
    assert app.config == {"a.b": 1, "a.c.d": "x"}
    assert app.nodes == 10


def test_changes_are_written_as_in_toml() -> None:
    assert changes_of("a=1 b.c=0.5 d=\"two words\" e=true f='x'") == {
        "a": 1,
        "b.c": 0.5,
        "d": "two words",
        "e": True,
        "f": "x",
    }
    for words in ("a", "a=x", "a=[1]"):
        with pytest.raises(ConfigError, match="is not KEY=VALUE"):
            changes_of(words)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("", ConfigError, "serverapp=None"),
        ("x = ", ConfigError, "the app cannot be read"),
        (COMPONENTS.replace("a.c:app", "a.c"), ConfigError, "clientapp='a.c'"),
        (COMPONENTS + 'agentapp = "a.d:app"\n', CompositionError, "the component 'agentapp' has no counterpart"),
        (COMPONENTS + "[tool.flwr.app.config]\na = [1, 2]\n", ConfigError, r"a=\[1, 2\]"),
        (
            COMPONENTS + '[tool.flwr.federations]\ndefault = "far"\n[tool.flwr.federations.far]\naddress = "1.2.3.4:9093"\n',
            CompositionError, "the default federation is a SuperLink at '1.2.3.4:9093'",
        ),
        (
            COMPONENTS + '[tool.flwr.federations]\ndefault = "here"\n[tool.flwr.federations.here]\noptions.num-supernodes = 0\n',
            ConfigError, "num-supernodes=0",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_carried_is_named(text: str, error: type[AtollError], said: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=said):
        FlowerApp.read(write(tmp_path, text))


def test_a_setting_that_the_app_lacks_is_named() -> None:
    with pytest.raises(ConfigError, match="the app has no setting 'rounds'"):
        FlowerApp.read(APPS / "quickstart_numpy").configured({"rounds": 3})


@pytest.mark.skipif(importlib.util.find_spec("flwr") is not None, reason="Flower is installed")
def test_without_flower_the_extra_is_named() -> None:
    from atoll.bridges.flower import flower_program

    with pytest.raises(MissingExtraError, match=r"A Flower app needs flwr.*atoll\[flower\]"):
        flower_program("a:app", "b:app")


def test_an_app_becomes_a_job_of_plain_settings(tmp_path: Path) -> None:
    from atoll.bridges.flower import job_of
    from atoll.runtime.job_spec import parse_job

    app = FlowerApp.read(APPS / "quickstart_numpy")
    made: dict[str, Any] = job_of(app, {"num-server-rounds": 2}, APPS)
    assert made["source"] == "quickstart_numpy"
    assert made["arguments"]["config"]["num-server-rounds"] == 2
    assert parse_job({**made, "source": str(app.folder)}).name == "quickstart-numpy"


@pytest.mark.parametrize("count", [-1, -0.5, float("nan"), float("inf"), [3]])
def test_a_clients_count_that_is_no_weight_is_named(count: Any) -> None:
    told = [["arrays", "arrays", []], ["metrics", "metrics", [["train_loss", -1.0], ["num-examples", count]]]]
    assert name_wrong_count(told, "num-examples").startswith(f"metrics['num-examples'] = {count!r}: count the rows")


def test_a_count_of_0_or_none_is_flowers_own_to_judge() -> None:
    assert name_wrong_count([["metrics", "metrics", [["num-examples", 0], ["train_loss", -1.0]]]], "num-examples") == ""
    assert name_wrong_count([["config", "config", [["num-examples", -1]]]], "num-examples") == ""
