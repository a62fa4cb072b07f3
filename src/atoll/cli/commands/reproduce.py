"""``atoll reproduce``: a paper's table, our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from atoll.cli.app import EXTRAS, INTERRUPT_CODE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import CHECKPOINT_COUNTS, Output, PlainTable
from atoll.core.errors import AtollError, ConfigError
from atoll.core.job import Job
from atoll.report.progress import Rounds
from atoll.reproduce import Claim, Entry, Interrupted, Lab, Page, entries, find_entry, reproduce, tallies
from atoll.runs import INTERRUPTED, Stopping

_BASES = ("measured", "derived")


@app.command("reproduce", rich_help_panel=EXTRAS)
def command(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(help="The experiment; without a name, all are listed.")] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="List every experiment, with how many statements hold: measured, and derived."),
    ] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Take under a minute on less data, and judge only what ran: a smoke test, not evidence."
        ),
    ] = False,
    fresh: Annotated[bool, typer.Option("--fresh", help="Run again, and ignore saved results.")] = False,
    kept: Annotated[
        bool, typer.Option("--kept", help="Train nothing: judge saved results, and list what has not run.")
    ] = False,
    page: Annotated[
        Path | None,
        typer.Option("--page", help="Also write verdicts and tables into this Markdown page.", metavar="FILE"),
    ] = None,
    root: Annotated[Path, typer.Option("--root", help="Folder for its trainings.", metavar="FOLDER")] = Path(
        "runs/reproduce"
    ),
    json: Json = False,
) -> int:
    """Run a paper's experiment again and compare our numbers with the paper's."""
    output = output_of(context)
    if name is None or listed:
        _list(output)
        return 0
    wanted = find_entry(name)
    if fresh and kept:
        raise ConfigError(
            "--fresh discards the results that --kept judges", where="atoll reproduce", remedy="give one of the two"
        )
    written = None if page is None else Page(page, wanted).check()
    output.note(f"{wanted.title}\nSource: {wanted.source}")
    stopping = Stopping(tell=output.note)
    output.if_stopped = CHECKPOINT_COUNTS
    shown: list[Rounds] = []
    lab = Lab(root / (wanted.folder or wanted.name), stopping, _watch(output, shown), fresh, kept)
    try:
        with stopping.signals():
            found = reproduce(name, lab, quick=quick)
    except Interrupted:
        output.give({"name": name, "status": INTERRUPTED})
        output.note("[bold]Interrupted.[/bold] Run the same command again to continue where it stopped.")
        return INTERRUPT_CODE
    finally:
        _close(shown)
    if written is not None:
        written.write(found)
    output.give(found, _table(found))
    return 0


def _watch(output: Output, shown: list[Rounds]) -> Callable[[str, Job], Callable[[dict[str, Any]], None]]:
    """Show one progress display after the other."""

    def begin(title: str, job: Job) -> Callable[[dict[str, Any]], None]:
        _close(shown)
        display = Rounds(output.console, job, title)
        display.__enter__()
        shown.append(display)
        return display.record

    return begin


def _close(shown: list[Rounds]) -> None:
    while shown:
        shown.pop().__exit__(None, None, None)


def _list(output: Output) -> None:
    counts = tallies()
    rows = [{**_row(name, found), "verdicts": counts.get(name, {})} for name, found in entries().items()]
    table = PlainTable(header_style="bold")
    for column in ("name", "title", "measured: hold", "derived: hold", "needs"):
        table.add_column(column)
    for row in rows:
        table.add_row(row["name"], row["title"], *(_held(row["verdicts"].get(b)) for b in _BASES), row["needs"])
    output.give({"reproductions": rows}, table)
    output.note(
        "Counts are those of the last full run, as the pages of results show them. Derived statements are arithmetic on the paper's own numbers."
    )


def _held(counts: dict[str, int] | None) -> str:
    """Return how many of the judged statements hold, and how many are open."""
    if not counts:
        return "-"
    judged = counts.get("holds", 0) + counts.get("does not hold", 0)
    rest = sum(counts.values()) - judged
    return f"{counts.get('holds', 0)} of {judged}" + (f", {rest} open" if rest else "")


def _row(name: str, found: Entry | AtollError) -> dict[str, Any]:
    """An entry's line, or why it is missing."""
    if isinstance(found, AtollError):
        return {"name": name, "title": f"broken: {found}", "source": "", "needs": ""}
    return {"name": name, "title": found.title, "source": found.source, "needs": found.needs}


def _table(found: dict[str, Any]) -> Table:
    table = PlainTable(header_style="bold")
    for column in ("claim", "paper", "ours", "holds", "note"):
        table.add_column(column)
    for claim in found["claims"]:
        holds = {True: "[green]yes[/green]", False: "[red]no[/red]", None: Claim(**claim).verdict}[claim["holds"]]
        paper = "" if claim["paper"] is None else str(claim["paper"])
        table.add_row(claim["claim"], paper, str(claim["ours"]), holds, claim["note"])
    return table
