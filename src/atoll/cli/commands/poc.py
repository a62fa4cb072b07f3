"""``atoll poc``: a whole project on this machine, in one command."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from atoll.cli.app import INTERRUPT_CODE, OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import error_of, in_order
from atoll.cli.commands.run import sentence
from atoll.cli.commands.site import DropOption, IdOption, TargetOption, TaskOption
from atoll.cli.output import Output, note_found
from atoll.core.errors import CheckpointError, ConfigError, nearest
from atoll.report.progress import Rounds
from atoll.runs import RunFolder, result_of, yaml

_ROUNDS = 20
_LABELLED = 100  # rows of a helper that plays the party with labels
_BEFORE_KILL = 2


def poc_job(names: list[str], seed: int, *, secure: bool = False) -> dict[str, Any]:
    """The job of a trial if you give none: the demo's model and algorithm, and with ``secure`` masked sums that survive a lost site."""
    from atoll.runtime.poc import SECURE_TERMS

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
    sites: Annotated[
        str | None, typer.Option("--sites", help="How many, or their names: 3 or north,south.", metavar="SITES")
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="Your own: a folder with a table or database a site, or one table.", metavar="PATH"
        ),
    ] = None,
    target: TargetOption = None,
    task: TaskOption = None,
    drop: DropOption = None,
    ids: IdOption = None,
    direct: Annotated[bool, typer.Option("--direct", help="Let roles of sessions talk from site to site.")] = False,
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
    from atoll.runtime.poc import name_sites

    if secure and (job is not None or data is not None or len(name_sites(sites)) < 4):
        own = "a job of your own" if job is not None else "--data" if data is not None else f"--sites {sites or 3}"
        raise ConfigError(
            f"--secure with {own}",
            where="atoll poc",
            remedy="use --secure without a job or data and with --sites 4 or more: one of them is killed",
        )
    options = [*(["--target", target] if target else []), *(["--task", task] if task else [])]
    options += [word for column in drop or () for word in ("--drop", column)]
    options += [word for column in ids or () for word in ("--id", column)]
    if options and data is None:
        raise ConfigError(f"{options[0]} without --data", where="atoll poc", remedy="add --data and a folder or table")
    trial = _Trial(job, sites, alpha, seed, transport, output, secure, data, options, direct)
    with _place(folder) as place:
        found, _ = in_order(trial.run(place))
        if found is None:  # all processes have been stopped, and the keys are deleted with the folder
            return INTERRUPT_CODE
        kept = folder is not None
        result = {**found, **({} if kept else dict.fromkeys(("folder", "model", "report")))}
        note_found(output, result, None)
        output.give(result, sentence(result))
    return 0


@contextlib.contextmanager
def _place(folder: Path | None) -> Iterator[Path]:
    if folder is not None:
        from atoll.runtime.provision.keys import make_folder

        make_folder(make_folder(folder, "--folder") / "data", "--folder")  # an existing folder may not be writable
        yield folder.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="atoll-poc-") as made:
        yield Path(made)


@dataclass(frozen=True)
class _Trial:
    """What is tried, as the command line says it."""

    job: Path | None
    sites: str | None
    alpha: float
    seed: int
    transport: str
    output: Output
    secure: bool
    data: Path | None
    options: list[str]
    direct: bool

    async def run(self, place: Path) -> dict[str, Any]:
        """Run the job between real processes, and return its result."""
        from atoll.runtime.admin import Admin
        from atoll.runtime.job_spec import importing, load_job
        from atoll.runtime.poc import OTHERS, Poc, digits_at, helper_names, name_sites, parts_of, write_parts

        names = name_sites(self.sites) if self.data is None else []
        settings = ["direct=true"] if self.direct else []
        job = place / "job.yaml" if self.job is None else self.job
        if self.job is None:
            job.write_text(yaml.dump(self._default(names)), encoding="utf-8")
        config = load_job(job, settings).complete()
        with importing(config.source_folder):
            made = config.made(checking=True)
        islands: Any = None
        if self.data is None:
            islands = digits_at(names, self.alpha, self.seed)
            helpers = helper_names(config.helpers or {}, (*names, *OTHERS))
            islands = _with_labels_apart(islands, helpers, self.seed)
            data = {name: [str(file)] for name, file in write_parts(islands, place / "data").items()}
        else:
            files = parts_of(self.data.absolute(), self.sites, place / "data", self.seed, config.helpers or {})
            names = [name for name in files if name not in (config.helpers or {})]
            helpers = helper_names(config.helpers or {}, (*names, *OTHERS))
            data = {name: self._words(file, made) for name, file in files.items()}
        _require_sites(config, made, names, str(self.job or "atoll poc"), digits=self.data is None)
        said = f"{len(names)} sites share the digits, each in its own folder."
        if self.data is not None:
            said = f"{', '.join(names)} have what {self.data} has of each."
        beside = "".join(f" {name} plays the {role}." for name, role in helpers.items())
        self.output.note(f"{said}{beside} Starting the server and the sites ...")
        with (place / "daemons.log").open("a", encoding="utf-8") as log:
            project = Poc(
                place,
                data,
                transport=self.transport,
                on_line=lambda node, line: _keep(log, node, line),
                direct=config.direct,
                helpers=helpers,
            )
            async with project as poc:
                self.output.note(
                    f"The server listens at {poc.address}; sites and admin connect to it with mutual TLS 1.3."
                )
                async with Admin(poc.kit("admin"), poc.address) as admin:
                    found = await admin.submit(job, settings)
                    folder = RunFolder(place / "run" / "server" / "jobs" / found["job"] / "state")
                    with Rounds(self.output.console, made, config.name) as rounds:
                        killing = _killing(poc, names[-1], folder, self.output) if self.secure else None
                        ended = await _until(admin, found["job"], _looking(folder, rounds, killing))
                    error = error_of(ended)
                    if error is not None:
                        raise error
                    await admin.result(found["job"], place / "result", replace=True)
        result = {**result_of(RunFolder(place / "result")), "run": found["job"], "sites": ended["sites"]}
        if not self.secure:
            return result
        return {**result, **_against_plain(config, islands, names, RunFolder(place / "result"))}

    def _default(self, names: list[str]) -> dict[str, Any]:
        """Return the job if none is given: of the digits a training, of one's own tables statistics."""
        if self.data is None:
            return poc_job(names, self.seed, secure=self.secure)
        return {"name": "poc", "job": "statistics", "sites": "all"}

    def _words(self, file: Path, job: Any) -> list[str]:
        """Return what follows ``--data`` at a site: a database and a YAML file know their target themselves. The keys of a job that reads tables stay text, unless you name others; it needs no target."""
        from atoll.runtime.worker.words import is_database

        own = file.suffix in (".yaml", ".yml") or is_database(file.name)
        named = [word for column in job.key_columns for word in ("--id", column)]
        if job.reads == "table" and not named and not {"--target", "--task"} & {*self.options}:
            named = ["--task", "unlabelled"]
        return [str(file), *([] if own else [*self.options, *([] if "--id" in self.options else named)])]


def _require_sites(config: Any, made: Any, names: Sequence[str], where: str, *, digits: bool) -> None:
    """Refuse a job that asks for tables or other sites than the trial has, before anything starts: it would wait for them in vain.

    Raises:
        ConfigError: it names one.
        AtollError: the job cannot be carried out by these sites.
    """
    from atoll.core.requests.cohort import Community

    if digits and made.reads == "table":
        raise ConfigError(
            f"jobs of the kind {made.kind!r} read tables, and the digits of a trial are none",
            where=where,
            remedy="add --data and a folder with a table a site, called as the site is",
        )
    sites = list(names) if config.sites == "all" else list(config.sites)
    foreign = next((name for name in sites if name not in names), None)
    if foreign is not None:
        raise ConfigError(
            f"the job asks for site {foreign!r}, and the trial has {', '.join(names)}.{nearest(foreign, names)}",
            where=where,
            remedy=f"add --sites {','.join(sites)}, or --data and a folder with something for each of them, or correct `sites` in the job",
        )
    if made.reads == "table" and not made.one_form:  # sizes and columns do not count: names and roles do
        made.prepare(Community(dict.fromkeys(sites)))


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
    from atoll.runtime.poc import compared, survivors_of

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
