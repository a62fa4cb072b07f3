"""``atoll flower``: a Flower app unchanged, in a simulation or as a job."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import EXTRAS, app
from atoll.cli.arguments import Json, output_of

if TYPE_CHECKING:
    from atoll.bridges.flower import FlowerApp

group = typer.Typer(help="Run a Flower app unchanged.", no_args_is_help=True)
app.add_typer(group, name="flower", rich_help_panel=EXTRAS)

Folder = Annotated[Path, typer.Argument(help="The app's folder, with its pyproject.toml.", metavar="APP")]
RunConfig = Annotated[
    str,
    typer.Option(
        "--run-config", help="Changes of the app's configuration, as Flower writes them.", metavar="'KEY=VALUE …'"
    ),
]


@group.command("run")
def run(
    context: typer.Context,
    folder: Folder,
    supernodes: Annotated[
        int | None,
        typer.Option("--supernodes", help="Number of clients; by default what the app says, else 10.", min=1),
    ] = None,
    run_config: RunConfig = "",
    engine: Annotated[str, typer.Option("--engine", help="inline, processes or ray.")] = "processes",
    workers: Annotated[int | None, typer.Option("--workers", help="Number of processes.", min=1)] = None,
    json: Json = False,
) -> None:
    """Run a Flower app's ServerApp and ClientApp on this machine, on Atoll's engines."""
    from atoll.bridges.flower import simulate_app

    made, begun = _app(folder), time.perf_counter()
    result = simulate_app(made, _changes(run_config), nodes=supernodes, engine=engine, workers=workers)
    seconds = time.perf_counter() - begun
    rows = [row for row in result.metrics if "kind" in row]
    failed = sum(row["failed"] for row in rows)
    told = {"app": made.name, "nodes": supernodes or made.nodes, "exchanges": len(rows), "failed": failed}
    output_of(context).give(
        {**told, "seconds": seconds},
        f"{made.name}: {len(rows)} exchanges with {told['nodes']} clients, {failed} failed replies, {seconds:.1f} s",
    )


@group.command("job")
def job(
    context: typer.Context,
    folder: Folder,
    run_config: RunConfig = "",
    out: Annotated[Path, typer.Option("--out", help="The file.", metavar="FILE.yaml")] = Path("job.yaml"),
    json: Json = False,
) -> None:
    """Write the app as a job file: try it with atoll poc, then submit it with atoll submit."""
    from atoll.bridges.flower import job_of
    from atoll.runs import yaml

    made = _app(folder)
    out.write_text(yaml.dump(job_of(made, _changes(run_config), out.resolve().parent)), encoding="utf-8")
    output_of(context).give(
        {"app": made.name, "file": str(out)}, f"{out}: atoll poc {out} tries it, atoll submit {out} submits it"
    )


def _app(folder: Path) -> FlowerApp:
    from atoll.bridges.flower import FlowerApp
    from atoll.core.extras import need

    need("flwr", "flower", "A Flower app")
    return FlowerApp.read(folder)


def _changes(words: str) -> dict[str, Any]:
    from atoll.bridges.flower import changes_of

    return changes_of(words)
