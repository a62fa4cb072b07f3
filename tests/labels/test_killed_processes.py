"""``kill -9`` of whole process groups in the middle of a training whose clients keep teachers, queues, sigma or votes, or whose server keeps counts: the same bits after a resume."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from atoll.core.errors import AtollError
from atoll.runs import RunFolder, yaml

ROUNDS = 14
WORK: dict[str, Any] = {"lr": 0.05, "steps": 2, "batch_size": 8}
CODE = f"""
import sys

sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import torch
from tests.support.label_toys import images, islands, net
from torch import nn

from atoll.labels.heads import Siamese


def rows():
    return islands(images(48, share=0.5), parties=3)


def bare():
    return islands(images(48, share=0.0), parties=3)


def public():
    return islands(images(48, share=2.0), parties=3).with_others({{"public": images(60, share=0.0, seed=4)}})


def siamese():
    return Siamese(nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.ReLU()), 8, width=4, hidden=6)
"""
JOBS: dict[str, dict[str, Any]] = {
    "teacher": {
        "data": {"source": "killed:rows"}, "model": "killed:net",
        "algorithm": {"name": "RSCFed", "tau": 0.3, "weak": None, "strong": {"name": "weak", "kind": "images"}, **WORK},
    },
    "queue": {
        "data": {"source": "killed:bare"}, "model": "killed:siamese",
        "algorithm": {"name": "FedMoCo", "gauge": 0.0, "queue": 16, **WORK},
    },
    "sigma": {
        "data": {"source": "killed:rows"}, "model": "killed:net",
        "algorithm": {"name": "FedMatch", "tau": 0.3, "neighbours": 1, "pool": 2, "refresh": 1, **WORK},
    },
    "triples": {
        "data": {"source": "killed:rows"}, "model": "killed:net", "algorithm": {"name": "ForwardCorrection", "after": 2, **WORK},
    },
    "votes": {
        "data": {"source": "killed:public"}, "model": "killed:net",
        "algorithm": {"name": "FedAvg", **WORK}, "topology": {"name": "PATE", "rows": 4, "sigma": 1e-6, "epochs": 2, "batch_size": 4},
    },
}  # fmt: skip


def begun(folder: Path, job: dict[str, Any]) -> Path:
    (folder / "killed.py").write_text(CODE, encoding="utf-8")
    config = folder / "job.yaml"
    more = {
        "name": "killed",
        "rounds": ROUNDS,
        "seed": 3,
        "selection": "Everyone",
        "engine": "processes",
        "workers": 2,
        "compile": "never",
    }
    config.write_text(yaml.dump({**job, **more}), encoding="utf-8")
    return config


def started(config: Path, out: Path, *more: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "atoll.cli", "run", config.name, "--folder", str(out), *more, "--json"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words,
        cwd=config.parent,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def rounds(out: Path) -> int:
    """Rounds that are recorded so far."""
    with contextlib.suppress(AtollError, OSError):
        return len(RunFolder(out).metrics())
    return 0


def killed(process: subprocess.Popen[str], out: Path, after: int) -> bool:
    """Kill the run and all its workers once so many rounds are recorded; tell whether it was still running."""
    deadline = time.monotonic() + 240
    while process.poll() is None and rounds(out) < after:
        assert time.monotonic() < deadline, f"{rounds(out)} rounds only"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01)
    alive = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    return alive


@pytest.mark.slow
@pytest.mark.parametrize("kept", JOBS)
def test_a_killed_training_ends_with_the_bits_of_an_undisturbed_one(tmp_path: Path, kept: str) -> None:
    """A quicker sibling kills each method in this process at every write: ``killed_and_resumed`` in the tests of the methods."""
    config, out, whole = begun(tmp_path, JOBS[kept]), tmp_path / "out", tmp_path / "whole"
    assert killed(started(config, out), out, after=3)
    assert killed(started(config, out, "--resume"), out, after=7)
    at = rounds(out)
    assert 7 <= at < ROUNDS
    for process in (started(config, out, "--resume"), started(config, whole)):
        said, wrong = process.communicate(timeout=240)
        assert process.returncode == 0, wrong + said
    assert RunFolder(out).model_file.read_bytes() == RunFolder(whole).model_file.read_bytes()
    shown = [
        {k: v for k, v in row.items() if k.startswith(("train", "test", "loss"))} for row in RunFolder(out).metrics()
    ]
    assert shown == [
        {k: v for k, v in row.items() if k.startswith(("train", "test", "loss"))} for row in RunFolder(whole).metrics()
    ]
    assert len(shown) == ROUNDS
