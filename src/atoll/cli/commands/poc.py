"""``atoll poc``: a whole project on this machine, in one command."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from atoll.cli.app import INTERRUPT_CODE, OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import error_of, in_order
from atoll.cli.commands.run import sentence
from atoll.cli.output import Output
from atoll.core.errors import CheckpointError, ConfigError
from atoll.report.progress import Rounds
from atoll.runs import RunFolder, result_of, yaml

_ROUNDS = 20
_LABELLED = 100  # rows of a helper that plays the party with labels
_BEFORE_KILL = 2


def poc_job(names: list[str], seed: int, *, secure: bool = False) -> dict[str, Any]:
    """The job of a trial if you give none: the demo's model and algorithm, and with ``secure`` masked sums that survive a lost site."""
    from atoll.runtime.client.secure_trial import SECURE_TERMS

    more: dict[str, Any] = {"reducer": {"name": "SecureAggregation", "least": 2}, **SECURE_TERMS} if secure else {}
    return more | {
        "name": "poc",
        "sites": names,
        "data": {"test": "digits"},
        "model": {"name": "mlp", "features": 64, "outputs": 10},
        "algorithm": {"name": "FedAvg", "lr": 0.5, "epochs": 2, "decay": 0.99},
        "rounds": _ROUNDS,
        "seed": seed,
    }


@app.command("poc", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    job: Annotated[Path | None, typer.Argument(help="A job of your own.", metavar="[JOB]", show_default=False)] = None,
    sites: Annotated[int, typer.Option("--sites", min=1, max=64, help="How many.")] = 3,
    alpha: Annotated[float, typer.Option("--alpha", help="Label skew: small is skewed, large is even.")] = 0.3,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything reproducible.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="Keep kits, data and results here.", metavar="FOLDER")
    ] = None,
    transport: Annotated[str, typer.Option("--transport", help="tcp or grpc.")] = "tcp",
    secure: Annotated[
        bool, typer.Option("--secure", help="Mask the sums, kill a site in a round, and compare with the plain run.")
    ] = False,
    json: Json = False,
) -> int:
    """Provision a project, start its server and sites as real processes, run a job between them, and stop everything."""
    output = output_of(context)
    if secure and (job is not None or sites < 4):
        raise ConfigError(
            f"--secure with {'a job of your own' if job is not None else f'--sites {sites}'}",
            where="atoll poc",
            remedy="use --secure without a job and with --sites 4 or more: one of them is killed",
        )
    with _place(folder) as place:
        found, _ = in_order(_trial(place, job, sites, alpha, seed, transport, output, secure))
        if found is None:  # all processes have been stopped, and the keys are deleted with the folder
            return INTERRUPT_CODE
        kept = folder is not None
        result = {**found, **({} if kept else dict.fromkeys(("folder", "model", "report")))}
        output.give(result, sentence(result))
    return 0


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        from atoll.runtime.provision.files import make_folder

        make_folder(make_folder(folder, "--folder") / "data", "--folder")  # an existing folder may not be writable
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="atoll-poc-") as made:
        yield Path(made)


async def _trial(
    place: Path,
    job: Path | None,
    sites: int,
    alpha: float,
    seed: int,
    transport: str,
    output: Output,
    secure: bool = False,
) -> dict[str, Any]:
    from atoll.runtime.bundles.modules import importing
    from atoll.runtime.client.admin import Admin
    from atoll.runtime.client.poc import OTHERS, Poc, digits_at, helper_names, site_names, write_parts
    from atoll.runtime.jobs.spec import load_job

    names = site_names(sites)
    islands = digits_at(names, alpha, seed)
    if job is None:
        job = place / "job.yaml"
        job.write_text(yaml.dump(poc_job(names, seed, secure=secure)), encoding="utf-8")
    config = load_job(job).complete()
    with importing(config.source_folder):
        made = config.made(checking=True)
    helpers = helper_names(config.helpers or {}, (*names, *OTHERS))
    islands = _with_labels_apart(islands, helpers, seed)
    files = write_parts(islands, place / "data")
    beside = "".join(f" {name} plays the {role}." for name, role in helpers.items())
    output.note(
        f"{sites} sites share the digits, each in its own folder.{beside} Starting the server and the sites ..."
    )
    data = {name: [str(file)] for name, file in files.items()}
    with (place / "daemons.log").open("a", encoding="utf-8") as log:
        project = Poc(
            place,
            data,
            transport=transport,
            on_line=lambda node, line: _keep(log, node, line),
            direct=config.direct,
            helpers=helpers,
        )
        async with project as poc:
            output.note(f"The server listens at {poc.address}; sites and admin connect to it with mutual TLS 1.3.")
            async with Admin(poc.kit("admin"), poc.address) as admin:
                found = await admin.submit(job)
                folder = RunFolder(place / "run" / "server" / "jobs" / found["job"] / "state")
                with Rounds(output.console, made, config.name) as rounds:
                    killing = _killing(poc, names[-1], folder, output) if secure else None
                    ended = await _until(admin, found["job"], _looking(folder, rounds, killing))
                error = error_of(ended)
                if error is not None:
                    raise error
                await admin.result(found["job"], place / "result", replace=True)
    result = {**result_of(RunFolder(place / "result")), "run": found["job"], "sites": ended["sites"]}
    return {**result, **_against_plain(config, islands, names, RunFolder(place / "result"))} if secure else result


def _with_labels_apart(islands: Any, helpers: dict[str, str], seed: int) -> Any:
    """Return the clients; if a helper plays the party with labels, without labels, beside it with some labelled rows."""
    import atoll.data

    name = next((name for name, role in helpers.items() if role == atoll.data.labels.LABELS), None)
    if name is None:
        return islands
    few = atoll.data.unlabel(islands, keep=_LABELLED, at="server", seed=seed)
    return few.with_others({name: few.others[atoll.data.labels.LABELS]})


def _killing(poc: Any, victim: str, folder: RunFolder, output: Output) -> Callable[[int], None]:
    """Kill a site, with all of its processes, once two rounds are recorded: it is in the middle of the next."""
    done: list[int] = []

    def kill(rounds: int) -> None:
        if rounds >= _BEFORE_KILL and not done:
            done.append(rounds)
            output.note(f"Killing {victim} in round {rounds + 1}.")
            poc.process(victim).kill()

    return kill


def _against_plain(config: Any, islands: Any, names: list[str], folder: RunFolder) -> dict[str, Any]:
    """What the masked run gave beside the plain run of the same rounds, in a simulation."""
    from atoll.runs.kept import read_model
    from atoll.runtime.client.secure_trial import compared, survivors_of

    rows = folder.metrics()
    rounds = survivors_of(rows, names, names[-1])
    found = compared(config.made(), islands, rounds, read_model(folder.model_file), config.seed)
    return {
        "accuracy": rows[-1].get("test/accuracy"),
        "survivors": len(rounds[-1]),
        "survivors_by_round": [len(row) for row in rounds],
        **found,
    }


def _keep(log: IO[str], node: str, line: str) -> None:
    log.write(f"{node}: {line}\n")


async def _until(admin: Any, job: str, look: Callable[[], None]) -> dict[str, Any]:
    """Wait for the end, and look at the records from time to time."""
    ending = asyncio.create_task(admin.wait(job))
    try:
        while not ending.done():
            await asyncio.wait({ending}, timeout=0.2)
            look()
        return dict(ending.result())
    finally:
        ending.cancel()


def _looking(folder: RunFolder, rounds: Rounds, after: Callable[[int], None] | None = None) -> Callable[[], None]:
    """Show the rounds that the server has recorded so far; in a trial its folder is on this machine."""
    shown: set[int] = set()

    def look() -> None:
        with contextlib.suppress(CheckpointError):  # a line may be incomplete while it is being written
            for row in folder.metrics():
                if row["round"] not in shown:
                    shown.add(row["round"])
                    rounds.record(row)
        if after is not None:
            after(len(shown))

    return look
