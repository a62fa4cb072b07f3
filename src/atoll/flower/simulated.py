"""A Flower app in a simulation, and as a job."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from atoll.rounds.program import ProgramJob
from atoll.simulation import Result, simulate

from .app import FlowerApp, Value
from .loading import loaded_app
from .program import flower_program

__all__ = ["job_of", "simulate_app"]

_LATE = "torch._dynamo"
"""What PyTorch imports when an optimizer is first used: seconds that each worker would spend."""


def simulate_app(
    app: FlowerApp,
    changes: Mapping[str, Value] | None = None,
    *,
    nodes: int | None = None,
    engine: str = "processes",
    workers: int | None = None,
) -> Result:
    """Run an app on this machine.

    Args:
        app: the app.
        changes: of its run configuration.
        nodes: number of clients; by default the app's own.
        engine: inline, processes or ray.
        workers: number of processes.

    Raises:
        AtollError: the app cannot be imported, or its ServerApp raised.
    """
    count = app.nodes if nodes is None else nodes
    islands = {f"node-{i}": None for i in range(count)}  # a Flower client loads its own rows, by its partition's number
    with _importing(app.folder):
        loaded_app(app.clientapp, "clientapp")  # before workers are forked: they inherit what it imports
        if engine != "inline" and "torch" in sys.modules:
            importlib.import_module(_LATE)
        program = flower_program(app.serverapp, app.clientapp, app.configured(changes or {}))
        found: Result = simulate(ProgramJob.of(program), islands, engine=engine, workers=workers)
    return found


def job_of(app: FlowerApp, changes: Mapping[str, Value], here: Path) -> dict[str, Any]:
    """Return an app as the settings of a job.

    Args:
        app: the app.
        changes: of its run configuration.
        here: the folder that the job's file will be in.
    """
    arguments = {"serverapp": app.serverapp, "clientapp": app.clientapp, "config": app.configured(changes)}
    return {
        "name": app.name, "sites": "all", "source": os.path.relpath(app.folder, here), "job": "program",
        "program": "atoll.flower:flower_program", "arguments": arguments,
    }  # fmt: skip


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    """Find an app's modules; workers inherit the path."""
    sys.path.insert(0, str(folder))
    kept = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), *([kept] if kept else [])])
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        os.environ.pop("PYTHONPATH", None)
        if kept is not None:
            os.environ["PYTHONPATH"] = kept
