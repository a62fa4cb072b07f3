"""``atoll site``: an organisation with data joins a project."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from atoll.cli.app import OPERATE, app
from atoll.cli.arguments import Json, output_of
from atoll.cli.asking import (
    Confine,
    NetworkOfJobs,
    PassphraseFile,
    Scratch,
    ServerOption,
    Show,
    confined_as,
    logging_on,
    open_kit,
    serving,
)
from atoll.core.errors import ConfigError
from atoll.runtime.identity import SITES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from atoll.core.requests.policy import SitePolicy
    from atoll.runtime.provision import Kit
    from atoll.runtime.resources import Resources


DataOption = Annotated[
    str | None,
    typer.Option(
        "--data",
        help="CSV file or folder, .npz, x.npy,y.npy, a database, YAML, or module:factory. A helper may do without.",
        metavar="SPEC",
    ),
]
TargetOption = Annotated[str | None, typer.Option("--target", help="Target column of a table.", metavar="COLUMN")]
TaskOption = Annotated[str | None, typer.Option("--task", help="For example classification or regression.")]
DropOption = Annotated[
    list[str] | None,
    typer.Option("--drop", help="Columns to leave out; repeat it, or put commas between them.", metavar="COLUMN"),
]
IdOption = Annotated[
    list[str] | None,
    typer.Option(
        "--id", help="Columns of keys: they stay text; repeat it, or put commas between them.", metavar="COLUMN"
    ),
]
MissingOption = Annotated[
    list[str] | None,
    typer.Option("--missing", help='Values of the target that mean "no label", such as -1.', metavar="VALUE"),
]
MissingFeatures = Annotated[
    bool, typer.Option("--missing-features", help="Features may be missing: empty cells become NaN.")
]
FolderOption = Annotated[
    Path | None,
    typer.Option("--folder", help="Folder for private states of jobs; by default ./NAME.", metavar="FOLDER"),
]
CpusOption = Annotated[float | None, typer.Option("--cpus", help="Cores for jobs; by default all.")]
MemoryOption = Annotated[str | None, typer.Option("--memory", help="Memory for jobs, such as 16GiB; by default all.")]
GpusOption = Annotated[
    str | None,
    typer.Option("--gpus", help="Number of GPUs, or their names, such as 0,1; by default all.", metavar="GPUS"),
]
DirectOption = Annotated[
    str | None,
    typer.Option(
        "--direct",
        help="Listen at this address for other sites; by default no port is opened.",
        metavar="HOST:PORT",
    ),
]
SumsOnly = Annotated[
    bool,
    typer.Option("--sums-only", help="Take part in secure sums only, against a server that may lie."),
]
Least = Annotated[int, typer.Option("--least", help="With --sums-only: fewest parties in a sum.", min=2)]
MetricsOption = Annotated[
    str | None,
    typer.Option(
        "--metrics", help="Serve /healthz and /metrics here, over plain HTTP; off by default.", metavar="HOST:PORT"
    ),
]

LostLedger = Annotated[
    bool,
    typer.Option(
        "--accept-lost-ledger",
        help="Start although the privacy ledger is missing or has lost lines: what was spent before counts no more.",
    ),
]

RestoredServer = Annotated[
    bool,
    typer.Option(
        "--accept-restored-server",
        help="Take the server as it is, although its folder is older than what this site has seen of it.",
    ),
]


@app.command("site", rich_help_panel=OPERATE)
def command(
    context: typer.Context,
    kit: Annotated[Path, typer.Argument(help="The site's startup kit.", metavar="KIT", show_default=False)],
    data: DataOption = None,
    target: TargetOption = None,
    task: TaskOption = None,
    drop: DropOption = None,
    ids: IdOption = None,
    missing: MissingOption = None,
    missing_features: MissingFeatures = False,
    folder: FolderOption = None,
    cpus: CpusOption = None,
    memory: MemoryOption = None,
    gpus: GpusOption = None,
    direct: DirectOption = None,
    sums_only: SumsOnly = False,
    least: Least = 2,
    server: ServerOption = None,
    confine: Confine = "auto",
    show: Show = None,
    network: NetworkOfJobs = False,
    scratch: Scratch = None,
    metrics: MetricsOption = None,
    accept_lost_ledger: LostLedger = False,
    accept_restored_server: RestoredServer = False,
    passphrase_file: PassphraseFile = None,
    json: Json = False,
) -> int:
    """Join a project with this organisation's data, or as a helper. Opens no port without --direct. Runs until Ctrl-C; after a kill, its jobs continue where they were."""
    from atoll.heap import loading

    with loading():
        from atoll.cli.describing import dropped_of, words_of
        from atoll.runtime.site.site import Site
        from atoll.runtime.worker import site_spec

    output, opened = output_of(context), open_kit(kit, passphrase_file)
    opened.require(*SITES)  # before any folder or file is made
    opened = opened.unlocked()
    if data is None and not opened.plays:
        raise ConfigError(
            f"site {opened.name!r} has no data",
            where="--data",
            remedy="add --data SPEC; only a helper can start without data",
        )
    place = (folder or Path(opened.name)).absolute()
    resources, names = _resources(cpus, memory, gpus)
    told_of_data: dict[str, Any] = {"target": target, "task": task, "missing_features": missing_features}
    columns: dict[str, Any] = {"drop": dropped_of(drop), "id": words_of(",".join(ids or ()))}
    spec = {} if data is None else site_spec(data, missing=missing or (), **columns, **told_of_data)
    if sums_only:
        spec = {**spec, "policy": _insisting(spec, opened.name, least)}
    told = _looked_at(spec, opened.name, bool(opened.plays))
    with logging_on(output, place):
        walls = confined_as(confine, show, network, _policy(spec, opened), scratch=scratch)
        for line in told:
            logging.getLogger("atoll.runtime").info("%s", line)
        made = Site(
            opened, spec, place, resources, server=server, gpus=names, direct=direct, metrics=metrics, confinement=walls,
            accept_lost_ledger=accept_lost_ledger, accept_restored_server=accept_restored_server,
        )  # fmt: skip
        said = {"folder": str(place), "confined": walls.confined}
        return serving(made.serve(lambda name: output.give({"connected": name, **said})))


def _policy(spec: Mapping[str, Any], kit: Kit) -> SitePolicy | None:
    """The policy in the settings of the site's data."""
    from atoll.runtime.worker.policies import policy_of_site
    from atoll.runtime.worker.words import settings_of

    return policy_of_site(settings_of(spec, kit.name, bool(kit.plays)), kit.name) if spec else None


def _looked_at(spec: Mapping[str, Any], name: str, helper: bool) -> list[str]:
    """Check what can be checked of the data before any job comes; return what others will learn of it, as lines for the site's person."""
    if not spec:
        return []
    from atoll.runtime.site.database import look_at_settings
    from atoll.runtime.worker.headers import look_at_headers, told_of

    look_at_headers(spec, name, helper)
    found = look_at_settings(spec, name, helper)
    return [*([found] if found else []), *([] if helper else told_of(spec, name))]


def _insisting(spec: Mapping[str, Any], name: str, least: int) -> dict[str, Any]:
    """The site's policy, if its settings have one, that admits secure sums only."""
    from atoll.runtime.worker.words import settings_of

    own = dict(settings_of(spec, name, True).get("policy") or {}) if spec else {}
    return {**own, "sums_only": True, "smallest_cohort": max(least, int(own.get("smallest_cohort", 1)))}


def _resources(cpus: float | None, memory: str | None, gpus: str | None) -> tuple[Resources, tuple[str, ...]]:
    """What jobs may use: the given amounts, or all of the machine.

    Raises:
        ConfigError: a value is not an amount, or there are no cores.
    """
    from atoll.runtime.resources import Resources, bytes_of, detected, gpus_of

    if cpus is not None and not cpus > 0:
        raise ConfigError(
            f"--cpus {cpus:g} leaves no cores for jobs",
            where="--cpus",
            remedy="give more, such as 0.5, or leave it out to use all cores",
        )
    there, names = detected()
    if gpus is not None:
        names = gpus_of(gpus, names, "--gpus")
    size = there.memory if memory is None else bytes_of(int(memory) if memory.isdigit() else memory, "--memory")
    return Resources(there.cpus if cpus is None else cpus, size, len(names)), names
