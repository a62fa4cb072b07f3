"""``atoll logs``: the log of a job's processes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import JobName, KitOption, PassphraseFile, ServerOption, asked, goes_on, id_of, moment, open_kit

if TYPE_CHECKING:
    from atoll.runtime.client.admin import Admin


@app.command("logs", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: JobName,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing until the job has ended.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Show the log of a job: the lines of its server process and of each site's process."""
    output = output_of(context)

    async def body(admin: Admin) -> list[dict[str, Any]]:
        lines, found = [], await id_of(admin, job)
        output.if_stopped = goes_on(found) if follow else ""
        async for when, node, text in admin.logs(found, follow):
            lines.append({"when": when, "node": node, "text": text})
            if not output.json:
                output.say(f"[dim]{moment(when)}[/dim] [bold]{escape(node)}[/bold] {escape(text)}")
        return lines

    lines = asked(open_kit(kit, passphrase_file), server, body)
    output.give({"job": job, "lines": lines})
