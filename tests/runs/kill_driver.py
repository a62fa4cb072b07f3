"""Runs and kills, each in a process of its own: a script for test_kill.py.

Importing takes longer than training, so it is done once: every run is a forked child. A child kills itself with SIGKILL at a given file
operation (before a flush, before a rename, before a removal, half-way through a line), or is killed from outside at a given time.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from atoll.cli import run
from atoll.core.persistence.files import as_json
from atoll.runs import RunFolder, load_config, to_job


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_at_operation(number: int) -> None:
    """Make the n-th file operation the last thing this process does."""
    count = [0]

    def counted(operation: Any) -> Any:
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            count[0] += 1
            if count[0] == number:
                die()
            return operation(*args, **kwargs)

        return wrapped

    def torn(folder: RunFolder, row: dict[str, Any]) -> None:
        count[0] += 1
        line = as_json(row) + "\n"
        with folder.metrics_file.open("a") as file:
            file.write(line[: len(line) // 2] if count[0] == number else line)
        if count[0] == number:
            die()

    os.fsync = counted(os.fsync)
    Path.replace = counted(Path.replace)  # type: ignore[method-assign]
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]
    RunFolder.append_metrics = torn  # type: ignore[method-assign]


def child(config: str, folder: Path, *, operation: int | None = None, seconds: float | None = None) -> int:
    """Run in a child; return its exit code, or minus the signal that ended it."""
    pid = os.fork()
    if pid == 0:
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        if operation is not None:
            kill_at_operation(operation)
        os._exit(run(["run", config, "--folder", str(folder), "--resume", "--no-report"]))
    if seconds is not None:
        timer = threading.Timer(seconds, os.kill, (pid, signal.SIGKILL))
        timer.start()
        timer.join()
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def outcome(config: str, folder: Path, kills: list[dict[str, Any]]) -> dict[str, Any]:
    codes = [child(config, folder, **kill) for kill in kills]
    last = child(config, folder)
    done = RunFolder(folder)
    return {
        "kills": kills,
        "codes": codes,
        "last": last,
        "model": done.model_file.read_bytes().hex(),
        "metrics": done.metrics_file.read_text(),
        "status": done.status(),
    }


def main(config: str, work: Path, seed: int, cases: int) -> None:
    # What children would load each for themselves.
    to_job(load_config(config))
    for module in (
        "cli.commands.run",
        "learn.prepared",
        "learn.round.phases",
        "learn.round.rounds",
        "report.facts",
        "simulation",
    ):
        importlib.import_module(f"atoll.{module}")
    rng = random.Random(seed)
    begin = time.monotonic()
    reference = outcome(config, work / "reference", [])
    whole = time.monotonic() - begin
    killed = []
    for case in range(cases):
        kills: list[dict[str, Any]] = [{"operation": rng.randint(1, 90)} for _ in range(rng.randint(1, 3))]
        if case % 4 == 3:
            kills = [{"seconds": rng.uniform(0.0, whole)} for _ in range(2)]
        killed.append(outcome(config, work / f"case-{case}", kills))
    json.dump({"reference": reference, "killed": killed}, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
