"""``atoll poc``: SemiFL with labels at a helper, between real processes over mutual TLS, trains the simulator's model."""

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
from atoll.cli.commands.poc import _with_labels_apart
from atoll.core.algebra import tree as T
from atoll.runs import RunFolder, read_model, yaml
from atoll.runtime.job_spec import importing, load_job
from atoll.runtime.poc import digits_at, helper_names, site_names
from atoll.runtime.provision import Kit

SEED = 5
NETS = """
import torch
from torch import nn


def net():
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
"""


def job(folder: Path) -> Path:
    """Two sites without labels, and one that has all of them."""
    (folder / "code").mkdir()
    (folder / "code" / "labelled_nets.py").write_text(NETS, encoding="utf-8")
    algorithm: dict[str, Any] = {
        "name": "SemiFL", "lr": 0.1, "steps": 4, "batch_size": 16, "tau": 0.5, "warm_up": 30, "label_steps": 4,
        "weak": {"name": "MaskFeatures", "p": 0.1}, "strong": {"name": "SwapFeatures", "share": 0.3},
    }  # fmt: skip
    settings = {
        "name": "few labels", "source": "code", "sites": site_names(2), "model": "labelled_nets:net", "algorithm": algorithm,
        "selection": "Everyone", "rounds": 3, "seed": SEED, "data": {"test": "digits"}, "compile": "never",
    }  # fmt: skip
    path = folder / "job.yaml"
    path.write_text(yaml.dump(settings), encoding="utf-8")
    return path


@pytest.mark.slow
def test_labels_at_a_helper_under_poc_equal_the_simulator(tmp_path: Path) -> None:
    """A quick sibling goes over sockets in one process: tests/runtime/worker/test_labels_at_a_helper.py."""
    path, names = job(tmp_path), site_names(2)
    words = [
        sys.executable,
        "-m",
        "atoll.cli",
        "poc",
        path.name,
        "--sites",
        "2",
        "--seed",
        str(SEED),
        "--folder",
        "all",
        "--json",
    ]
    done = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert (said["status"], said["rounds"]) == ("finished", 3)

    config = load_job(path).complete()
    with importing(config.source_folder):
        training = config.made()
        helpers = helper_names(config.helpers or {}, names)
        (helper,) = helpers
        few = _with_labels_apart(digits_at(names, 0.3, SEED), helpers, SEED)
        assert not any(np.asarray(shard["labelled"]).any() for shard in few), "no site has a label"
        islands = few.with_others({"labels": few.others[helper]}).with_test(config.test_set())
        simulated = atoll.simulate(training, islands, engine="inline", seed=SEED, progress=False)
    assert said["accuracy"] == simulated.metrics[-1]["test/accuracy"]
    found = read_model(tmp_path / "all" / "result" / "model.safetensors")
    assert set(found) == set(simulated.params)
    for leaf, value in T.items(simulated.params):
        np.testing.assert_array_equal(found[leaf], np.asarray(value))
    assert simulated.metrics[-1]["test/accuracy"] > 0.4
    assert Kit.read(tmp_path / "all" / "kits" / helper).role == "helper"
    rows = RunFolder(tmp_path / "all" / "result").metrics()
    assert all(row["replied"] == 2 for row in rows), "the helper counts for no cohort"
