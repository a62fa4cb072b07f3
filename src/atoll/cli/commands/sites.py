"""``atoll sites``: the sites of a server, and the state of their lines."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, moment, open_kit
from atoll.cli.output import PlainTable


@app.command("sites", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """List the sites of the project: whether they are connected, when they last were, their round trip, clock and traffic."""
    output = output_of(context)

    found = asked(open_kit(kit, passphrase_file), server, lambda admin: admin.sites())
    output.give({"sites": found}, _table(found) if found else "The server knows no site yet.")


def _table(rows: list[dict[str, Any]]) -> Table:
    table = PlainTable(header_style="bold")
    for name in ("site", "of", "plays", "line", "last seen", "round trip", "clock", "MiB in", "MiB out", "cuts"):
        table.add_column(name, justify="left" if name in ("site", "of", "plays", "line", "last seen") else "right")
    for row in rows:
        trip, skew = row["round_trip"], row["skew"]
        table.add_row(
            escape(row["site"]), escape(row["org"]), escape(row["plays"]), _line(row), "never" if row["seen"] is None else moment(row["seen"]),
            "" if trip is None else f"{1000 * trip:.0f} ms", "" if skew is None else f"{skew:+.1f} s",
            *("" if row[name] is None else f"{row[name] / 2**20:.1f}" for name in ("received", "sent")),
            "" if row["resumes"] is None else str(row["resumes"]),
        )  # fmt: skip
    return table


def _line(row: dict[str, Any]) -> str:
    if row["revoked"]:
        return "[red]revoked[/red]"
    return "[green]there[/green]" if row["connected"] else "[red]gone[/red]" if row["seen"] else "[dim]never came[/dim]"
