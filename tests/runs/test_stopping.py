"""Ctrl-C and SIGTERM stop after the round, keep the run resumable, and exit with 130."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from atoll.cli import run
from atoll.engines import batched
from atoll.runs import RunFolder, Stopping, execute, parse_config, yaml


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.quick("2")
def test_a_signal_stops_after_the_round_and_resuming_ends_the_same(
    config: Path, settings: dict[str, Any], typed: Callable[..., Any], tmp_path: Path, number: int
) -> None:
    stop = {"name": "tests.support.parts_of_mine:Interrupting", "after": 2, "number": int(number)}
    config.write_text(yaml.dump({**settings, "trackers": [stop]}))
    before = signal.getsignal(number)
    code, result, said = typed("run", config, "--folder", "stopped", "--no-report")
    assert signal.getsignal(number) is before
    assert code == 130
    assert (result["status"], result["rounds"]) == ("interrupted", 2)
    assert f"{signal.Signals(number).name}: stopping after this round" in said
    assert "Resume with: atoll run stopped --resume" in said
    assert RunFolder("stopped").status() == "interrupted"
    assert list((tmp_path / "stopped" / "checkpoints").glob("generation-*.msg"))

    code, result, said = typed("run", "stopped", "--resume", "--set", "trackers=[]")
    assert (code, result["status"], result["rounds"]) == (0, "finished", 5)
    assert "continuing after round 2" in said
    execute(parse_config(settings), RunFolder("whole"), report=False)
    assert RunFolder("stopped").model_file.read_bytes() == RunFolder("whole").model_file.read_bytes()
    assert RunFolder("stopped").metrics_file.read_text() == RunFolder("whole").metrics_file.read_text()


def test_between_checkpoints_too(settings: dict[str, Any], tmp_path: Path) -> None:
    sparse = parse_config({**settings, "checkpoint_every": 4})
    stopping = Stopping()
    folder = RunFolder(tmp_path / "sparse")
    result = execute(
        sparse,
        folder,
        stopping=stopping,
        on_record=lambda row: stopping.ask() if row["round"] == 3 else None,
        report=False,
    )
    assert (result.reason, len(result.metrics)) == ("interrupted", 3)
    done: list[int] = []
    execute(sparse, folder, resume=True, on_start=done.append, report=False)
    assert done == [3]
    assert len(folder.metrics()) == 5


def test_a_second_signal_stops_at_once(config: Path, settings: dict[str, Any], typed: Callable[..., Any]) -> None:
    twice = [{"name": "tests.support.parts_of_mine:Interrupting", "after": 3}] * 2
    config.write_text(yaml.dump({**settings, "trackers": twice}))
    code, result, said = typed("run", config, "--folder", "stopped", "--no-report")
    assert code == 130
    assert result["error"]["kind"] == "Interrupted"
    assert "The last checkpoint counts" in said
    assert RunFolder("stopped").status() == "interrupted"
    code, result, _ = typed("run", "stopped", "--resume", "--set", "trackers=[]", "--no-report")
    assert (code, result["rounds"]) == (0, 5)


def test_workers_that_the_signal_ended_are_no_error(
    config: Path, settings: dict[str, Any], typed: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A SIGTERM to a whole process group reaches the workers first, in the middle of a round."""
    from atoll import simulation
    from atoll.core.errors import TaskError

    real = simulation.simulated

    def simulated(*args: Any, on_record: Any, **options: Any) -> Any:
        def record(row: dict[str, Any]) -> None:
            on_record(row)
            if row["round"] == 2:
                signal.raise_signal(signal.SIGTERM)
                raise TaskError("a worker went away", where="engine", remedy="look for lack of memory")

        return real(*args, on_record=record, **options)

    with monkeypatch.context() as patched:
        patched.setattr(simulation, "simulated", simulated)
        code, result, said = typed("run", config, "--folder", "mine", "--no-report")
    assert (code, result["error"]["kind"]) == (130, "Interrupted")
    assert "Resume with: atoll run mine --resume" in said
    assert RunFolder("mine").status() == "interrupted"
    assert typed("run", "mine", "--resume", "--no-report")[:1] == (0,)
    execute(parse_config(settings), RunFolder("whole"), report=False)
    assert RunFolder("mine").model_file.read_bytes() == RunFolder("whole").model_file.read_bytes()


@pytest.mark.slow
def test_resume_finds_the_unfinished_run_of_a_configuration(
    config: Path, settings: dict[str, Any], typed: Callable[..., Any]
) -> None:
    assert typed("run", config, "--no-report")[0] == 0
    stop = {"name": "tests.support.parts_of_mine:Interrupting", "after": 2}
    _, first, _ = typed("run", config, "--set", f"trackers=[{json.dumps(stop)}]", "--no-report")
    _, other, _ = typed("run", config, "--set", f"trackers=[{json.dumps(stop)}]", "--set", "seed=5", "--no-report")
    assert first["status"] == other["status"] == "interrupted"
    code, result, _ = typed("run", config, "--resume", "--no-report")
    assert (code, result["run"], result["status"]) == (0, first["run"], "finished")
    code, result, _ = typed("run", config, "--resume", "--no-report")
    assert code == 8
    assert result["error"]["what"] == "there is no unfinished run of this configuration"


def test_a_run_folder_wants_resume(config: Path, typed: Callable[..., Any]) -> None:
    run(["run", str(config), "--folder", "mine", "--no-report"])
    code, result, _ = typed("run", "mine")
    assert code == 2
    assert result["error"]["what"] == "'mine' is a run folder"


def test_resuming_what_was_never_begun_begins(config: Path, typed: Callable[..., Any]) -> None:
    code, result, said = typed("run", config, "--folder", "fresh", "--resume", "--no-report")
    assert (code, result["rounds"]) == (0, 5)
    assert "There is nothing to resume in fresh: starting a new run." in said


def decisions(engine: dict[str, Any]) -> dict[str, Any]:
    """What an engine chose, without how long choosing took."""
    tasks = {name: {k: v for k, v in task.items() if k != "seconds"} for name, task in engine["tasks"].items()}
    return {**engine, "tasks": tasks}


def test_a_resumed_run_reuses_the_engine_choices(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    del torch
    model = {"name": "mlp", "features": 4, "outputs": 3, "hidden": [8]}
    config = parse_config({**settings, "model": model, "engine": "batched"})
    folder, stopping = RunFolder(tmp_path / "run"), Stopping()
    stopping.ask()
    first = execute(config, folder, stopping=stopping, report=False)
    assert (first.reason, len(first.metrics)) == ("interrupted", 1)
    # A machine with other processors would choose otherwise.
    own = first.engine["workers"]
    monkeypatch.setattr(batched, "cores", lambda: own + 3)
    elsewhere = execute(config, RunFolder(tmp_path / "elsewhere"), stopping=stopping, report=False)
    assert elsewhere.engine["workers"] == own + 3
    second = execute(config, folder, resume=True, report=False)
    assert decisions(second.engine) == decisions(first.engine) == decisions(folder.manifest()["engine"])
    assert second.engine["workers"] == own
    # And so it ends where a run that was never stopped ends, to the last bit.
    whole = RunFolder(tmp_path / "whole")
    monkeypatch.setattr(batched, "cores", lambda: own)
    third = execute(config, whole, report=False)
    assert decisions(third.engine) == decisions(first.engine)
    assert whole.model_file.read_bytes() == folder.model_file.read_bytes()
