"""``atoll runs``: a table of the runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from atoll.cli.app import INSPECT, app
from atoll.cli.arguments import Json, Root, output_of
from atoll.cli.output import PlainTable
from atoll.core.errors import CheckpointError
from atoll.runs import RunFolder, runs_in

_COLOURS = {"finished": "green", "running": "cyan", "interrupted": "yellow", "failed": "red", "unreadable": "red"}


@app.command("runs", rich_help_panel=INSPECT)
def command(context: typer.Context, root: Root = Path("runs"), json: Json = False) -> None:
    """List the runs."""
    output = output_of(context)
    rows = [_row(folder) for folder in runs_in(root)]
    output.give({"root": str(root), "runs": rows}, _table(rows) if rows else f"There are no runs below {root} yet.")


def _row(folder: RunFolder) -> dict[str, Any]:
    try:
        manifest, rows = folder.manifest(), folder.metrics()
        return {
            "run": folder.name,
            "status": folder.status(),
            **_asked(folder),
            "rounds": len(rows),
            "accuracy": folder.reached().get("accuracy"),
            "started": manifest.get("started"),
            "seconds": manifest.get("seconds"),
        }
    except CheckpointError as error:
        return {"run": folder.name, "status": "unreadable", "error": str(error)}


def _asked(folder: RunFolder) -> dict[str, Any]:
    """The data's source and division, the algorithm, and the number of rounds."""
    said, kind = folder.settings(), folder.job()
    data: Any = "all sites" if said.get("sites") == "all" else ", ".join(map(str, said.get("sites") or ()))
    if not folder.of_job:
        data = said["data"]["source"]["name"]
    method = said.get(kind.method)
    shown = method.get("name") if isinstance(method, dict) else method
    return {"data": data, "job": said.get("job", kind.kind), "method": shown or "", "of": said.get("rounds")}


def _table(rows: list[dict[str, Any]]) -> Table:
    table = PlainTable(header_style="bold")
    for name in ("run", "status", "data", "job", "method"):
        table.add_column(name)
    for name in ("rounds", "accuracy", "seconds"):
        table.add_column(name, justify="right")
    table.add_column("started")
    for row in rows:
        colour = _COLOURS.get(row["status"], "white")
        accuracy = row.get("accuracy")
        table.add_row(
            row["run"],
            f"[{colour}]{row['status']}[/{colour}]",
            row.get("data", row.get("error", "")),
            row.get("job", ""),
            row.get("method", ""),
            "" if "rounds" not in row else f"{row['rounds']}" if row["of"] is None else f"{row['rounds']}/{row['of']}",
            "" if accuracy is None else f"{100 * accuracy:.1f} %",
            "" if row.get("seconds") is None else f"{row['seconds']:,.1f}",
            str(row.get("started") or "").replace("T", " ").replace("+00:00", ""),
        )
    return table
