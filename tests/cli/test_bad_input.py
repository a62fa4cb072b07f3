"""Bad input on the command line: a clear error with its remedy, the documented exit code, and nothing lost."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.cli import run
from atoll.cli.output import name_options
from atoll.core.errors import CheckpointError
from atoll.runs import RunFolder, yaml
from tests.project.test_remedies import commands

Typed = Callable[..., tuple[int, dict[str, Any], str]]

DIGITS = {"source": "digits", "partition": {"name": "iid", "parties": 6}}
WILD = {"data": {"source": "tests.support.parts_of_mine:one_wild_client"}, "selection": "Everyone"}
SMALL = {"name": "linear", "features": 3, "outputs": 2}
BLIND = {"reducer": "tests.support.parts_of_mine:Blind", "uplink": ["tests.support.parts_of_mine:Unsummable"]}
NEVER = {"devices": "tests.support.parts_of_mine:Never", "pacing": {"name": "Synchronous", "deadline": 5.0}}

CASES: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "unknown key": (
        {"algorithm": {"name": "FedAvg", "learnig_rate": 0.1}},
        2,
        "algorithm.learnig_rate=0.1 is not a setting. Did you mean 'lr'?",
        "the settings of FedAvg are: batch_size, decay, epochs, lr, server_lr, steps",
    ),
    "wrong type": ({"rounds": "ten"}, 2, "rounds='ten' should be a valid integer", "correct the value"),
    "empty clients": (
        {"data": {"source": "iris", "partition": {"name": "dirichlet", "parties": 60, "alpha": 0.01}}},
        3,
        "rows",
        "fewer parties",
    ),
    "more clients than rows": (
        {"data": {"source": "iris", "partition": {"name": "iid", "parties": 500}}},
        3,
        "500",
        "",
    ),
    "model that does not fit the labels": (
        {"data": DIGITS, "model": {"name": "linear", "features": 64, "outputs": 7}},
        3,
        "label «9» does not fit a model with 7 outputs",
        "give the model at least «10» outputs",
    ),
    "PyTorch model that does not fit the labels": (
        {"data": DIGITS, "model": {"name": "mlp", "features": 64, "outputs": 7}},
        3,
        "outputs",
        "",
    ),
    "stage that is not summable under a secure reducer": (
        BLIND,
        4,
        "Unsummable is not summable: its encodings cannot be added up, and Blind reveals sums only",
        "use a summable stage, or a plain reducer",
    ),
    "every update is not finite": (
        {"algorithm": {"name": "FedAvg", "lr": 1e308}},
        7,
        "0 of 3 replies can be used, fewer than the quorum of 1",
        "is not finite; look at that party's data, or lower the learning rate of a training",
    ),
    "nobody answers before the deadline": (
        NEVER,
        7,
        "0 of 3 parties answered within 5 s, fewer than the quorum of 1",
        "lengthen the deadline",
    ),
    "a task that raises": (
        {"algorithm": "tests.support.parts_of_mine:Faulty"},
        6,
        "ZeroDivisionError: a client divided by zero",
        "look at line ",
    ),
    "a model of one's own that is not there": (
        {"model": "nowhere:net"},
        2,
        "model.name='nowhere:net' cannot be imported",
        "",
    ),
}


@pytest.mark.parametrize(("change", "code", "what", "remedy"), CASES.values(), ids=CASES)
def test_bad_input(
    config: Path, settings: dict[str, Any], typed: Typed, change: dict[str, Any], code: int, what: str, remedy: str
) -> None:
    config.write_text(yaml.dump({**settings, **change}))
    found, result, said = typed("run", config, "--folder", "mine")
    error = result["error"]
    assert (found, error["exit_code"]) == (code, code)
    assert what in error["what"]
    assert remedy in error["remedy"]
    assert error["where"]
    # The panel says the same, and no traceback.
    assert f"{error['kind']} (exit {code})" in said
    assert "remedy:" in said
    assert "Traceback" not in said
    if RunFolder("mine").begun:
        assert RunFolder("mine").status() == "failed"
        assert RunFolder("mine").manifest()["error"]["what"] == error["what"]


def test_a_task_that_raises_names_task_request_and_client(config: Path, settings: dict[str, Any], typed: Typed) -> None:
    config.write_text(yaml.dump({**settings, "algorithm": "tests.support.parts_of_mine:Faulty"}))
    _, result, _ = typed("run", config, "--folder", "mine")
    where = result["error"]["where"]
    assert "task atoll.learn.linear:train()" in where
    assert "@1/train at client-" in where


def test_one_client_whose_update_is_not_finite_is_rejected_counted_and_named(
    config: Path, settings: dict[str, Any], typed: Typed
) -> None:
    config.write_text(yaml.dump({**settings, **WILD, "model": SMALL}))
    code, result, said = typed("run", config, "--folder", "mine")
    assert (code, result["rounds"]) == (0, 5)
    assert "round 1: the reply of client-3 was rejected: " in said
    assert "is not finite" in said
    rows = RunFolder("mine").metrics()
    hit = [row for row in rows if row["rejected"]]
    assert result["rejected"] == len(hit) >= 1
    assert all(list(row["rejected_clients"]) == ["client-3"] and row["replied"] == 3 for row in hit)
    assert "is not finite" in RunFolder("mine").report_file.read_text()
    assert result["accuracy"] is not None


def test_errors_can_count_as_silent_clients(config: Path, settings: dict[str, Any], typed: Typed) -> None:
    config.write_text(yaml.dump({**settings, "algorithm": "tests.support.parts_of_mine:Faulty", "errors": "drop"}))
    code, result, _ = typed("run", config, "--folder", "mine")
    assert code == 7
    assert "0 of 3 replies can be used" in result["error"]["what"]
    assert "3 tasks raised" in result["error"]["remedy"]


@pytest.mark.parametrize("file", ["manifest.json", "config.yaml"])
@pytest.mark.parametrize("content", [None, "{"])
def test_half_written_run_folders(config: Path, typed: Typed, file: str, content: str | None) -> None:
    run(["run", str(config), "--folder", "mine", "--no-report"])
    path = RunFolder("mine").path / file
    path.unlink()
    if content is not None:
        path.write_text(content)
    for command in (["report", "mine"], ["compare", "mine", "mine"]):
        code, result, _ = typed(*command)
        assert code == 8
        assert file in result["error"]["where"]
        assert result["error"]["remedy"]


def test_a_run_that_is_not_there(config: Path, typed: Typed) -> None:
    run(["run", str(config), "--no-report"])
    name = next(path.name for path in Path("runs").iterdir())
    code, result, _ = typed("report", name[:-1] + "2")
    assert code == 8
    assert f"Did you mean '{name}'?" in result["error"]["what"]


def test_a_full_disk_leaves_the_checkpoint_before(config: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch) -> None:
    run(["run", str(config), "--folder", "whole", "--no-report"])
    real, written = os.fsync, []

    def full(handle: int) -> None:
        written.append(handle)
        if len(written) > 20:  # in the middle of the rounds
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(handle)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        code, result, _ = typed("run", config, "--folder", "mine", "--no-report")
    assert code == 8
    assert "No space left on device" in result["error"]["what"]
    assert "the previous checkpoint is intact" in result["error"]["remedy"]
    assert RunFolder("mine").status() in ("failed", "interrupted")  # the manifest had no room either
    assert list(Path("mine/checkpoints").glob("generation-*.msg"))
    assert not list(Path("mine").rglob(".*.tmp"))
    code, _, said = typed("run", "mine", "--resume", "--no-report")
    assert code == 0
    assert "continuing after round" in said
    assert Path("mine/model.safetensors").read_bytes() == Path("whole/model.safetensors").read_bytes()
    assert Path("mine/metrics.jsonl").read_text() == Path("whole/metrics.jsonl").read_text()


def test_a_defect_is_a_short_panel_unless_debug(
    config: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from atoll.cli.commands import runs

    def broken(*_: Any) -> None:
        raise RuntimeError("wires crossed")

    monkeypatch.setattr(runs, "runs_in", broken)
    assert run(["runs"]) == 1
    said = capsys.readouterr().err
    assert "RuntimeError: wires crossed" in said
    assert "Traceback" not in said
    with pytest.raises(RuntimeError, match="wires crossed"):
        run(["runs", "--debug"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "No such command 'frobnicate'."),
        (["run"], "Missing argument"),
        (["demo", "--rounds", "0"], "Invalid value for '--rounds'"),
        (["runs", "--rot", "x"], "No such option: --rot"),
    ],
)
def test_command_lines_that_cannot_be_parsed(typed: Typed, words: list[str], said: str) -> None:
    code, result, _ = typed(*words)
    assert code == 2
    assert said in result["error"]["what"]
    assert "--help" in result["error"]["remedy"]


# Remedies at the command line name the options of the command that was typed.


SEMICOLONS, COMMAS = "age;died\n40,5;0\n50,1;1\n60,2;1\n30,3;0\n", 'age,died\n"40,5",0\n"50,1",1\n'


def _remedied(typed: Typed, *words: str | Path) -> tuple[int, str]:
    code, result, _ = typed(*words)
    return code, str(result.get("error", {}).get("remedy"))


def test_a_file_with_semicolons_is_read_as_its_remedies_say(typed: Typed, tmp_path: Path) -> None:
    """A hospital's German files: following each remedy leads to statistics."""
    file = tmp_path / "north.csv"
    file.write_text(SEMICOLONS, encoding="utf-8")
    code, remedy = _remedied(typed, "stats", file)
    assert (code, "--delimiter ';'" in remedy) == (3, True)
    code, remedy = _remedied(typed, "stats", file, "--delimiter", ";")
    assert (code, "--decimal ','" in remedy) == (3, True)
    code, result, _ = typed("stats", file, "--delimiter", ";", "--decimal", ",")
    assert code == 0
    assert result["global"]["age"]["mean"] == pytest.approx(45.275)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("trees", "FILE", "--label", "died", "--test", "FILE"), SEMICOLONS),
        (("trees", "FILE", "--label", "died", "--test", "FILE"), COMMAS),
        (("labels", "compare", "FILE", "--target", "died", "--keep", "1"), SEMICOLONS),
        (("labels", "compare", "FILE", "--target", "died", "--keep", "1"), COMMAS),
        (("fit", "glm", "FILE", "--label", "died"), SEMICOLONS),
    ],
)
def test_no_remedy_names_what_the_command_does_not_take(
    words: tuple[str, ...], text: str, typed: Typed, tmp_path: Path
) -> None:
    file = tmp_path / "north.csv"
    file.write_text(text, encoding="utf-8")
    code, remedy = _remedied(typed, *[str(file) if word == "FILE" else word for word in words])
    assert code == 3
    taken = commands()[" ".join(words[: 2 if words[0] == "labels" else 1])]
    assert set(re.findall(r"--[a-z-]+", remedy)) <= taken
    assert not re.search(r"\b(delimiter|decimal|encoding|drop|keep|categories)=", remedy), remedy


@pytest.mark.parametrize(
    ("remedy", "options", "told"),
    [
        ("set delimiter=';'", {"delimiter"}, "set --delimiter ';'"),
        ("write commas, or set delimiter=';'", set(), "write commas"),
        ("set delimiter=';'", set(), "correct the file: values between commas"),
        ("correct it, or leave it out with drop=['a']; or list them: categories={'a': [...]}", {"categories"},
         "correct it; or list them: --categories a=VALUE,VALUE"),
        ("continue it with resume=True", {"resume"}, "continue it with --resume"),
        ("continue it with resume=True", set(), "continue it with resume=True"),
        ("use Synchronous(quorum=3, decimal=',')", {"quorum"}, "use Synchronous(quorum=3, decimal=',')"),
    ],
)  # fmt: skip
def test_arguments_are_said_as_options(remedy: str, options: set[str], told: str) -> None:
    assert name_options(remedy, options).startswith(told)


def test_settings_of_a_file_stay_settings() -> None:
    assert name_options("set delimiter=';'", {"folder"}, settings=True) == "set delimiter=';'"


def test_a_folder_with_a_run_says_how_to_continue_where_the_reader_is(config: Path, typed: Typed) -> None:
    assert typed("run", config, "--folder", "mine", "--no-report")[0] == 0
    code, remedy = _remedied(typed, "run", config, "--folder", "mine", "--no-report")
    assert code != 0
    assert "--resume" in remedy
    with pytest.raises(CheckpointError, match="already contains") as found:
        atoll.simulate(sum_programs, {"a": 1}, folder="mine", progress=False)
    assert "resume=True" in str(found.value.remedy)
    assert "--" not in str(found.value.remedy)


async def sum_programs(fed: Any) -> int:
    """A program of one's own."""
    return len(fed.parties)
