"""``atoll explain``: who will see what of a job, before anyone is contacted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from atoll.cli.app import INSPECT, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import Output, PlainTable
from atoll.core.errors import ConfigError
from atoll.runs import yaml


@app.command("explain", rich_help_panel=INSPECT)
def command(
    context: typer.Context,
    job: Annotated[Path, typer.Argument(help="A configuration of atoll run, or a job of atoll submit.", metavar="JOB")],
    clients: Annotated[
        int | None, typer.Option("--clients", help="Clients in a round, if the file does not say.", min=1)
    ] = None,
    json: Json = False,
) -> None:
    """Say who will see what, under which assumption, and what a round costs. Nobody is contacted."""
    output = output_of(context)
    made, data, known = _read(job)
    count = clients or known
    if data is None and count == 0:
        raise ConfigError(
            f"{job} does not say how many clients take part", where="atoll explain", remedy="add --clients N"
        )
    found = made.explain(data, count)
    output.give(found.facts(), _tables(output, found.facts()))


def _read(path: Path) -> tuple[Any, Any, int]:
    """The job, its data if they are at hand, and the number of clients that the file names."""
    from atoll.runs.config import load_config, to_job

    tree = yaml.read(path)
    if isinstance(tree, dict) and isinstance(tree.get("data"), dict) and "source" in tree["data"]:
        made, data = to_job(load_config(path))
        return made, data, 0
    from atoll.runtime.job_spec import importing, load_job

    config = load_job(path).complete()
    with importing(config.source_folder):
        return config.made(checking=True), None, 0 if config.sites == "all" else len(config.sites)


def _tables(output: Output, facts: dict[str, Any]) -> PlainTable:
    table = PlainTable(title=f"{facts['job']}, {facts['clients']} clients in a round")
    for name in ("who", "sees", "assuming that"):
        table.add_column(name)
    for row in facts["exposures"]:
        table.add_row(row["who"], row["sees"], row["assuming"])
    for row in facts.get("frames", []):
        table.add_row(f"{row['source']} to {row['target']}", f"{row['name']}: {row['rows']:,} x {row['width']} bytes", row["holds"])  # fmt: skip
    for name, value in facts["costs"].items():
        table.add_row("cost", name.replace("_", " "), f"{value:,.2f}" if isinstance(value, float) else str(value))
    for note in facts["notes"]:
        table.add_row("note", note, "")
    return table
