"""``atoll doctor`` shows what is installed; ``atoll doctor KIT`` checks a kit and the way to its server."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.core.errors import ConfigError
from atoll.runs.versions import versions

if TYPE_CHECKING:
    from atoll.runtime.provision.doctor import Finding

_EXTRAS = {
    "torch": ("torch",),
    "sklearn": ("sklearn",),
    "report": ("matplotlib", "jinja2"),
    "arrow": ("pyarrow",),
    "tensorboard": ("tensorboardX",),
    "mlflow": ("mlflow",),
    "he": ("tenseal",),
    "secure": ("cryptography", "tenseal", "gmpy2", "rbcl"),
    "dp": ("dp_accounting",),
    "ray": ("ray",),
    "net": ("cryptography",),
    "grpc": ("grpc", "cryptography"),
    "duckdb": ("duckdb",),
    "sql": ("duckdb", "sqlglot", "pyarrow", "cryptography"),
    "postgres": ("psycopg",),
}


_KIT = typer.Argument(help="A startup kit: check it and the way to the server.", metavar="[KIT]", show_default=False)


@app.command("doctor", rich_help_panel=EXTRAS)
def command(
    context: typer.Context,
    kit: Annotated[Path | None, _KIT] = None,
    work: Annotated[Path, typer.Option("--work", help="The party's working folder.", metavar="FOLDER")] = Path(),
    patience: Annotated[float, typer.Option("--timeout", help="Seconds for each attempt.", min=0.1)] = 5.0,
    passphrase_file: Annotated[
        Path | None,
        typer.Option("--passphrase-file", help="File whose first line decrypts the kit's key.", metavar="FILE"),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option("--data", help="The site's data, as for `atoll site`: look at its database.", metavar="SPEC"),
    ] = None,
    json: Json = False,
) -> None:
    """Show what this installation can do. With a kit, check the kit and the way to its server, and show what to fix."""
    if kit is None and data is not None:
        raise ConfigError("--data belongs to a site's kit", where="doctor", remedy="write atoll doctor KIT --data SPEC")
    if kit is None:
        found = _examine()
        output_of(context).give(found, _table(found))
        return
    from atoll.runtime.provision import Kit, find_passphrase
    from atoll.runtime.provision.doctor import examine
    from atoll.runtime.provision.keys import close_memory
    from atoll.runtime.provision.kit_checks import attempt

    close_memory()
    opened = Kit.read(kit, find_passphrase(passphrase_file))
    findings = list(examine(opened, work, patience))
    if data is not None:
        findings.append(attempt("data", lambda: _look(data, opened.name, bool(opened.plays))))
    well = all(finding.state != "problem" for finding in findings)
    shown = {"kit": str(kit), "name": opened.name, "role": opened.role, "project": opened.project, "ok": well}
    output_of(context).give({**shown, "findings": [vars(finding) for finding in findings]}, _report(findings))
    if not well:
        raise typer.Exit(1)


def _look(data: str, name: str, helper: bool) -> str:
    """Look at a site's data as `atoll site` does before it connects, the database included."""
    from atoll.runtime.site.database import look_at_settings
    from atoll.runtime.worker import site_spec
    from atoll.runtime.worker.headers import look_at_headers

    spec = site_spec(data)
    look_at_headers(spec, name, helper)
    return look_at_settings(spec, name, helper) or f"{data}: the headers and settings can be used"


def _report(findings: list[Finding]) -> Table:
    from rich.markup import escape

    table = PlainTable(show_header=False)
    words = {
        "ok": "[green]ok[/green]",
        "problem": "[red]problem[/red]",
        "warning": "[yellow]warning[/yellow]",
        "skipped": "[dim]skipped[/dim]",
    }
    for finding in findings:
        table.add_row(finding.step, words[finding.state], escape(finding.said))
        if finding.remedy is not None:
            table.add_row("", "[bold]do[/bold]", escape(finding.remedy))
    return table


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
    table = PlainTable(show_header=False)
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
