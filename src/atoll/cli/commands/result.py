"""``atoll result``: fetch the results of a job; at a site, the named results that stay there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, id_of, open_kit
from atoll.core.errors import ConfigError, nearest
from atoll.core.persistence.files import read_message, write_message
from atoll.core.persistence.named_results import NamedResults

if TYPE_CHECKING:
    from atoll.cli.output import Output
    from atoll.runtime.admin import Admin
    from atoll.runtime.provision import Kit


@app.command("result", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: Annotated[
        str | None,
        typer.Argument(
            help="The job's id or number. With a site's kit, the name of a result that stays there; by default all are listed.",
            metavar="[JOB|NAME]",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="Destination; by default ./JOB, or ./NAME.msg.", metavar="PATH")
    ] = None,
    kit: KitOption = None,
    folder: Annotated[
        Path | None,
        typer.Option("--folder", help="A site's folder, or a run's; by default ./NAME of the kit.", metavar="FOLDER"),
    ] = None,
    party: Annotated[str | None, typer.Option("--party", help="The party, if several have such a result.")] = None,
    server: ServerOption = None,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> None:
    """Fetch the model, the metrics and the report of a job. With a site's kit, or --folder: list and export the named results that stay there."""
    output = output_of(context)
    opened = None if folder is not None and kit is None else open_kit(kit, passphrase_file)
    if opened is None or opened.role in ("site", "helper"):
        place = (folder or Path("." if opened is None else opened.name)).absolute()
        stays(output, place, job, party, out)
        return
    if job is None:
        raise ConfigError("no job was given", where="JOB", remedy="give the job's id or number: see atoll jobs")
    _fetch(output, opened, server, job, out or Path(job))


def _fetch(output: Output, kit: Kit, server: str | None, job: str, place: Path) -> None:
    withheld: dict[str, str] = {}

    async def body(admin: Admin) -> list[Path]:
        return await admin.result(await id_of(admin, job), place, withheld=withheld)

    found = asked(kit, server, body)
    shown = {"job": job, "folder": str(place), "files": [path.name for path in found], "withheld": withheld}
    lines = [f"{len(found)} files in {place}: {', '.join(path.name for path in found)}"]
    lines += [f"not fetched: {name}, which is {why}" for name, why in withheld.items()]
    output.give(shown, "\n".join(lines))


def stays(output: Output, place: Path, name: str | None, party: str | None, out: Path | None) -> None:
    """List the named results that stay in a folder, or export one.

    Raises:
        ConfigError: no result has this name, or several parties have one.
        CheckpointError: a file is damaged.
    """
    found = [one for one in NamedResults(place / "results").all() if party in (None, one.party)]
    if name is None:
        rows = [
            {"party": o.party, "name": o.name, "job": o.job, "saved": o.saved, "bytes": o.nbytes, "file": str(o.path)}
            for o in found
        ]
        lines = [f"{o.party}  {o.name}  {o.nbytes} bytes  {o.saved}  {o.job}".rstrip() for o in found]
        output.give({"folder": str(place), "results": rows}, "\n".join(lines) or f"no results stay in {place}")
        return
    wanted = [one for one in found if one.name == name]
    if len(wanted) != 1:
        known = sorted({one.name for one in found})
        raise ConfigError(
            f"{len(wanted)} parties have a result {name!r}" + (nearest(name, known) if not wanted else ""),
            where=str(place),
            remedy="name one with --party: " + ", ".join(one.party for one in wanted)
            if wanted
            else "list them: leave the name out",
        )
    target = out or Path(f"{name.replace('/', '.')}.msg")
    write_message(target, read_message(wanted[0].path)["value"])
    output.give(
        {"party": wanted[0].party, "name": name, "file": str(target)}, f"{name} of {wanted[0].party} is in {target}"
    )
