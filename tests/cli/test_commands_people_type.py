"""Every command, with --json and without."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import atoll
from atoll.cli import run
from atoll.cli.app import GROUPS, app
from atoll.cli.commands import demo, known
from atoll.models.linear_model import Linear
from atoll.runs import RunFolder, yaml

Typed = Callable[..., tuple[int, dict[str, Any], str]]


def test_run_and_list(config: Path, typed: Typed) -> None:
    code, result, said = typed("run", config, "--set", "algorithm.lr=2e-1", "--set", "rounds=3")
    assert code == 0
    assert (result["status"], result["rounds"], result["reason"]) == ("finished", 3, "all 3 rounds are done")
    folder = RunFolder(result["folder"])
    assert folder.path.parent == Path("runs")
    assert folder.config().algorithm.args["lr"] == 0.2
    assert result["accuracy"] == folder.metrics()[-1]["test/accuracy"]
    assert Path(result["report"]).exists()
    assert Path(result["model"]).exists()
    assert "small: round 1/3 accuracy" in said
    assert "small: round 3/3" in said
    code, listed, _ = typed("runs")
    assert code == 0
    (row,) = listed["runs"]
    assert (row["run"], row["status"], row["rounds"], row["of"]) == (result["run"], "finished", 3, 3)
    assert (row["data"], row["job"], row["method"]) == ("iris", "training", "FedAvg")


def test_without_json_people_get_words_on_stdout(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", str(config), "--folder", "mine", "--engine", "inline"]) == 0
    said = capsys.readouterr()
    assert said.out.startswith("mine: accuracy ")
    assert "report: mine/report.html" in said.out
    assert run(["runs", "--root", "."]) == 0
    assert "mine" in capsys.readouterr().out
    assert run(["runs", "--root", "nowhere"]) == 0
    assert capsys.readouterr().out == "There are no runs below nowhere yet.\n"


def test_a_damaged_run_does_not_hide_the_others(config: Path, typed: Typed) -> None:
    typed("run", config, "--no-report")
    _, second, _ = typed("run", config, "--no-report")
    (Path(second["folder"]) / "manifest.json").write_text("{")
    _, listed, _ = typed("runs")
    assert [row["status"] for row in listed["runs"]] == ["finished", "unreadable"]
    assert "manifest.json" in listed["runs"][1]["error"]
    assert run(["runs"]) == 0


@pytest.mark.slow
def test_report_again(config: Path, typed: Typed, tmp_path: Path) -> None:
    _, made, _ = typed("run", config, "--no-report")
    assert made["report"] is None
    _, result, _ = typed("report", made["run"])
    assert result["report"] == str(Path(made["folder"]) / "report.html")
    _, result, _ = typed("report", made["folder"], "--output", tmp_path / "elsewhere.html")
    assert Path(result["report"]).read_bytes() == (Path(made["folder"]) / "report.html").read_bytes()


def test_what_devices_did(config: Path, typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    failing = '{"name": "mec", "task": "gas-turbine", "drop_out": 0.2, "regions": 2}'
    few = ("--set", "selection={name: Uniform, count: 3}", "--set", f"devices={failing}")
    _, made, _ = typed("run", config, "--no-report", *few)
    code, found, said = typed("devices", made["run"], "--output", "table.csv")
    assert code == 0
    assert "Table: table.csv" in said
    assert made["devices"].items() <= found.items()
    assert found["asked"] == 3 * made["rounds"] == sum(row["asked"] for row in found["devices"])
    assert sum(found["replies"].values()) == found["population"] == 6
    assert sum(of["energy"] for of in found["regions"].values()) == pytest.approx(3600 * found["energy_wh"])
    header, *lines = Path("table.csv").read_text().splitlines()
    assert header == "client,region,asked,answered,crashed,called_off,refused,bytes_down,bytes_up,energy"
    assert [line.split(",")[0] for line in lines] == [row["client"] for row in found["devices"]]
    assert run(["devices", made["run"]]) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^1 +3 ", shown, re.M)  # a region, and its clients
    assert "the busiest tenth of the clients used" in " ".join(shown.split())
    (Path(made["folder"]) / "devices.json").unlink()
    code, found, _ = typed("devices", made["run"])
    assert (code, found["error"]["remedy"]) == (8, f"resume the run: atoll run {made['folder']} --resume")


@pytest.mark.slow
def test_compare(config: Path, typed: Typed, capsys: pytest.CaptureFixture[str]) -> None:
    typed("run", config, "--folder", "runs/a", "--no-report")
    typed("run", config, "--folder", "runs/b", "--no-report", "--set", "algorithm.lr=0.5")
    code, result, _ = typed("compare", "a", "runs/b")
    assert code == 0
    assert [row["run"] for row in result["runs"]] == ["a", "b"]
    assert [row["settings"] for row in result["runs"]] == [{"algorithm.lr": 0.1}, {"algorithm.lr": 0.5}]
    assert "Test accuracy" in Path(result["report"]).read_text()
    assert result["report"] == "runs/comparison.html"
    assert run(["compare", "a", "b"]) == 0
    assert "algorithm.lr" in capsys.readouterr().out
    code, result, _ = typed("compare", "a")
    assert (code, result["error"]["what"]) == (2, "1 run to compare")


@pytest.mark.slow
def test_a_small_demo(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "MODEL", {"name": "linear", "features": 64, "outputs": 10})
    monkeypatch.setattr(demo, "ENGINE", "inline")
    code, result, said = typed("demo", "--rounds", "8", "--parties", "10", "--seed", "3")
    assert code == 0
    assert set(result) == {"alone", "federated", "pooled", "report"}
    page = Path(result["report"])
    assert "Is federating worth it?" in page.read_text()
    assert "chosen after looking at these test rows" in said
    assert "a smoke test, not evidence" in page.read_text()
    assert "federation" in said
    folder = RunFolder(page.parent)
    assert folder.config().name == "demo"
    kept = json.loads((folder.path / "comparison.json").read_text())
    assert len(kept["alone"]["values"]) == 10
    assert kept["alone"]["accuracy"] == pytest.approx(sum(kept["alone"]["values"]) / 10)
    assert result["alone"]["worst"] <= result["alone"]["accuracy"] <= result["alone"]["best"]
    assert result["federated"]["accuracy"] == folder.metrics()[-1]["test/accuracy"]


@pytest.mark.slow  # a smaller one is above, and continuous integration types `make demo`
def test_the_demo_answers_its_question(typed: Typed, tmp_path: Path) -> None:
    """The demo as people see it: federated within 3 points of pooled, and far above an island alone."""
    pytest.importorskip("torch")
    code, result, _ = typed("demo", "--folder", tmp_path / "demo")
    alone, federated, pooled = (result[name]["accuracy"] for name in ("alone", "federated", "pooled"))
    assert code == 0
    assert federated >= pooled - 0.03
    assert federated >= alone + 0.3
    assert pooled > 0.93


def test_an_interrupted_demo_can_be_resumed(typed: Typed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import signal

    from atoll.report.progress import Rounds

    monkeypatch.setattr(demo, "MODEL", {"name": "linear", "features": 64, "outputs": 10})
    monkeypatch.setattr(demo, "ENGINE", "inline")
    real = Rounds.record

    def record(self: Rounds, row: dict[str, Any]) -> None:
        real(self, row)
        if row["round"] == 2:
            signal.raise_signal(signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Rounds, "record", record)
        code, result, said = typed("demo", "--rounds", "5", "--parties", "10", "--folder", tmp_path / "demo")
    assert (code, result["status"]) == (130, "interrupted")
    assert "Resume with: atoll run" in said
    code, result, _ = typed("run", tmp_path / "demo", "--resume", "--no-report")
    assert (code, result["rounds"], result["status"]) == (0, 5, "finished")


def test_doctor_and_schema(typed: Typed, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATOLL_DATA", "/nowhere/at/all")
    _, found, _ = typed("doctor")
    assert found["extras"]["report"] is True
    assert found["atoll_data"] is False
    assert {name: f'pip install "atoll[{name}]"' for name, there in found["extras"].items() if not there} == found[
        "install"
    ]
    assert found["devices"][0] == "cpu"
    _, schema, _ = typed("schema")
    assert schema["properties"]["algorithm"]
    assert run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == schema
    assert run(["doctor"]) == 0
    assert "not a folder" in capsys.readouterr().out


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    from atoll import __version__

    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__

    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("demo", "run", "runs", "report", "compare", "reproduce", "doctor", "schema"):
        assert command in text


def test_the_package_is_the_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["atoll", "--version"])
    with pytest.raises(SystemExit, match=r"^0$"):
        runpy.run_module("atoll", run_name="__main__")
    assert capsys.readouterr().out.strip() == atoll.__version__


@pytest.mark.network
def test_json_stays_alone_on_stdout_whatever_else_prints(
    config: Path, settings: dict[str, Any], tmp_path: Path
) -> None:
    """Prints of a model, of a library that writes to the file descriptor, and of a child process go to stderr."""
    (tmp_path / "noisy.py").write_text(
        "import os, subprocess\n"
        "from atoll.models import linear\n"
        "def model():\n"
        "    print('a print')\n"
        "    os.write(1, b'a raw write\\n')\n"
        "    subprocess.run(['echo', 'a child'], check=True)\n"
        "    return linear(4, 3)\n"
    )
    config.write_text(yaml.dump({**settings, "model": "noisy:model"}))
    words = [sys.executable, "-m", "atoll.cli", "run", str(config), "--folder", "mine", "--no-report", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert len(done.stdout.splitlines()) == 1
    assert json.loads(done.stdout)["status"] == "finished"
    for line in ("a print", "a raw write", "a child"):
        assert line in done.stderr


def test_a_live_display_on_a_terminal() -> None:
    import io

    from rich.console import Console

    from atoll.report.progress import Rounds

    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, highlight=False)
    with Rounds(console, atoll.Training(model=Linear(4, 3), rounds=4), "small") as rounds:
        rounds.begin(1)
        rounds.record(
            {"round": 2, "test/accuracy": 0.5, "bytes_up": 1500, "rejected_clients": {"client-7": "not finite"}}
        )
        rounds.record({"round": 4, "test/rmse": 2.0, "loss": 0.25})
    text = screen.getvalue()
    assert "small" in text
    assert "accuracy 50.0 %" in text
    assert "sent 1.5 kB" in text
    assert "the reply of client-7 was rejected: not finite" in text
    assert "4/4" in text


def test_a_program_that_counts_no_bytes_is_not_said_to_send_none() -> None:
    import io

    from rich.console import Console

    from atoll.report.progress import Rounds
    from atoll.statistics import Statistics

    lines = io.StringIO()
    with Rounds(Console(file=lines, width=120), Statistics(), "summary") as rounds:
        rounds.record({"round": 2, "contact": "spread", "parties": 3})
    assert lines.getvalue() == "summary: round 2/2  parties 3  done\n"


def test_help_lists_every_command_by_group_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    panels: dict[str, list[str]] = {name: [] for name in GROUPS}
    for kind in (app.registered_commands, app.registered_groups):  # in a panel, commands come before groups of commands
        for panel, listed in panels.items():
            names = [str(one.name) for one in kind if one.rich_help_panel == panel]
            assert names == sorted(names)
            listed += names
    wanted = [name for names in panels.values() for name in names]
    assert sorted(wanted) == known()
    first = re.findall(r"^[│|] (\w+)", capsys.readouterr().out, re.MULTILINE)
    assert [word for word in first if word in known()] == wanted
