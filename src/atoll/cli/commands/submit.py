"""``atoll submit``: submit a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, ending, open_kit, waited

if TYPE_CHECKING:
    from atoll.runtime.client.admin import Admin


@app.command("submit", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: Annotated[
        Path, typer.Argument(help="A YAML file, or a folder with job.yaml.", metavar="JOB", show_default=False)
    ],
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="Change a setting, as in --set rounds=5.", metavar="A.B=C")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the end; fail if the job fails.")] = False,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> int:
    """Sign a job with your key and submit it."""
    output = output_of(context)

    async def body(admin: Admin) -> dict[str, Any]:
        found = await admin.submit(job, settings or ())
        output.note(f"job {found['job']} is submitted")
        return await waited(admin, found, output) if wait else found

    return ending(asked(open_kit(kit, passphrase_file), server, body), output)
