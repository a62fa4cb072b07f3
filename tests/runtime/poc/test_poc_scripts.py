"""``atoll poc``: the five scripts of ``examples/scripts`` as processes of real sites, in the sandbox. What each learns in a simulation is in tests/models/scripts.

The quick sibling is the page docs/howto/scripts.md, whose script runs under ``atoll poc`` in the tests of the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from atoll.runs import yaml
from atoll.runtime.poc import site_names
from tests.support.example_scripts import FEDERATED, SCRIPTS, rows_for

pytestmark = pytest.mark.slow


def job(name: str, folder: Path) -> Path:
    """A job of two sites and two rounds. The rows travel with the script: the sandbox shows it no other folder."""
    model, libraries, words, measured = SCRIPTS[name]
    for library in libraries:
        pytest.importorskip(library)
    module, code = name.partition(" ")[0], folder / "code"
    code.mkdir()
    shutil.copy(FEDERATED / f"{module}.py", code)
    x, y = rows_for(name)
    for i, site in enumerate(site_names(2)):
        np.savez(code / f"{site}.npz", x=x[40 * i : 40 * i + 40], y=y[40 * i : 40 * i + 40])
    script = {
        "name": "script", "script": f"{module}.py", "model": {"name": model},
        "arguments": ["{source}/{client}.npz", *words], "environment": {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
    }  # fmt: skip
    settings = {
        "name": name, "source": "code", "sites": site_names(2), "model": script, "selection": "Everyone", "rounds": 2,
        "data": {"test": "digits"}, "evaluation": {"server": measured},
    }  # fmt: skip
    path = folder / "job.yaml"
    path.write_text(yaml.dump(settings), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_trains_at_two_sites_under_poc(name: str, tmp_path: Path) -> None:
    words = [
        sys.executable,
        "-m",
        "atoll.cli",
        "poc",
        job(name, tmp_path).name,
        "--sites",
        "2",
        "--folder",
        "all",
        "--json",
    ]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert (said["status"], said["rounds"]) == ("finished", 2)
    rows = [json.loads(line) for line in next((tmp_path / "all").rglob("metrics.jsonl")).read_text().splitlines()]
    assert [row["replied"] for row in rows if "replied" in row] == [2, 2]
    losses = [row["loss"] for row in rows if "loss" in row]
    assert losses[1] < losses[0]
