"""``atoll result``: fetch what came out of a job."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.app import app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import JobName, KitOption, PassphraseFile, ServerOption, asked, id_of, open_kit

if TYPE_CHECKING:
    from atoll.runtime.fronts.admin import Admin


@app.command("result")
def command(
    context: typer.Context,
    job: JobName,
    out: Annotated[Path | None, typer.Option("--out", help="Where to; by default ./JOB.", metavar="FOLDER")] = None,
    kit: KitOption = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Fetch the model, the metrics and the report of a job."""
    place = out or Path(job)

    async def body(admin: Admin) -> list[Path]:
        return await admin.result(await id_of(admin, job), place)

    found = asked(open_kit(kit, passphrase_file), server, body)
    shown = {"job": job, "folder": str(place), "files": [path.name for path in found]}
    output_of(context).give(shown, f"{len(found)} files in {place}: {', '.join(path.name for path in found)}")
