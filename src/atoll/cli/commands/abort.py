"""``atoll abort``: end a job."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import JobName, KitOption, PassphraseFile, ServerOption, asked, id_of, line_of, open_kit

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin


@app.command("abort", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: JobName,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """End a job in every process; returns when all of them have stopped."""

    async def body(admin: Admin) -> dict[str, Any]:
        return await admin.abort(await id_of(admin, job))

    found = asked(open_kit(kit, passphrase_file), server, body)
    output_of(context).give(found, line_of(found))
