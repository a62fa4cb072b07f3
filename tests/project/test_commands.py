"""What a newcomer and continuous integration type exists, and says what it does."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.support.sources import ROOT

TARGETS = ["setup", "demo", "test", "test-network", "check", "docs", "bench", "clean"]
make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def _make(*words: str) -> str:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MAKE")}
    done = subprocess.run(["make", *words], cwd=ROOT, env=clean, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.mark.network
@make
def test_help_lists_every_target_with_a_sentence() -> None:
    lines = dict(line.split(maxsplit=2)[1:] for line in _make("help").splitlines())
    assert set(TARGETS) <= set(lines)
    assert all(len(sentence.split()) >= 3 for sentence in lines.values())


@pytest.mark.network
@make
@pytest.mark.parametrize("target", TARGETS)
def test_targets_can_be_planned(target: str) -> None:
    assert _make("--dry-run", target).strip()


def test_continuous_integration_runs_what_people_run() -> None:
    run = ROOT / ".ci" / "run"
    assert os.access(run, os.X_OK)
    text = run.read_text(encoding="utf-8")
    assert "set -euo pipefail" in text
    steps = [line for line in text.splitlines() if line.startswith("make ")]
    assert steps == [
        "make setup",
        "make check",
        "make docs",
        "make test",
        "make test-network",
    ]  # tests look at the built site


def test_pytorch_is_held_at_the_version_that_was_tested() -> None:
    pins = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    assert "torch==2.13.0" in pins
