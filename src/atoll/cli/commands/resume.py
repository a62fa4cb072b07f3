"""``atoll resume``: continue a job that failed or was aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import JobName, KitOption, PassphraseFile, ServerOption, asked, ending, id_of, open_kit, waited

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin


@app.command("resume", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: JobName,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; fail if the job fails.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> int:
    """Continue a job that failed or was aborted from its last checkpoint: the same job, one more attempt."""
    output = output_of(context)

    async def body(admin: Admin) -> dict[str, Any]:
        found = await admin.resume(await id_of(admin, job))
        output.note(f"job {found['job']} continues")
        return await waited(admin, found, output) if wait else found

    return ending(asked(open_kit(kit, passphrase_file), server, body), output)
