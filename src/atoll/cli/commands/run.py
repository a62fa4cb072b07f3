"""``atoll run``: run a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from atoll.cli.app import INTERRUPT_CODE, SIMULATE, app
from atoll.cli.arguments import Json, Root, output_of
from atoll.cli.output import CHECKPOINT_COUNTS, Output
from atoll.core.errors import CheckpointError, ConfigError
from atoll.core.overview import human_bytes
from atoll.core.persistence.files import as_json
from atoll.report.progress import Rounds
from atoll.runs import (
    INTERRUPTED,
    RunConfig,
    RunFolder,
    Stopping,
    execute,
    load_config,
    new_folder,
    parse_config,
    result_of,
    runs_in,
)
from atoll.runs.kept import not_the_same
from atoll.runs.yaml import override

_SHOWN = 2000  # maximum number of characters of a program's return value to print


@app.command("run", rich_help_panel=SIMULATE)
def command(
    context: typer.Context,
    config: Annotated[Path, typer.Argument(help="A YAML configuration; with --resume also a run folder.")],
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Change a setting, as in --set algorithm.lr=0.05.", metavar="A.B=C"),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped or killed.")] = False,
    engine: Annotated[
        str | None, typer.Option("--engine", help="batched, inline, processes or socket.", metavar="NAME")
    ] = None,
    held_out: Annotated[
        float | None,
        typer.Option(
            "--held-out",
            help="Share of each client's rows to measure on and not to train on, as data.held_out.",
            metavar="SHARE",
        ),
    ] = None,
    folder: Annotated[Path | None, typer.Option("--folder", help="The run folder.", metavar="FOLDER")] = None,
    root: Root = Path("runs"),
    report: Annotated[bool, typer.Option("--report/--no-report", help="Write the HTML report at the end.")] = True,
    json: Json = False,
) -> int:
    """Run a YAML configuration in a run folder that survives Ctrl-C and kill."""
    output = output_of(context)
    changes = [*(settings or []), *([f"engine={engine}"] if engine else [])]
    changes += [] if held_out is None else [f"data.held_out={held_out}"]
    if config.is_dir():
        if not resume:
            raise ConfigError(
                f"{str(config)!r} is a run folder",
                where="CONFIG",
                remedy="add --resume to continue it, or give a YAML file",
            )
        place = RunFolder(config if folder is None else folder)
        tree = place.config().plain()
        for change in changes:
            override(tree, change)
        wanted = parse_config(tree, str(place.config_file))
    else:
        wanted = load_config(config, changes)
        place = _place(wanted, folder, root, resume, output)
    return train(wanted, place, output, resume, report)


def _place(config: RunConfig, folder: Path | None, root: Path, resume: bool, output: Output) -> RunFolder:
    chosen = folder or (Path(config.folder) if config.folder else None)
    if chosen is not None:
        if resume and not RunFolder(chosen).begun:
            output.note(f"There is nothing to resume in {chosen}: starting a new run.")
        return RunFolder(chosen)
    if not resume:
        return new_folder(root, config.name)
    for found in reversed(runs_in(root)):
        if found.status() != "finished" and not not_the_same(found.config(), config):
            return found
    raise CheckpointError(
        "there is no unfinished run of this configuration",
        where=str(root),
        remedy="name its folder (atoll run FOLDER --resume), or run it without --resume",
    )


def train(config: RunConfig, folder: RunFolder, output: Output, resume: bool, report: bool = True) -> int:
    """Train with progress on stderr, and print the result."""
    stopping = Stopping(tell=output.note)
    output.if_stopped = CHECKPOINT_COUNTS
    output.note(f"Run folder: {folder.path}")
    try:
        with Rounds(output.console, config.made(checking=True), config.name) as rounds, stopping.signals():
            execute(
                config,
                folder,
                resume=resume,
                stopping=stopping,
                on_record=rounds.record,
                on_start=rounds.begin,
                report=report,
            )
    except KeyboardInterrupt:
        output.note(f"Resume with: atoll run {folder.path} --resume")
        raise
    result = result_of(folder)
    for notice in result.get("notices", ()):
        output.note(escape(notice))
    output.give(result, sentence(result))
    if result["status"] == INTERRUPTED:
        output.note(
            f"[bold]Interrupted[/bold] after round {result['rounds']}. Resume with: atoll run {folder.path} --resume"
        )
        return INTERRUPT_CODE
    return 0


def _returned(value: Any) -> str:
    text = as_json(value)
    return escape(f"result: {text[:_SHOWN]}{' …' if len(text) > _SHOWN else ''}")


def sentence(result: dict[str, Any]) -> str:
    """What a run reached, in one or two lines."""
    accuracy = "" if result.get("accuracy") is None else f"accuracy {100 * result['accuracy']:.1f} %, "
    up, down = human_bytes(result["bytes_up"]), human_bytes(result["bytes_down"])
    end = f"\n{_returned(result['result'])}" if "result" in result else ""
    end += f"\nreport: {result['report']}" if result["report"] else ""
    return f"{result['run']}: {accuracy}{result['rounds']} rounds, {up} up, {down} down, {result['seconds']} s{end}"
