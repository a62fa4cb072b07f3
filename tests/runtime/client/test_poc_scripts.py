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
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.runs import yaml
from atoll.runtime.client.poc import site_names

FEDERATED = Path(__file__).resolve().parents[3] / "examples" / "scripts" / "federated"
SCRIPTS = {
    # script: what makes the model, libraries, further arguments, whether Atoll can measure it on digits
    "plain_numpy": ("start", (), (), False),
    "pytorch_loop": ("net", ("torch",), (), True),
    "scikit_learn": ("classifier", ("sklearn",), (), True),
    "hugging_face": ("bert", ("transformers", "accelerate"), (), False),
    "hugging_face --lora": ("adapters", ("transformers", "accelerate", "peft"), ("--lora",), False),
    "lightning_module": ("Digits", ("lightning",), (), True),
}
pytestmark = pytest.mark.slow


def rows_for(name: str) -> tuple[Any, Any]:
    """Rows that a script can read: digits, or sentences of tokens whose first says the class."""
    if not name.startswith("hugging_face"):
        data = atoll.data.digits()
        return np.asarray(data.x, dtype=np.float64), np.asarray(data.y)
    random = np.random.default_rng(0)
    y = random.integers(0, 2, 160)
    return np.concatenate([y[:, None] + 1, random.integers(3, 32, (160, 7))], axis=1), y


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
        "name": "script", "script": f"{module}.py", "model": {"name": f"{module}:{model}"},
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
