"""Programs between sites, data of other kinds, and labels that only some sites have."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atoll.cli import run as command
from atoll.cli.commands.run import sentence
from atoll.core.errors import CheckpointError, ConfigError, DataError, JobError, PolicyError
from atoll.data import Dataset, Islands
from atoll.runs import RunFolder
from atoll.runtime.job_spec import load_job, parse_job
from atoll.runtime.worker.at_server import JobFolder
from atoll.runtime.worker.sitedata import SitePopulation
from tests.support.work_toys import held, load_from, sites_of


class Records(list[int]):
    """Data of a program's own kind."""


def test_a_program_over_data_of_its_own_kind_with_a_further_party(tmp_path: Path) -> None:
    job = {"job": "program", "program": "tests.support.work_models:Tally", "arguments": {"times": 2}}
    sites = sites_of({"a": Records([1, 2]), "b": Records([3])})
    result = held(job, sites, tmp_path)
    assert result["result"] == {"sum": 12, "parties": ["a", "b"], "others": ["judge"]}
    assert [row["sum"] for row in JobFolder(tmp_path / "server").metrics()] == [12]
    assert result["bytes_up"] > 0
    assert result["bytes_down"] > 0
    assert result["model"] is None
    said = sentence(result)
    assert said.splitlines()[-1] == 'result: {"sum": 12, "parties": ["a", "b"], "others": ["judge"]}'
    assert r"\[bold]" in sentence({**result, "result": "[bold]"})  # it is no markup
    assert "0 B up" not in said


@pytest.mark.slow
def test_what_came_out_of_a_job_is_reported_listed_and_compared_like_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folders are as `atoll result` fetches them: the modules that the settings name are not there."""
    rows = Dataset({"x": np.ones((3, 2)), "y": [0, 1, 1]})
    tally = {
        "job": "program",
        "program": "tests.support.work_models:Tally",
        "arguments": {"times": 2},
        "sites": ["a", "b"],
    }
    linear = {"model": {"name": "linear", "features": 2, "outputs": 2}, "rounds": 2, "evaluation": {"clients": -1}}
    held(tally, sites_of({"a": Records([1, 2]), "b": Records([3])}), tmp_path / "tally")
    held(linear, sites_of({"a": rows, "b": rows}), tmp_path / "linear")
    held({**linear, "rounds": 1}, sites_of({"a": rows, "b": rows}), tmp_path / "short")
    for name in ("tally", "linear", "short"):
        fetched = tmp_path / "runs" / name
        fetched.mkdir(parents=True)
        for file in (tmp_path / name / "server").iterdir():
            if file.is_file() and not file.name.startswith("."):
                (fetched / file.name).write_bytes(file.read_bytes())
    monkeypatch.setitem(sys.modules, "work_models", None)
    root = ["--root", str(tmp_path / "runs"), "--json"]

    for name in ("tally", "linear"):
        assert command(["report", name, *root]) == 0
        assert "tests.support.work_models:Tally" in (tmp_path / "runs" / "tally" / "report.html").read_text(
            encoding="utf-8"
        )
    capsys.readouterr()
    assert command(["runs", *root]) == 0
    listed = {row["run"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    shown = {name: [row[key] for key in ("status", "data", "method", "rounds", "of")] for name, row in listed.items()}
    assert shown == {
        "tally": ["finished", "a, b", "tests.support.work_models:Tally", 1, None],
        "linear": ["finished", "all sites", "FedAvg", 2, 2],
        "short": ["finished", "all sites", "FedAvg", 1, 1],
    }
    assert command(["compare", "linear", "short", *root]) == 0
    assert [row["settings"] for row in json.loads(capsys.readouterr().out)["runs"]] == [{"rounds": 2}, {"rounds": 1}]
    with pytest.raises(CheckpointError, match="results of a job between sites") as found:
        RunFolder(tmp_path / "runs" / "tally").config()
    assert "atoll clone" in str(found.value.remedy)


def test_a_training_needs_a_data_set_at_every_site(tmp_path: Path) -> None:
    job = {"model": {"name": "linear", "features": 2, "outputs": 2}}
    rows = Dataset({"x": np.ones((3, 2)), "y": [0, 1, 1]})
    with pytest.raises(JobError, match=r"its data has a form of its own.*\(in site 'b'\)"):
        held(job, sites_of({"a": rows, "b": Records([3])}), tmp_path)


@pytest.mark.parametrize(
    ("job", "match"),
    [
        (
            {"job": "program", "program": "tests.support.work_models:nothing"},
            r"'tests.support.work_models:nothing' cannot be imported",
        ),
        (
            {"job": "program", "program": "tests.support.work_models:Tally", "arguments": {"times": 1, "tims": 2}},
            r"does not take these arguments: .*'tims'",
        ),
        (
            {"job": "program", "program": "tests.support.work_models:logistic"},
            r"made a SGDClassifier, which is not a program",
        ),
        (
            {"job": "program", "program": "tests.support.work_models:tally", "arguments": {"fed": 1}},
            r"does not take these arguments",
        ),
    ],
)
def test_a_program_that_is_none_is_refused(job: dict[str, Any], match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        parse_job(job).made().prepare(None)
    if "made a" in match:  # which only a call can tell
        parse_job(job)
        return
    with pytest.raises(ConfigError, match=match):
        parse_job(job)


@pytest.mark.parametrize(
    ("module", "match"),
    [
        (
            "def mains(fed):\n    return 3\n",
            r"has no attribute 'main'\. Did you mean 'mains'\? \(in .*program\).*define it in of_mine",
        ),
        (
            "import no_such_package\n",
            r"it imports no_such_package, which is not installed here \(in .*program\).*or put it into the folder that `source` names",
        ),
        ("", r"'of_mine:main' cannot be imported: module 'of_mine' has no attribute 'main'"),
        ("def main(fed):\n    return 3\n", r"of_mine:main takes a federation and is not async.*write `async def main"),
        ("main = 3\n", r"'of_mine:main' is a int"),
        ("1 / 0\n", r"'of_mine:main' cannot be imported: ZeroDivisionError: division by zero"),
        ("async def main(fed, of):\n    return 3\n", r"does not take these arguments: missing.*'of'"),
        ("async def main(fed):\n    return 3\n", None),
    ],
)
def test_a_program_is_looked_at_before_it_is_handed_in(tmp_path: Path, module: str, match: str | None) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "of_mine.py").write_text(module)
    (tmp_path / "job.yaml").write_text("source: code\njob: program\nprogram: of_mine:main\n")

    if match is None:
        load_job(tmp_path)
        return
    with pytest.raises(ConfigError, match=match):
        load_job(tmp_path)


def test_a_program_without_its_source_is_told_where_modules_of_jobs_are() -> None:
    said = r"No module named 'of_mine' \(in .*program\).*in the folder that `source` names or installed"
    with pytest.raises(ConfigError, match=said):
        parse_job({"job": "program", "program": "of_mine:main"})


def test_sites_with_other_labels_learn_one_model(tmp_path: Path) -> None:
    rng = np.random.Generator(np.random.PCG64(0))
    centres = {"ill": (4.0, 0.0), "well": (0.0, 4.0), "dead": (-4.0, -4.0)}

    def site(*names: str) -> Dataset:
        x = np.concatenate([rng.normal(size=(40, 2)) + centres[n] for n in names])
        columns = {"x": x, "y": np.repeat([0, 1], 40)}
        return Dataset(columns, task="classification", labels=names, features=("height", "weight"))

    job = {
        "model": {"name": "linear", "features": 2, "outputs": 3},
        "algorithm": {"name": "FedAvg", "lr": 0.5, "epochs": 2},
        "rounds": 8,
        "evaluation": {"clients": -1},
    }
    held(job, sites_of({"a": site("ill", "well"), "b": site("dead", "ill"), "c": site("well", "dead")}), tmp_path)
    about = json.loads(JobFolder(tmp_path / "server").data_file.read_text())
    assert (about["labels"], about["features"]) == (["dead", "ill", "well"], ["height", "weight"])
    # Were the codes each site's own, every second row would have another's label.
    assert JobFolder(tmp_path / "server").metrics()[-1]["clients/accuracy"] > 0.95


def test_a_class_of_one_site_alone_is_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def site(*names: str) -> Dataset:
        return Dataset({"x": np.eye(4)[: len(names)], "y": range(len(names))}, task="classification", labels=names)

    job = {"model": {"name": "linear", "features": 4, "outputs": 2}, "rounds": 1}
    sites = {"a": site("benign", "malignant"), "b": site("benign", "malignant", "malignnat")}
    said = (
        r"have 3 classes, 'benign', 'malignant', 'malignnat', and the model has 2 outputs; "
        r"site 'b' alone has the class 'malignnat' \(in Linear\.outputs\)\. "
        r"Remedy: correct the label there first.*if it is a class, give the model at least 3 outputs"
    )
    with pytest.raises(DataError, match=said):
        held(job, sites_of(sites), tmp_path / "few")
    caplog.clear()
    held({**job, "model": {**job["model"], "outputs": 3}}, sites_of(sites), tmp_path / "enough")
    assert [r.getMessage() for r in caplog.records if r.levelname == "WARNING"] == [
        "site 'b' alone has the class 'malignnat': if that is a misspelling, correct it there"
    ]
    more = {**sites, "a": sites["b"]}
    with pytest.raises(DataError, match=r"the model has 2 outputs \(in .*Remedy: give the model at least 3 outputs"):
        held(job, sites_of(more), tmp_path / "known")


def test_a_site_shows_its_own_clients_only() -> None:
    rows = Dataset({"x": np.arange(6.0).reshape(6, 1), "y": np.zeros(6)})
    own = Islands.from_datasets({"p": rows.take([0, 1]), "q": rows.take([2])})
    population = SitePopulation(["a", "b/p", "b/q"], [3, 2, 1], [1, 2], own)
    assert len(population) == 3
    assert population.shard(2)["x"].tolist() == [[2.0]]
    x, offsets = population.gather([2, 1], "x")
    assert (x.ravel().tolist(), offsets.tolist()) == ([2.0, 0.0, 1.0], [0, 1, 3])
    with pytest.raises(PolicyError, match="the data of 'a' are not at this site"):
        population.shard(0)


def test_a_connection_lives_in_the_thread_of_the_tasks_and_another_in_that_of_the_roles(tmp_path: Path) -> None:
    (tmp_path / "ledgers_of_mine.py").write_text(
        "import sqlite3\ndef connect(costs):\n    made = sqlite3.connect(':memory:')\n"
        "    made.execute('create table visits (cost real)')\n"
        "    made.executemany('insert into visits values (?)', [(cost,) for cost in costs])\n    return made\n"
        "class Clinic:\n    def __init__(self, costs):\n        self.kept = connect(costs)\n"
    )
    spec = {"factory": "ledgers_of_mine:connect", "folder": str(tmp_path)}
    sites = {"a": load_from({**spec, "arguments": {"costs": [1, 2]}}, "a")}
    sites["b"] = load_from({**spec, "arguments": {"costs": [4]}}, "b")
    result = held({"job": "program", "program": "tests.support.work_models:accounts"}, sites, tmp_path / "run")
    assert result["result"] == {"sums": [7.0, 7.0], "most": 6.0}
    # What holds a connection, and is none, lives in the thread of the tasks too.
    whole = {"a": load_from({**spec, "factory": "ledgers_of_mine:Clinic", "arguments": {"costs": [1, 2]}}, "a")}
    assert (
        held({"job": "program", "program": "tests.support.work_models:kept"}, whole, tmp_path / "kept")["result"] == 3.0
    )
