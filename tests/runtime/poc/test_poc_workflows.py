"""Workflows by ``atoll poc``: cyclic weight transfer, swarm learning and cross-site evaluation between real processes are those of the simulator."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import atoll
from atoll.core.algebra import tree as T
from atoll.runs import RunFolder, read_model, yaml
from atoll.runtime.job_spec import parse_job
from atoll.runtime.poc import digits_at, site_names

WORKFLOWS: dict[str, dict[str, Any]] = {
    "cyclic": {"topology": {"name": "Cyclic", "order": "shuffled"}, "selection": "Everyone"},
    "swarm": {"topology": {"name": "Swarm", "order": "shuffled"}, "selection": "Everyone"},
    "cross-site": {"evaluation": {"cross_site": True}, "selection": "Everyone"},
}


@pytest.mark.slow  # quicker: learn/test_models_that_travel.py and learn/test_cross_site.py, and runtime/poc/test_poc.py for the processes
@pytest.mark.parametrize("workflow", WORKFLOWS)
def test_a_workflow_between_processes_is_the_simulators(workflow: str, tmp_path: Path) -> None:
    names = site_names(3)
    settings = {
        "name": workflow, "sites": names, "data": {"test": "digits"}, "rounds": 2, "seed": 5,
        "model": {"name": "linear", "features": 64, "outputs": 10}, "algorithm": {"name": "FedAvg", "lr": 0.1},
        **WORKFLOWS[workflow],
    }  # fmt: skip
    (tmp_path / "job.yaml").write_text(yaml.dump(settings), encoding="utf-8")
    words = ["poc", "job.yaml", "--sites", "3", "--seed", "5", "--folder", "all", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "atoll.cli", *words], cwd=tmp_path, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["status"], said["rounds"]) == ("finished", 2)

    config = parse_job(settings)
    islands = digits_at(names, seed=5).with_test(config.test_set())
    simulated = atoll.simulate(config.made(), islands, engine="inline", seed=5)
    found = read_model(tmp_path / "all" / "result" / "model.safetensors")
    for leaf, value in T.items(simulated.params):
        np.testing.assert_array_equal(found[leaf], np.asarray(value))
    assert said["accuracy"] == simulated.metrics[-1]["test/accuracy"]
    rows = RunFolder(tmp_path / "all" / "result").metrics()
    assert [row["test/loss"] for row in rows] == [row["test/loss"] for row in simulated.metrics]
    if workflow == "cross-site":
        crossed = simulated.cross_site
        assert crossed is not None
        kept = json.loads((tmp_path / "all" / "result" / "cross_site.json").read_text(encoding="utf-8"))
        assert kept == json.loads(json.dumps(crossed.plain()))
        assert tuple(crossed.sites) == tuple(names)
