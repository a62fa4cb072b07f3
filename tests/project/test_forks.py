"""Processes of tests that begin as forks have all that those have that start anew, but for modules that are loaded already."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support import forks

pytestmark = [
    pytest.mark.network,
    pytest.mark.skipif(sys.platform != "linux", reason="a fork gets its parent by prctl of Linux"),
]
LOOK = """
import json, os, signal, sys, threading, time
found = {
    "words": sys.argv[1:], "path": sys.path, "folder": os.getcwd(), "variables": dict(os.environ), "name": __name__,
    "shown": open("/proc/self/cmdline").read().rstrip(chr(0)),
    "main": sys.modules["__main__"].__name__, "parent": os.getppid(), "leads": os.getsid(0) == os.getpid(),
    "files": sorted(int(fd) for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")),
    "streams": [(s.fileno(), s.encoding, s.errors, s.line_buffering, s.write_through) for s in (sys.stdin, sys.stdout, sys.stderr)],
    "signals": [str(signal.getsignal(n)) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)],
    "threads": threading.active_count(), "asked": sys.stdin.read(), "torch": "torch" in sys.modules,
    "passed": os.read(int(sys.argv[1]), 10).decode(),
}
print(json.dumps([found, "atoll.query.job" in sys.modules]))
print("an error", file=sys.stderr)
sys.exit(7)
"""


def look(folder: Path) -> tuple[Any, str, int]:
    """What a process of a daemon finds."""
    (folder / "look.py").write_text(LOOK, encoding="utf-8")
    reading, writing = os.pipe()
    os.write(writing, b"passed on")
    os.close(writing)
    words = ["atoll.runtime.daemon.child", str(os.getpid()), forks.OPEN, "look", str(reading), "a b"]
    done = subprocess.run(
        [sys.executable, "-m", *words], cwd=folder, input="some words", capture_output=True, text=True, check=False,
        pass_fds=(reading,), start_new_session=True, env={**os.environ, "ADDED": "yes"},
    )  # fmt: skip
    os.close(reading)
    return json.loads(done.stdout), done.stderr, done.returncode


def test_a_fork_finds_what_a_process_that_starts_anew_finds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (ours, loaded), *rest = look(tmp_path)
    monkeypatch.setattr(forks, "allowed", False)
    (anew, nothing), *others = look(tmp_path)
    assert {name: (ours[name], anew[name]) for name in ours if ours[name] != anew[name]} == {}
    assert rest == others == ["an error\n", 7]
    assert not nothing
    assert loaded == forks.installed()


def test_a_fork_dies_of_a_signal_and_its_starter_is_told(tmp_path: Path) -> None:
    (tmp_path / "wait.py").write_text("print('there', flush=True)\nimport signal\nsignal.pause()\n", encoding="utf-8")
    words = [sys.executable, "-m", "atoll.runtime.daemon.child", str(os.getpid()), forks.OPEN, "wait"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        process.kill()
        assert process.wait() == -signal.SIGKILL
