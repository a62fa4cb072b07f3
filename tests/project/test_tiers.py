"""The guard of the tests that start no process."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import tiers


def _run_soon() -> None:
    asyncio.run(asyncio.create_subprocess_exec(sys.executable, "-c", ""))


def _spawn() -> None:
    multiprocessing.get_context("spawn").Process(target=print).start()


STARTS: dict[str, tuple[Callable[[], Any], str]] = {
    "a command": (lambda: subprocess.run([sys.executable, "-c", ""], check=True), "it starts .*python"),
    "a command of a loop": (_run_soon, "it starts .*python"),
    "a fork": (os.fork, "it forks"),
    "a fork with a target": (lambda: multiprocessing.get_context("fork").Process(target=print).start(), "it forks"),
    "a fresh interpreter": (_spawn, "it starts .*python"),
    "a spawn of the system": (
        lambda: os.posix_spawn(sys.executable, [sys.executable, "-c", ""], {}),
        "it starts .*python",
    ),
}


@pytest.mark.parametrize("way", STARTS)
def test_no_way_to_start_a_process_is_open(way: str) -> None:
    start, what = STARTS[way]
    with pytest.raises(tiers.ProcessStarted, match=f"{what}.*mark the test"):
        start()
    assert len(tiers.attempts) == 1
    tiers.attempts.clear()  # or this test would fail


@pytest.mark.network
def test_a_test_that_catches_the_refusal_fails_all_the_same(tmp_path: Path) -> None:
    """Of three tests that start a process, the one with the mark and the case that names an engine may."""
    start = "    try:\n        os.fork() or os._exit(0)\n    except RuntimeError:\n        pass\n"
    text = (
        f"import os, pytest\n\ndef test_plain():\n{start}\n@pytest.mark.network\ndef test_marked():\n{start}\n"
        f"@pytest.mark.parametrize('engine', ['inline', 'processes'])\ndef test_case(engine):\n    if engine == 'processes':\n        os.fork() or os._exit(0)\n"
    )
    (tmp_path / "test_toy.py").write_text(text)
    options = [
        "-q",
        "-c",
        "/dev/null",
        "--rootdir",
        str(tmp_path),
        "-p",
        "tests.support.tiers",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
        | {"PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 3 passed" in done.stdout, done.stdout
    assert "ProcessStarted: it forks" in done.stdout
