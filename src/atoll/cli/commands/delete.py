"""``atoll delete``: delete jobs that have ended."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, id_of, open_kit

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin


@app.command("delete", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    jobs: Annotated[
        list[str],
        typer.Argument(
            help="The jobs' ids, as `atoll jobs` shows them, or numbers.", metavar="JOB...", show_default=False
        ),
    ],
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Delete jobs that have ended, with log, code and results at the server and private states at the sites. Events and privacy ledgers stay."""
    output = output_of(context)

    async def body(admin: Admin) -> list[str]:
        deleted = []
        for job in jobs:
            found = await id_of(admin, job)
            await admin.delete(found)
            output.note(f"job {found} is deleted")
            deleted.append(found)
        return deleted

    output.give({"deleted": asked(open_kit(kit, passphrase_file), server, body)})
