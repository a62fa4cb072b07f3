"""The five scripts of ``examples/scripts``: at most six added lines each, alone, in a simulation, and killed in the middle of a round."""

from __future__ import annotations

import difflib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.models import Script
from atoll.models.script_process import RunningScript
from atoll.runtime.job_spec import importing
from tests.support.example_scripts import EXAMPLES, FEDERATED, SCRIPTS, rows_for

QUICK = ("plain_numpy",)
pytestmark = [
    pytest.mark.network,
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]  # of PEFT about Transformers
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in SCRIPTS]


def clients(name: str, folder: Path, count: int = 2) -> atoll.data.Islands:
    """Each client's rows, in memory and in a file of its own."""
    x, y = rows_for(name)
    parts = {}
    for i in range(count):
        mine = slice(i * 40, i * 40 + 40)
        np.savez(folder / f"site-{i + 1}.npz", x=x[mine], y=y[mine])
        parts[f"site-{i + 1}"] = atoll.data.Dataset({"x": x[mine], "y": y[mine]}, classes=int(y.max()) + 1)
    test = atoll.data.Dataset({"x": x[80:160], "y": y[80:160]}, classes=int(y.max()) + 1)
    return atoll.data.Islands.from_datasets(parts, test=test)


def training(name: str, folder: Path, rounds: int = 2, **settings: Any) -> atoll.Training:
    """A job around a script; names without their library are skipped."""
    model, libraries, words, measured = SCRIPTS[name]
    for library in libraries:
        pytest.importorskip(library)
    script = Script(
        script=f"{FEDERATED / name.partition(' ')[0]}.py", model=model, arguments=(f"{folder}/{{client}}.npz", *words),
        folder=str(folder), environment={"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}, **settings,
    )  # fmt: skip
    return atoll.Training(
        model=script, selection=atoll.Everyone(), rounds=rounds, evaluation=atoll.Evaluation(server=measured)
    )


def simulated(name: str, folder: Path, **settings: Any) -> atoll.simulation.Result:
    with importing(FEDERATED):
        return atoll.simulate(training(name, folder, **settings), clients(name, folder), engine="inline")


@pytest.mark.parametrize("name", sorted({name.partition(" ")[0] for name in SCRIPTS}))
def test_a_script_becomes_a_client_with_six_added_lines(name: str) -> None:
    before, after = ((EXAMPLES / part / f"{name}.py").read_text().splitlines() for part in ("alone", "federated"))
    changes = [line for line in difflib.unified_diff(before, after, lineterm="", n=0) if line[:3] not in ("---", "+++")]
    added = [line for line in changes if line.startswith("+")]
    removed = [line for line in changes if line.startswith("-")]
    assert 0 < len(added) <= 6
    assert len(removed) == 1  # the call of train, which is indented now
    assert removed[0][1:].strip() in [line[1:].strip() for line in added]


@pytest.mark.network
@pytest.mark.parametrize("name", CASES)
def test_it_still_runs_alone(name: str, tmp_path: Path) -> None:
    for library in SCRIPTS[name][1]:
        pytest.importorskip(library)
    clients(name, tmp_path)
    file = f"{name.partition(' ')[0]}.py"
    said = {}
    for part in ("alone", "federated"):
        words = [sys.executable, str(EXAMPLES / part / file), "site-1.npz", *SCRIPTS[name][2]]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        said[part] = done.stdout
    assert "loss" in said["alone"]
    assert "one local round, 40 examples" in said["federated"]
    if name == "plain_numpy":  # no random numbers: the same loss
        assert said["federated"].splitlines()[-1] == said["alone"].splitlines()[-1]


@pytest.mark.network
@pytest.mark.parametrize("name", CASES)
def test_it_learns_in_a_simulation(name: str, tmp_path: Path) -> None:
    result = simulated(name, tmp_path, rounds=3)
    losses = [row["loss"] for row in result.metrics]
    assert len(losses) == 3
    assert losses[-1] < losses[0]
    if SCRIPTS[name][3]:
        assert result.metrics.last("test/accuracy") > 0.5
    if name.endswith("--lora"):
        assert result.params
        assert all("lora_" in key or "classifier" in key for key in result.params)
        assert sum(value.size for value in result.params.values()) < 400


@pytest.mark.network
@pytest.mark.quick("plain_numpy")
@pytest.mark.parametrize("name", CASES)
def test_a_script_that_is_killed_in_a_round_begins_once_more(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In round 2, site-1's script is killed once it has its task; the model is that of a run in which nobody was killed."""
    whole = simulated(name, tmp_path, between="restart")
    kept, killed = RunningScript.ask, []

    def ask(self: RunningScript, task: Any, rows: Any) -> Any:
        if task["round"] == 2 and self.client == "site-1" and not killed:
            killed.append(self._process.pid)
            os.kill(self._process.pid, signal.SIGSTOP)  # it has the task, and will never answer it
            self._say({"op": "task", **task})
            os.kill(self._process.pid, signal.SIGKILL)
        return kept(self, task, rows)

    monkeypatch.setattr(RunningScript, "ask", ask)
    torn = simulated(name, tmp_path, between="restart")
    assert len(killed) == 1
    assert [row["replied"] for row in torn.metrics] == [2, 2]
    for key, value in whole.params.items():
        np.testing.assert_array_equal(np.asarray(torn.params[key]), np.asarray(value))
