"""TensorBoard gets every number of every round; without the extra, its name."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import MissingExtraError
from atoll.report.trackers import flat, scalars
from atoll.runs import RunFolder, Stopping, execute, parse_config

ROW = {
    "slot": "main",
    "round": 3,
    "loss": 0.5,
    "selected": 4,
    "failed": "no",
    "clients/accuracy/values": [1.0],
    "ok": True,
}


def test_numbers_are_what_can_be_plotted() -> None:
    assert scalars(ROW) == {"loss": 0.5, "selected": 4.0}


def test_nested_settings_become_paths() -> None:
    tree = {"a": {"b": 1, "c": []}, "d": [{"e": None}, 2], "f": {}}
    assert flat(tree) == {"a.b": 1, "a.c": [], "d.0.e": None, "d.1": 2, "f": {}}


@pytest.fixture
def events() -> Any:
    """Reads the scalars of an event folder back with the format's own definition."""
    pytest.importorskip("tensorboardX")
    from tensorboardX.proto import event_pb2

    def read(folder: Path) -> dict[tuple[str, int], float]:
        found: dict[tuple[str, int], float] = {}
        for path in sorted(folder.glob("events*")):
            content, at = path.read_bytes(), 0
            while at < len(content):
                length = int.from_bytes(content[at : at + 8], "little")
                event = event_pb2.Event.FromString(content[at + 12 : at + 12 + length])
                found |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
                at += 16 + length
        return found

    return read


def test_tensorboard_has_every_round(settings: dict[str, Any], tmp_path: Path, events: Any) -> None:
    config = parse_config({**settings, "trackers": ["TensorBoard"]})
    folder, stopping = RunFolder(tmp_path / "run"), Stopping()
    execute(
        config, folder, stopping=stopping, report=False, on_record=lambda r: stopping.ask() if r["round"] == 2 else None
    )
    execute(config, folder, resume=True, report=False)
    found = events(folder.path / "tensorboard")
    for row in folder.metrics():
        for name, value in scalars(row).items():
            if name != "clock":  # stamped after the callbacks
                assert found[name, row["round"]] == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize(
    ("name", "module", "extra"), [("TensorBoard", "tensorboardX", "tensorboard"), ("MLflow", "mlflow", "mlflow")]
)
def test_without_the_extra_its_name_is_told(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, module: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MissingExtraError, match=rf'needs {module}.*pip install "atoll\[{extra}\]"'):
        execute(parse_config({**settings, "trackers": [name]}), RunFolder(tmp_path / "run"))


def test_mlflow_has_every_round(settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # the one store that the small package has
    where = (tmp_path / "mlruns").as_uri()
    tracker = {"name": "MLflow", "experiment": "small", "tracking_uri": where}
    folder = RunFolder(tmp_path / "run")
    execute(parse_config({**settings, "trackers": [tracker]}), folder, report=False)
    client = mlflow.MlflowClient(tracking_uri=where)
    (run,) = client.search_runs([client.get_experiment_by_name("small").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params["algorithm.lr"] == "0.1"
    losses = {m.step: m.value for m in client.get_metric_history(run.info.run_id, "loss")}
    assert losses == {row["round"]: pytest.approx(row["loss"]) for row in folder.metrics()}
