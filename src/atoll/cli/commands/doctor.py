"""``atoll doctor``: what is installed, and what is not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import Any

import typer
from rich.table import Table

from atoll.cli.app import app
from atoll.cli.arguments import Json, output_of
from atoll.runs.versions import versions

_EXTRAS = {
    "torch": ("torch",),
    "sklearn": ("sklearn",),
    "report": ("matplotlib", "jinja2"),
    "arrow": ("pyarrow",),
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow",),
    "he": ("tenseal",),
}


@app.command("doctor")
def command(context: typer.Context, json: Json = False) -> None:
    """Say what this installation can do, and what would add the rest."""
    found = _examine()
    output_of(context).give(found, _table(found))


def _examine() -> dict[str, Any]:
    extras = {name: all(importlib.util.find_spec(m) for m in modules) for name, modules in _EXTRAS.items()}
    data = os.environ.get("ATOLL_DATA")
    return {
        "versions": versions(),
        "extras": extras,
        "install": {name: f'pip install "atoll[{name}]"' for name, there in extras.items() if not there},
        "compiler": next((name for name in ("c++", "g++", "clang++", "cl") if shutil.which(name)), None),
        "cores": os.cpu_count(),
        "devices": _devices(extras["torch"]),
        "atoll_data": None if data is None else os.path.isdir(data),  # noqa: PTH112 - only whether it is there
    }


def _devices(torch_there: bool) -> list[str]:
    if not torch_there:
        return ["cpu"]
    import torch

    found = ["cpu"]
    if torch.cuda.is_available():
        found += [f"cuda:{i} {torch.cuda.get_device_name(i)}" for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _table(found: dict[str, Any]) -> Table:
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, version in found["versions"].items():
        table.add_row(name, version)
    for name, there in found["extras"].items():
        table.add_row(
            f"extra {name}", "[green]installed[/green]" if there else found["install"][name].replace("[", "\\[")
        )
    compiler = found["compiler"] or "none: the batched engine runs without compiling, which is slower"
    table.add_row("C++ compiler", compiler)
    table.add_row("cores", str(found["cores"]))
    table.add_row("devices", ", ".join(found["devices"]))
    known = {None: "not set", True: "a folder", False: "[red]not a folder[/red]"}
    table.add_row("ATOLL_DATA", known[found["atoll_data"]])
    return table
