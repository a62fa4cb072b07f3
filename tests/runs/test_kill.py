"""kill -9 at any moment, then --resume: the same model to the last bit, and every round once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atoll.runs import yaml

DRIVER = Path(__file__).with_name("kill_driver.py")

pytestmark = [pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork"), pytest.mark.network]


@pytest.fixture
def long_config(config: Path, settings: dict[str, Any]) -> Path:
    """Twelve rounds; clients are evaluated too, and their worst tenth is recorded.

    On the digits, which are read without scikit-learn: every process that is started here would load it anew.
    """
    digits = {
        "data": {**settings["data"], "source": "digits"},
        "model": {**settings["model"], "features": 64, "outputs": 10},
    }
    config.write_text(yaml.dump({**settings, **digits, "rounds": 12, "evaluation": {"clients": -1}}))
    return config


def test_killed_at_file_operations_and_at_random_moments(long_config: Path, tmp_path: Path) -> None:
    words = [sys.executable, str(DRIVER), str(long_config), str(tmp_path / "work"), "20260314", "4"]
    done = subprocess.run(words, capture_output=True, text=True, check=True, cwd=tmp_path)
    found = json.loads(done.stdout)
    reference = found["reference"]
    assert reference["last"] == 0
    rounds = [json.loads(line)["round"] for line in reference["metrics"].splitlines()]
    assert rounds == list(range(1, 13))
    for case in found["killed"]:
        assert case["last"] == 0, case["kills"]
        assert case["status"] == "finished"
        assert case["model"] == reference["model"], case["kills"]
        assert case["metrics"] == reference["metrics"], case["kills"]
    codes = [code for case in found["killed"] for code in case["codes"]]
    # Most kills must have come before the end, or this has shown nothing.
    assert codes.count(-signal.SIGKILL) >= len(codes) / 2, codes


@pytest.mark.slow
def test_the_command_itself_killed_from_outside(long_config: Path, tmp_path: Path) -> None:
    words = [sys.executable, "-m", "atoll.cli", "run", str(long_config), "--no-report", "--json"]
    plain = subprocess.run([*words, "--folder", "plain"], capture_output=True, text=True, check=True, cwd=tmp_path)
    with subprocess.Popen(
        [*words, "--folder", "killed"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as p:
        assert p.stderr is not None
        seen = next(line for line in p.stderr if "round 3/12" in line)  # waits for the third round to end
        p.kill()
    assert seen
    assert p.returncode == -signal.SIGKILL
    resumed = subprocess.run(
        [*words, "--folder", "killed", "--resume"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    ours, theirs = json.loads(resumed.stdout), json.loads(plain.stdout)
    assert (ours["rounds"], ours["accuracy"]) == (theirs["rounds"], theirs["accuracy"])
    assert (tmp_path / ours["model"]).read_bytes() == (tmp_path / theirs["model"]).read_bytes()
