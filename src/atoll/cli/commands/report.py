"""``atoll report``: write a run's report again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.app import INSPECT, app
from atoll.cli.arguments import Json, Root, find_run, output_of
from atoll.report import write_report


@app.command("report", rich_help_panel=INSPECT)
def command(
    context: typer.Context,
    run: Annotated[str, typer.Argument(help="A run's name or folder.")],
    output: Annotated[Path | None, typer.Option("--output", help="Where to write the page.", metavar="FILE")] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> None:
    """Write the HTML report of a run, even if the run is still going or failed."""
    page = write_report(find_run(run, root), output)
    output_of(context).give({"run": run, "report": str(page)}, str(page))
