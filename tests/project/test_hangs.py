"""A test that hangs: its worker is ended with what it forked, and the test is tried again."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TOY = """
import os, threading
from pathlib import Path

import pytest


def wait():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


@pytest.mark.parametrize("always", [False, True])
def test_hangs(always):
    met = Path(__file__).with_name(f"met_{always}")
    if met.exists() and not always:
        return
    met.touch()
    if os.fork() == 0:
        wait()
    wait()


def test_passes():
    pass
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="workers are forked and ended as Linux does")
def test_a_test_that_hangs_is_tried_again_and_told_with_its_stacks(tmp_path: Path) -> None:
    (tmp_path / "test_toy.py").write_text(TOY)
    (tmp_path / "conftest.py").write_text("import hangs\n\nhangs.SECONDS = 1.0\npytest_plugins = ['hangs']\n")
    options = ["-q", "-ra", "-n", "1", "-c", "/dev/null", "--rootdir", str(tmp_path), "-p", "no:cacheprovider"]
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "ATOLL", "COV"))}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=inherited | {"PYTHONPATH": str(Path(__file__).parents[1] / "support"), "CI": "true"},
        cwd=tmp_path,
        capture_output=True,  # ends when the last process has closed its end: what was forked is ended too
        text=True,
        timeout=300,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.search("^1 failed, 2 passed, .*2 hung", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.count("most recent call first") >= 3
    assert "in wait" in done.stdout.split("short test summary")[1]
