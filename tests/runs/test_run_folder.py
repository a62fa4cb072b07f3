"""Run folders: what they hold, and what a damaged one says."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.core.errors import CheckpointError, ConfigError, DataError
from atoll.runs import RunFolder, execute, new_folder, parse_config, read_model, runs_in, write_model
from atoll.runs.folder import read_devices

DAY = datetime(2026, 3, 14, tzinfo=UTC)


@pytest.fixture
def done(settings: dict[str, Any], tmp_path: Path) -> RunFolder:
    """A finished run."""
    folder = RunFolder(tmp_path / "done")
    execute(parse_config(settings), folder, report=False)
    return folder


def test_names_are_readable_and_unique(tmp_path: Path) -> None:
    names = [new_folder(tmp_path, name, DAY).name for name in ("Digits, skewed!", "digits skewed", "", "x")]
    assert names == ["2026-03-14-digits-skewed-1", "2026-03-14-digits-skewed-2", "2026-03-14-run-1", "2026-03-14-x-1"]
    assert runs_in(tmp_path) == []
    assert runs_in(tmp_path / "absent") == []


def test_a_root_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CheckpointError, match="could not make a run folder: Not a directory"):
        new_folder(tmp_path / "file" / "runs", "x", DAY)


def test_a_finished_run_holds_everything(done: RunFolder, settings: dict[str, Any]) -> None:
    manifest = done.manifest()
    assert done.status() == manifest["status"] == "finished"
    assert manifest["reason"] == "all 5 rounds are done"
    assert manifest["engine"]["name"] == "inline"
    assert manifest["seed"] == 0
    assert manifest["versions"]["atoll"]
    assert manifest["started"] <= manifest["ended"]
    assert next(c.partition(".")[0] for c in manifest["citations"]).startswith("McMahan")
    assert [row["round"] for row in done.metrics()] == [1, 2, 3, 4, 5]
    assert done.config() == parse_config(settings)
    assert set(read_model(done.model_file)) == {"weight", "bias"}
    assert json.loads(done.data_file.read_text())["clients"] == 6
    devices = read_devices(done.devices_file)
    assert devices.answered.sum() == manifest["devices"]["answered"] == sum(row["replied"] for row in done.metrics())
    assert devices.bytes_up.sum() == manifest["bytes"]["bytes_up"]
    log = [json.loads(line) for line in done.log_file.read_text().splitlines()]
    assert {"time", "level", "logger", "message"} <= set(log[0])
    assert next(entry["message"] for entry in log) == "the run begins"
    assert [e["record"]["round"] for e in log if e["message"] == "round"] == [1, 2, 3, 4, 5]


def test_the_same_seed_gives_the_same_bytes(done: RunFolder, settings: dict[str, Any], tmp_path: Path) -> None:
    again = RunFolder(tmp_path / "again")
    execute(parse_config(settings), again, report=False)
    other = RunFolder(tmp_path / "other")
    execute(parse_config({**settings, "seed": 1}), other, report=False)
    assert again.model_file.read_bytes() == done.model_file.read_bytes() != other.model_file.read_bytes()
    assert again.metrics_file.read_bytes() == done.metrics_file.read_bytes()
    assert again.devices_file.read_bytes() == done.devices_file.read_bytes()


def test_a_folder_is_not_taken_over(done: RunFolder, settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(
        CheckpointError, match=r"the folder already contains a run .* Remedy: continue it with resume=True"
    ):
        execute(parse_config(settings), done)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(CheckpointError, match="the folder contains other files and no run"):
        execute(parse_config(settings), RunFolder(tmp_path / "mine"))
    assert (tmp_path / "mine" / "thesis.tex").read_text() == "x"


@pytest.mark.parametrize("resume", [False, True])
def test_a_run_that_was_refused_leaves_the_folder_free(settings: dict[str, Any], tmp_path: Path, resume: bool) -> None:
    folder, few = RunFolder(tmp_path / "run"), {"source": "iris", "partition": {"name": "iid", "parties": 500}}
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"data": few}, "get fewer than min_size"),
        ({"model": {"name": "linear", "features": 3, "outputs": 2}}, "features"),
    ]
    for wrong, match in wrongs:
        with pytest.raises(DataError, match=match):
            execute(parse_config({**settings, **wrong}), folder, report=False)
        assert (folder.status(), folder.blank) == ("failed", True)
    execute(parse_config(settings), folder, report=False, resume=resume)
    assert folder.status() == "finished"
    assert folder.manifest()["resumed"] == []
    assert folder.config().model.args["features"] == settings["model"]["features"]
    assert not folder.blank
    folder.write_manifest(status="failed")
    assert not folder.blank  # it has rounds
    folder.metrics_file.unlink()
    assert not folder.blank  # it has checkpoints


def test_one_process_a_folder(done: RunFolder, settings: dict[str, Any]) -> None:
    with done.lock() as free:
        assert free
        done.write_manifest(status="running")
        assert done.status() == "running"
        with pytest.raises(CheckpointError, match="another process is running in this folder"):
            execute(parse_config(settings), done, resume=True)
    assert done.status() == "interrupted"  # nobody holds it: whoever ran it is gone


def test_resuming_with_other_settings_is_refused(done: RunFolder, settings: dict[str, Any]) -> None:
    changed = parse_config({**settings, "seed": 3, "algorithm": {"name": "FedAvg", "lr": 0.5}})
    with pytest.raises(ConfigError, match=r"seed, algorithm\.lr differ from the run in the folder"):
        execute(changed, done, resume=True)


def test_more_rounds_go_on_where_it_ended(done: RunFolder, settings: dict[str, Any], tmp_path: Path) -> None:
    execute(parse_config({**settings, "rounds": 8}), done, resume=True, report=False)
    longer = RunFolder(tmp_path / "longer")
    execute(parse_config({**settings, "rounds": 8}), longer, report=False)
    assert done.model_file.read_bytes() == longer.model_file.read_bytes()
    assert done.devices_file.read_bytes() == longer.devices_file.read_bytes()
    assert [row["round"] for row in done.metrics()] == list(range(1, 9))
    assert done.config().rounds == 8


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("manifest.json", None, "the run's manifest cannot be read: No such file or directory .*manifest.json"),
        ("manifest.json", '{"format": 1, "sta', "the run's manifest cannot be read: .* Remedy: resume the run"),
        ("manifest.json", '{"format": 99}', "the manifest has another format"),
        ("config.yaml", None, r"the folder contains no run: config\.yaml is missing"),
        ("config.yaml", "data: [", r"the run's settings are invalid: not valid YAML.*config\.yaml"),
        ("config.yaml", "rouns: 3\n", r"the run's settings are invalid: .*rouns=3.*config\.yaml"),
        ("metrics.jsonl", '{"round": 1}\n{"rou\n{"round": 3}\n', r"the line is damaged: .*metrics\.jsonl, line 2"),
        ("data.json", "{", r"the file cannot be read: .*data\.json"),
        ("devices.json", "{", r"the record of the devices cannot be read: .*devices\.json"),
        ("devices.json", '{"population": 6}', r"the record of the devices cannot be read: .*positions.*devices\.json"),
    ],
)
def test_a_damaged_folder_names_the_file(done: RunFolder, file: str, content: str | None, said: str) -> None:
    from atoll.report.facts import facts_of

    path = done.path / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    with pytest.raises(CheckpointError, match=said) as caught:
        (done.config(), facts_of(done))
    assert caught.value.exit_code == 8
    assert caught.value.remedy


def test_a_last_line_that_a_crash_cut_short_is_passed_over(done: RunFolder) -> None:
    with done.metrics_file.open("a") as file:
        file.write('{"round": 6, "lo')
    assert len(done.metrics()) == 5


def test_damaged_checkpoints_name_the_file(done: RunFolder, settings: dict[str, Any]) -> None:
    before = done.metrics_file.read_bytes()
    for path in done.checkpoints.glob("generation-*.msg"):
        path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(CheckpointError, match=r"the file is damaged: .*generation-"):
        execute(parse_config(settings), done, resume=True)
    assert done.status() == "failed"
    assert done.manifest()["error"]["kind"] == "CheckpointError"
    assert done.metrics_file.read_bytes() == before  # nothing is lost by trying


def test_a_half_written_generation_falls_back_to_the_one_before(done: RunFolder, settings: dict[str, Any]) -> None:
    model = done.model_file.read_bytes()
    newest = max(done.checkpoints.glob("generation-*.msg"))
    newest.write_bytes(newest.read_bytes()[:100])
    execute(parse_config(settings), done, resume=True, report=False)
    assert done.model_file.read_bytes() == model
    assert [row["round"] for row in done.metrics()] == [1, 2, 3, 4, 5]


def test_models_are_read_back(tmp_path: Path) -> None:
    params = {"layer": {"weight": np.arange(6.0).reshape(2, 3).T, "bias": np.float32([1, 2])}}
    write_model(tmp_path / "m.safetensors", params)
    found = read_model(tmp_path / "m.safetensors")
    assert sorted(found) == ["layer/bias", "layer/weight"]
    assert np.array_equal(found["layer/weight"], params["layer"]["weight"])
    (tmp_path / "m.safetensors").write_bytes(b"nothing")
    with pytest.raises(CheckpointError, match="the model cannot be read"):
        read_model(tmp_path / "m.safetensors")
    with pytest.raises(CheckpointError, match="the model cannot be read: No such file"):
        read_model(tmp_path / "absent.safetensors")
