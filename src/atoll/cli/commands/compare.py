"""``atoll compare``: runs side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.table import Table

from atoll.cli.app import INSPECT, app
from atoll.cli.arguments import Json, Root, find_runs, output_of
from atoll.cli.groups import table_of
from atoll.cli.output import PlainTable
from atoll.core.overview import human_bytes
from atoll.report import compare_runs, write_comparison
from atoll.report.groups import differences, grouped, main_metric


@app.command("compare", rich_help_panel=INSPECT)
def command(
    context: typer.Context,
    runs: Annotated[
        list[str], typer.Argument(help="Names or folders of two or more runs, or patterns such as 'runs/*'.")
    ],
    output: Annotated[Path | None, typer.Option("--output", help="Where to write the page.", metavar="FILE")] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="The metric of which seeds are summarised.")] = None,
    root: Root = Path("runs"),
    json: Json = False,
) -> None:
    """Compare runs: a table, and a page with their curves in one plot. Runs that differ in their seeds alone are one group, with a band."""
    folders = find_runs(runs, root)
    rows, groups = compare_runs(folders), grouped(folders)
    page = write_comparison(folders, output or root / "comparison.html", metric)
    found: dict[str, Any] = {"runs": rows, "report": str(page)}
    shown: Any = _table(rows)
    if len(groups) < len(folders):
        name = main_metric(groups, metric)
        summary, tests = [group.row(name) for group in groups], differences(groups, name)
        found |= {"metric": name, "groups": summary, "differences": [vars(one) for one in tests]}
        shown = Group(_table(rows), "", table_of(summary, tests))
    output_of(context).give(found, shown)
    output_of(context).note(f"Page: {page}")


def _table(rows: list[dict[str, Any]]) -> Table:
    settings = list(rows[0]["settings"])
    table = PlainTable(header_style="bold")
    table.add_column("run")
    private = any(row["epsilon"] is not None for row in rows)
    spent = ("epsilon",) if private else ()
    for name in ("rounds", "accuracy", "best (round)", "worst tenth", *spent, "sent up", "seconds", *settings):
        table.add_column(name, justify="right")
    for row in rows:
        best = "" if row["best_accuracy"] is None else f"{_percent(row['best_accuracy'])} ({row['best_round']})"
        table.add_row(
            row["run"],
            str(row["rounds"]),
            _percent(row["accuracy"]),
            best,
            _percent(row["worst_decile"]),
            *((("" if row["epsilon"] is None else f"{row['epsilon']:.4g}"),) if private else ()),
            human_bytes(row["bytes_up"]),
            "" if row["seconds"] is None else f"{row['seconds']:,.1f}",
            *(str(row["settings"][path]) for path in settings),
        )
    return table


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f} %"
