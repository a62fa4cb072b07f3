"""Jobs that are no trainings, through the contract alone: files, rows, stop rules, resuming, reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.cli import run as command
from atoll.core.errors import ConfigError
from atoll.core.message import decode
from atoll.rounds import ProgramJob, Target, each_round
from atoll.runs import RunFolder, Stopping, execute, json_schema, parse_config
from tests.runs import jobs_of_mine

DATA = {"source": "iris", "partition": {"name": "iid", "parties": 5, "seed": 1}}
MEDIAN: dict[str, Any] = {
    "job": "program",
    "data": DATA,
    "program": "tests.runs.jobs_of_mine:median",
    "arguments": {"low": 0.0, "high": 10.0},
    "rounds": 12,
}


def true_median() -> float:
    islands = parse_config(MEDIAN).islands()
    return float(np.median(np.concatenate([np.asarray(shard.dataset()["x"])[:, 0] for shard in islands])))


def test_a_program_has_a_folder_rows_and_a_report(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    result = execute(parse_config(MEDIAN), folder)
    assert result.reason == "all 12 rounds are done"
    assert result.outcome == pytest.approx(true_median(), abs=10 / 2**12)
    assert decode((folder.path / "result.msg").read_bytes()) == result.outcome
    rows = folder.metrics()
    assert [row["round"] for row in rows] == list(range(1, 13))
    assert folder.manifest()["result"] == result.outcome
    assert folder.status() == "finished"
    assert "error" in folder.reached()
    assert folder.report_file.exists()


def test_a_stop_rule_ends_a_program_and_holds_after_a_resume(tmp_path: Path) -> None:
    config = parse_config({**MEDIAN, "stop": [{"name": "Target", "metric": "error", "value": 0.1}]})
    whole = execute(config, RunFolder(tmp_path / "run"), report=False)
    assert whole.reason.startswith("error = 0.07")
    assert len(whole.metrics) == 7
    again = execute(config, RunFolder(tmp_path / "run"), resume=True, report=False)
    assert (again.outcome, again.reason, len(again.metrics)) == (whole.outcome, whole.reason, 7)


def test_an_interrupted_program_goes_on_to_the_same_end(tmp_path: Path) -> None:
    stopping = Stopping()

    def watch(row: dict[str, Any]) -> None:
        if row["round"] == 4:
            stopping.ask()

    whole, folder = (
        execute(parse_config(MEDIAN), RunFolder(tmp_path / "whole"), report=False),
        RunFolder(tmp_path / "run"),
    )
    cut = execute(parse_config(MEDIAN), folder, stopping=stopping, on_record=watch, report=False)
    assert (cut.reason, len(cut.metrics), folder.status()) == ("interrupted", 4, "interrupted")
    rest = execute(parse_config(MEDIAN), folder, resume=True, report=False)
    assert rest.outcome == whole.outcome
    assert [row["error"] for row in folder.metrics()] == [row["error"] for row in whole.metrics]


@pytest.mark.slow
def test_commands_run_list_compare_and_report_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from atoll.runs import yaml

    monkeypatch.chdir(tmp_path)
    Path("median.yaml").write_text(yaml.dump({**MEDIAN, "name": "median"}))
    for rounds in (3, 5):
        assert command(["run", "median.yaml", "--json", "--no-report", "--set", f"rounds={rounds}"]) == 0
        said = json.loads(capsys.readouterr().out)
    assert said["rounds"] == 5
    assert said["result"] == pytest.approx(true_median(), abs=10 / 2**5)
    assert command(["runs", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)["runs"]
    assert (first["job"], first["method"], second["of"]) == ("program", "tests.runs.jobs_of_mine:median", 5)
    assert command(["compare", first["run"], second["run"]]) == 0
    assert command(["report", first["run"]]) == 0


def test_a_kind_of_ones_own_is_named_by_its_class(tmp_path: Path) -> None:
    said = {"job": "tests.runs.jobs_of_mine:Largest", "data": DATA, "column": 2}
    folder = RunFolder(tmp_path / "run")
    result = execute(parse_config(said), folder)
    assert (folder.path / "largest.txt").read_text() == repr(result.outcome)
    assert result.outcome == pytest.approx(6.9)
    assert folder.config().made() == jobs_of_mine.Largest(2)
    with pytest.raises(ConfigError, match=r"colum=3 is not a setting\. Did you mean 'column'"):
        parse_config({"job": "tests.runs.jobs_of_mine:Largest", "data": DATA, "colum": 3})


def test_the_schema_of_a_kind_has_its_settings_alone() -> None:
    schema = json_schema("program")
    assert schema["properties"]["job"]["const"] == "program"
    assert {"program", "arguments", "stop"} <= set(schema["properties"])
    assert "algorithm" not in schema["properties"]


def test_a_live_program_is_a_job_too() -> None:
    islands = parse_config(MEDIAN).islands()
    job = ProgramJob(jobs_of_mine.median, {"low": 0.0, "high": 10.0}, stop=[Target("error", 1.0)])
    result = atoll.simulate(job, islands)
    assert len(result.metrics) == 4
    assert result.devices.answered.sum() == 4 * 5
    with pytest.raises(AttributeError, match=r"the result of a ProgramJob has no 'model'"):
        _ = result.model


def test_a_round_that_records_nothing_is_refused() -> None:
    async def silent(fed: Any) -> None:
        for _ in each_round(fed, most=2):
            pass

    with pytest.raises(ConfigError, match=r"round 1 recorded nothing.*call fed\.record"):
        atoll.simulate(silent, {"a": [1.0]})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"job": "progam"}, r"job='progam' is not a kind of job\. Did you mean 'program'"),
        ({"job": {"kind": "trees"}}, "job={'kind': 'trees'} is not a kind of job"),
        ({"program": "median"}, r"program='median' is not module:name"),
        ({"arguments": {"low": 0.0}}, r"does not take these arguments: missing a required argument: 'high'"),
        ({"rounds": 0}, r"rounds=0"),
        ({"algorithm": "FedAvg"}, r"algorithm='FedAvg' is not a setting"),
    ],
)
def test_what_cannot_be_run_is_refused(change: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_config({**MEDIAN, **change})
