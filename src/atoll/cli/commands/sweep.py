"""``atoll sweep``: a configuration under several settings and seeds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from atoll.cli.app import ANALYSE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.groups import table_of
from atoll.core.errors import ConfigError
from atoll.study import sweep_config


@app.command("sweep", rich_help_panel=ANALYSE)
def command(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A YAML configuration.")],
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="Values to try, as in --set algorithm.lr=0.01,0.1; one value sets it for all runs.",
            metavar="A.B=C,D",
        ),
    ] = None,
    seeds: Annotated[
        str,
        typer.Option(
            "--seeds", help="The number of seeds, or seeds, as in 3,7,11. A seed changes partition, model and sampling."
        ),
    ] = "3",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", help="Keep data.partition.seed or data.corruption_seed as in the file.", metavar="A.B"),
    ] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="The sweep's folder; by default sweeps/NAME.", metavar="FOLDER")
    ] = None,
    metric: Annotated[str | None, typer.Option("--metric", help="The metric to compare.")] = None,
    parallel: Annotated[
        int | None, typer.Option("--parallel", help="Runs at once; by default one for each core.")
    ] = None,
    json: Json = False,
) -> int:
    """Run a configuration under several settings and seeds, and compare them. The same command continues a sweep that was stopped."""
    output = output_of(context)
    place = folder or Path("sweeps") / config.stem
    output.if_stopped = "The same command continues the sweep."
    output.note(f"Sweep folder: {place}")
    try:
        found = sweep_config(
            config,
            settings or [],
            seeds=_seeds(seeds),
            folder=place,
            keep=keep or [],
            parallel=parallel,
            metric=metric,
            tell=output.note,
        )
    except KeyboardInterrupt:
        output.note("To continue the sweep, give the same command again.")
        raise
    output.give(
        {
            "folder": str(place),
            "metric": found.metric,
            "variants": found.rows,
            "differences": [vars(one) for one in found.differences],
        },
        table_of(found.rows, found.differences),
    )
    if len(found.names) > 1:
        output.note(f"Page: {found.report()}")
    return 1 if any(row["finished"] < row["runs"] for row in found.rows) else 0


def _seeds(text: str) -> int | list[int]:
    try:
        return [int(word) for word in text.split(",")] if "," in text else int(text)
    except ValueError as error:
        raise ConfigError(
            f"--seeds {text!r}", where="sweep", remedy="give a number such as 5, or seeds such as 3,7,11"
        ) from error
