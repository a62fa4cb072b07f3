"""``atoll clone``: run a job again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import JobName, KitOption, PassphraseFile, ServerOption, asked, ending, id_of, open_kit, waited

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin


@app.command("clone", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: JobName,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, as in --set seed=1.", metavar="A.B=C")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; fail if the job fails.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> int:
    """Submit a job of the server again, with changed settings if you like, signed with your key."""
    output = output_of(context)

    async def body(admin: Admin) -> dict[str, Any]:
        found = await admin.clone(await id_of(admin, job), settings or ())
        output.note(f"job {found['job']} is submitted")
        return await waited(admin, found, output) if wait else found

    return ending(asked(open_kit(kit, passphrase_file), server, body), output)
