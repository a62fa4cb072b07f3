"""``atoll jobs``: the jobs of a server."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.table import Table

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import COLOURS, KitOption, PassphraseFile, ServerOption, asked, moment, open_kit, telling
from atoll.cli.output import PlainTable

if TYPE_CHECKING:
    from atoll.cli.output import Output
    from atoll.runtime.client.admin import Admin


@app.command("jobs", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    watch: Annotated[bool, typer.Option("--watch", help="Keep running and show every change; Ctrl-C ends it.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """List the jobs of the server, oldest first."""
    output = output_of(context)

    async def always(admin: Admin) -> list[dict[str, Any]]:
        # A file cannot be redrawn, so it gets a line for every change.
        await (_drawn if output.console.is_terminal else _told)(admin, output)
        return []

    body = always if watch and not output.json else lambda admin: admin.jobs()
    found = asked(open_kit(kit, passphrase_file), server, body)
    output.give({"jobs": found}, _table(found) if found else "There are no jobs yet.")


async def _drawn(admin: Admin, output: Output) -> None:
    with Live(console=output.console, auto_refresh=False) as live:
        async for found in admin.watch():
            live.update(_table(found), refresh=True)


async def _told(admin: Admin, output: Output) -> None:
    tells: defaultdict[str, Callable[[dict[str, Any]], None]] = defaultdict(lambda: telling(output))
    async for found in admin.watch():
        for job in found:
            tells[job["job"]](job)


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich.markup import escape

    table = PlainTable(header_style="bold")
    for name in ("job", "name", "state", "attempts", "submitter", "handed in", "sites", "why"):
        table.add_column(name)
    for row in rows:
        colour = COLOURS.get(row["state"], "white")
        why = "" if row["state"] in ("finished", "running") else escape(row["reason"])
        table.add_row(
            row["job"], escape(row["name"]), f"[{colour}]{row['state']}[/{colour}]", str(row["attempts"]),
            escape(f"{row['submitter']} ({row['org']})"), moment(row["created"]), escape(", ".join(row["sites"])), why,
        )  # fmt: skip
    return table
