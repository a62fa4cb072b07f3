"""`simulate(folder=...)` writes a run folder as the command line does, and its commands take it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll import FedAvg, Mean, Training, task
from atoll.core.errors import CheckpointError, DataError
from atoll.data import digits, iid
from atoll.models import linear
from atoll.report import compare_runs
from atoll.runs import RunFolder, read_model, runs_in

ISLANDS = iid(digits(), parties=4, seed=0)


def job(**changes: Any) -> Training:
    wanted = {
        "model": linear(64, 10),
        "algorithm": FedAvg(lr=0.1),
        "selection": atoll.Uniform(2),
        "rounds": 2,
        **changes,
    }
    return Training(**wanted)


def train(folder: Path, resume: bool = False, **changes: Any) -> Any:
    return atoll.simulate(job(**changes), ISLANDS, engine="inline", seed=3, folder=folder, resume=resume)


def test_it_has_the_files_of_a_run(tmp_path: Path) -> None:
    result = train(tmp_path / "mine", callbacks=[lambda row: None])
    folder = RunFolder(tmp_path / "mine")
    assert result.folder == folder.path
    assert folder.status() == "finished"
    assert folder.metrics() == json.loads(json.dumps(list(result.metrics)))
    settings = folder.settings()
    assert (settings["job"], settings["seed"], settings["engine"], settings["rounds"]) == ("training", 3, "inline", 2)
    assert settings["data"] == {"source": {"name": "digits"}, "clients": 4}
    assert settings["algorithm"]["name"] == "FedAvg"
    assert settings["algorithm"]["lr"] == 0.1
    assert "callbacks" not in settings
    saved = read_model(folder.model_file)
    assert all(np.array_equal(saved[name], value) for name, value in result.params.items())
    assert folder.data_file.exists()
    assert folder.devices_file.exists()
    assert sorted(folder.checkpoints.glob("generation-*.msg"))
    assert folder.manifest()["engine"]["name"] == "inline"


@pytest.mark.slow
def test_the_commands_take_it(tmp_path: Path, typed: Any) -> None:
    train(tmp_path / "runs" / "fast")
    train(tmp_path / "runs" / "slow", algorithm=FedAvg(lr=0.01))
    code, listed, _ = typed("runs", "--root", tmp_path / "runs")
    assert code == 0
    assert [(row["run"], row["status"], row["method"], row["rounds"], row["of"]) for row in listed["runs"]] == [
        ("fast", "finished", "FedAvg", 2, 2),
        ("slow", "finished", "FedAvg", 2, 2),
    ]
    code, made, _ = typed("report", tmp_path / "runs" / "fast")
    assert code == 0
    assert "FedAvg" in Path(made["report"]).read_text()
    rows = compare_runs(runs_in(tmp_path / "runs"))
    assert [row["settings"] for row in rows] == [{"algorithm.lr": 0.1}, {"algorithm.lr": 0.01}]
    code, refused, _ = typed("run", tmp_path / "runs" / "fast", "--resume")
    assert code == CheckpointError.exit_code
    assert "started from Python" in refused["error"]["what"]
    assert "resume=True" in refused["error"]["remedy"]


def test_it_resumes_and_refuses_to_be_overwritten(tmp_path: Path) -> None:
    train(tmp_path / "run")
    with pytest.raises(CheckpointError, match="already contains a run"):
        train(tmp_path / "run")
    resumed, whole = train(tmp_path / "run", resume=True, rounds=4), train(tmp_path / "whole", rounds=4)
    assert np.array_equal(resumed.params["weight"], whole.params["weight"])
    folder = RunFolder(tmp_path / "run")
    assert [row["round"] for row in folder.metrics()] == [1, 2, 3, 4]
    assert len(folder.manifest()["resumed"]) == 1
    assert folder.settings()["rounds"] == 4


def test_a_run_that_fails_says_so_and_one_without_any_result_can_start_again(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="63"):
        train(tmp_path / "run", model=linear(63, 10))
    folder = RunFolder(tmp_path / "run")
    assert folder.status() == "failed"
    assert "63" in folder.manifest()["error"]["what"]
    assert train(tmp_path / "run").reason == "all 2 rounds are done"
    assert folder.status() == "finished"


@task
def sums(island: Any, message: Any) -> Any:
    return {"x": Mean(island.data)}


class Anything:
    """A value that is no message."""


@pytest.mark.parametrize("value", [7.5, Anything()])
def test_a_program_keeps_what_is_a_message_and_returns_anything(tmp_path: Path, value: Any) -> None:
    async def program(fed: Any) -> Any:
        fed.record({"round": 1, "mean": float((await fed.sum(fed.parties, sums, {}))["x"])})
        return value

    made = atoll.simulate(program, {"a": 1.0, "b": 2.0}, engine="inline", folder=tmp_path / "run")
    assert made is value
    folder = RunFolder(tmp_path / "run")
    assert [row["mean"] for row in folder.metrics()] == [1.5]
    assert (folder.path / "result.msg").exists() == (value == 7.5)
    assert folder.settings()["job"] == "program"
