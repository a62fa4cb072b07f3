"""``atoll submit``: submit a job."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import KitOption, PassphraseFile, ServerOption, asked, ending, open_kit, waited
from atoll.core.errors import AtollError

if TYPE_CHECKING:
    from atoll.runtime.admin import Admin

_SHOWN = 24
"""Most numbers that stand below a finished job."""


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
        if not wait:
            output.note(f"Follow it: atoll logs {found['job']} -f")
            return found
        ended = await waited(admin, found, output)
        if ended["state"] != "finished":
            return ended
        try:
            return {**ended, **await reached(admin, ended["job"])}
        except AtollError as error:  # the job has finished all the same
            output.note(f"Its numbers could not be read: {escape(str(error))}")
            return ended

    ended = asked(open_kit(kit, passphrase_file), server, body)
    code = ending(ended, output)
    found = list(ended.get("result", {}).items())
    for name, value in found[:_SHOWN]:
        output.say(f"  {escape(name)}: {escape(value if isinstance(value, str) else f'{value:.6g}')}")
    for notice in ended.get("notices", ()):
        output.note(escape(notice))
    if len(found) > _SHOWN:
        output.note(f"and {len(found) - _SHOWN} more: --json, or the report")
    if ended["state"] == "finished":
        output.note(f"Model, measures and report: atoll result {ended['job']}")
    return code


async def reached(admin: Admin, job: str) -> dict[str, Any]:
    """What a finished job has found, in short: ``result``, numbers and words by name, and ``notices``, what to know of them, such as who was refused and why.

    Args:
        admin: the connection.
        job: its id.
    """
    from atoll.report.trackers import flat
    from atoll.runs import RunFolder

    with tempfile.TemporaryDirectory(prefix="atoll-result-") as place:
        await admin.result(job, Path(place), replace=True, files=("manifest.json", "metrics.jsonl", "config.yaml"))
        folder = RunFolder(place)
        manifest, rows = folder.manifest(), folder.metrics()
    last = {name: value for row in rows for name, value in row.items()}
    measures = {name: value for name, value in last.items() if "/" in name or name in ("round", "loss", "epsilon")}
    found = flat({"": _without_lists(measures), **_without_lists(manifest.get("result") or {})})
    named = {name.lstrip("./"): value for name, value in found.items() if isinstance(value, int | float | str)}
    return {"result": named, "notices": list(manifest.get("notices") or ())}


def _without_lists(tree: Any) -> Any:
    """Leave out lists: a place in one says nothing without its name, such as that of a client or a bin; the report has them."""
    if not isinstance(tree, dict):
        return tree
    return {name: _without_lists(value) for name, value in tree.items() if not isinstance(value, list)}
