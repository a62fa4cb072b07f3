"""``atoll algorithms``: the algorithms, their costs and their properties."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer
from rich.table import Table

from atoll.cli.algorithms_page import COLUMNS, MEANING, cells_of, page
from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.output import PlainTable
from atoll.learn.catalogue import Fact, facts


@app.command("algorithms", rich_help_panel=EXTRAS)
def command(
    context: typer.Context,
    names: Annotated[list[str] | None, typer.Argument(help="List only these algorithms. Default: all.")] = None,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation page as Markdown.")] = False,
    json: Json = False,
) -> None:
    """List the algorithms: paper, client state, floats per round each way, and properties."""
    found = facts(tuple(names or ()))
    if markdown and not output_of(context).json:
        typer.echo(page(found), nl=False)
        return
    output_of(context).give({"algorithms": [asdict(fact) for fact in found]}, _cards(found) if names else _table(found))


def _table(found: list[Fact]) -> Table:
    caption = f"{MEANING} Papers: --json, or name an algorithm."
    table = PlainTable(header_style="bold", caption=caption)
    for column in COLUMNS:
        table.add_column(column)
    for fact in found:
        table.add_row(*cells_of(fact))
    return table


def _cards(found: list[Fact]) -> Table:
    """One block of lines for each algorithm."""
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold")
    for fact in found:
        for title, cell in zip((*COLUMNS, "paper", "note"), (*cells_of(fact), fact.paper, fact.note), strict=True):
            table.add_row(title, cell or "no")
        table.add_row()
    return table
