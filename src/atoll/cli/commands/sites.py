"""``atoll sites``: the sites of a server, and the state of their lines."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape
from rich.table import Table

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, open_kit
from atoll.cli.output import PlainTable


@app.command("sites", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """List the sites that have joined since the server started: whether they are connected, their round trip, clock and traffic."""
    output = output_of(context)

    found = asked(open_kit(kit, passphrase_file), server, lambda admin: admin.sites())
    output.give({"sites": found}, _table(found) if found else "No site has joined since the server started.")


def _table(rows: list[dict[str, Any]]) -> Table:
    table = PlainTable(header_style="bold")
    for name in ("site", "of", "plays", "line", "round trip", "clock", "MiB in", "MiB out", "cuts"):
        table.add_column(name, justify="left" if name in ("site", "of", "plays", "line") else "right")
    for row in rows:
        trip, skew = row["round_trip"], row["skew"]
        table.add_row(
            escape(row["site"]), escape(row["org"]), escape(row.get("plays", "")), "[green]there[/green]" if row["connected"] else "[red]gone[/red]",
            "" if trip is None else f"{1000 * trip:.0f} ms", "" if skew is None else f"{skew:+.1f} s",
            f"{row['received'] / 2**20:.1f}", f"{row['sent'] / 2**20:.1f}", str(row["resumes"]),
        )  # fmt: skip
    return table
