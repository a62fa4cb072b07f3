"""``atoll server``: the server of a project."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import (
    Confine,
    NetworkOfJobs,
    PassphraseFile,
    Scratch,
    Show,
    confined_as,
    logging_on,
    open_kit,
    serving,
)

Metrics = Annotated[
    str | None,
    typer.Option(
        "--metrics", help="Serve /healthz and /metrics here, over plain HTTP; off by default.", metavar="HOST:PORT"
    ),
]
Takeover = Annotated[
    bool, typer.Option("--takeover", help="Let a second process with a site's kit replace the first while that lives.")
]
Standby = Annotated[
    bool,
    typer.Option("--standby", help="Wait while another server uses the folder, and serve once its process has ended."),
]


@app.command("server", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    kit: Annotated[Path, typer.Argument(help="The server's startup kit.", metavar="KIT", show_default=False)],
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Folder for jobs and results; by default ./NAME.", metavar="FOLDER")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", help="Address to listen at, instead of the kit's; port 0 is any.", metavar="HOST:PORT"
        ),
    ] = None,
    max_jobs: Annotated[int | None, typer.Option("--max-jobs", min=1, help="Maximum number of jobs at once.")] = None,
    quota: Annotated[
        int | None, typer.Option("--quota", min=1, help="Most unfinished jobs of one admin; by default 1,000.")
    ] = None,
    confine: Confine = "auto",
    show: Show = None,
    network: NetworkOfJobs = False,
    scratch: Scratch = None,
    metrics: Metrics = None,
    takeover: Takeover = False,
    standby: Standby = False,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> int:
    """Serve a project: accept sites and people, schedule jobs, keep results. Runs until Ctrl-C; after a kill, it continues where it was."""
    from atoll.heap import loading, share_one_heap

    with loading():
        from atoll.runtime.provision.kit_checks import raise_handles
        from atoll.runtime.server.server import Server

    share_one_heap()
    output, opened = output_of(context), open_kit(kit, passphrase_file)
    opened.require("server")  # before any folder or file is made
    opened = opened.unlocked()
    place = (folder or Path(opened.name)).absolute()
    with logging_on(output, place):
        walls = confined_as(confine, show, network, scratch=scratch)
        raise_handles()
        made = Server(
            opened,
            place,
            address=listen,
            max_jobs=max_jobs,
            quota=quota,
            metrics=metrics,
            confinement=walls,
            takeover=takeover,
            standby=standby,
        )
        said = {"folder": str(place), "confined": walls.confined}
        return serving(made.serve(lambda address: output.give({"listening": address, **said})))
