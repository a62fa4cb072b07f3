"""What a job's process does at the server: gathers the sites, runs the program between them, and keeps the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, CheckpointError, CompositionError, DataError, TaskError
from atoll.core.federation.federation import run_program
from atoll.core.job import EDGE
from atoll.core.job import prepared as prepared_job
from atoll.core.requests.party import Roster
from atoll.core.time.clock import Clock
from atoll.core.world import World
from atoll.data import Dataset
from atoll.data.units import other_units
from atoll.engines.link import LinkClosed
from atoll.learn.local.own_loss import OutputsError
from atoll.runs import Kept, RunFolder, keeping, result_of, yaml
from atoll.runs.log import logger
from atoll.runtime.bundles.manifest import SOURCE
from atoll.runtime.jobs.spec import JobConfig, parse_job
from atoll.runtime.network import Network
from atoll.simulation import result_of_run

from .agreement import few, lone_classes, merge_cards, recoded
from .cards import DataCard, card_of
from .frames import Rendezvous, error_frame
from .remote import RemoteIslands
from .rendezvous import Gathered, cards_of_all, gather, tell_all, until_ready

if TYPE_CHECKING:
    from atoll.core.job import Job

__all__ = ["JobFolder", "exit_error", "run_job"]


class JobFolder(RunFolder):
    """The files of one job, kept across all its attempts: those of a run (see `atoll.runs.folder`) and one more.

    ```
    sites.msg          what the sites said when the job began
    ```

    Args:
        path: the folder.
        source: the folder of the job's modules.
    """

    def __init__(self, path: str | Path, source: Path | None = None) -> None:
        super().__init__(path)
        self.source = source
        self.sites_file = self.path / "sites.msg"

    def config(self) -> JobConfig:
        """Return the settings of the job.

        Raises:
            CheckpointError: they cannot be read.
        """
        try:
            return parse_job(yaml.read(self.require().config_file), str(self.config_file), self.source)
        except AtollError as error:
            raise CheckpointError(
                f"the job's settings cannot be used: {error.what}",
                where=error.where,
                remedy="restore the file, or submit the job again",
            ) from error


@dataclass(frozen=True)
class _Run:
    """One attempt."""

    job: JobConfig
    folder: JobFolder
    channels: Mapping[str, Any]
    gathered: Gathered
    resume: bool
    secret_seed: int | None
    kept: Kept
    helpers: Mapping[str, str]


async def run_job(
    channels: Mapping[str, Any],
    job: JobConfig,
    folder: str | Path,
    *,
    resume: bool = False,
    source: Path | None = None,
    listeners: tuple[Callable[[dict[str, Any]], None], ...] = (),
    on_record: Callable[[dict[str, Any]], None] | None = None,
    on_start: Callable[[int], None] | None = None,
    report: bool = True,
    secret_seed: int | None = None,
    helpers: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run one attempt of a job to its end.

    Args:
        channels: site -> channel to its job process; they are closed at the end.
        job: what the job is; its modules must be importable.
        folder: the job's folder, the same in every attempt; empty or absent at first.
        resume: continue from the last checkpoint in the folder, if there is one.
        source: the folder of the job's modules.
        listeners: called with every record; one may raise ``StopRun``.
        on_record: called with every record.
        on_start: called with the number of rounds that were already done.
        report: write the HTML report at the end.
        secret_seed: makes the islands' secrets reproducible in a test, and every privacy guarantee void.
        helpers: party without clients -> the site that plays it.

    Returns:
        What the job reached, as in `atoll.runs.result_of`; with ``"result"`` if the program's result is short, plain
        data.

    Raises:
        AtollError: the sites disagree, one of them failed or was lost, or the folder holds another job; the sites have
            received the error.
        TaskError: the job's code would have ended the process.
    """
    place = JobFolder(folder, source)
    if job.source is not None:  # the same in every attempt, wherever the bundle is unpacked
        job = job.model_copy(update={"source": SOURCE})
    homes = dict(helpers or {})
    try:
        with keeping(job, place, resume=resume, on_record=on_record, on_start=on_start) as kept:
            gathered = await gather(
                channels,
                place.sites_file,
                patience=job.patience,
                on_lost=job.on_lost,
                helpers=frozenset(homes.values()),
            )
            _look_at_units(job, gathered)
            await _dismiss({s: c for s, c in channels.items() if s not in gathered.present})
            present = {site: channels[site] for site in channels if site in gathered.present}
            run = _Run(job, place, present, gathered, resume, secret_seed, kept, homes)
            await _carry_out(run, listeners, report)
    except (SystemExit, KeyboardInterrupt) as left:
        await tell_all(channels, error_frame(error := exit_error(left)))
        raise error from left
    except Exception as error:
        # Sites that still listen learn why; the others have ended.
        await tell_all(channels, error_frame(error))
        raise
    finally:
        for channel in channels.values():
            channel.close()
    return result_of(place)


def exit_error(how: SystemExit | KeyboardInterrupt) -> TaskError:
    """Return the error of code that would end its process: without one, the next attempts would do the same."""
    what = f"called sys.exit({how.code!r})" if isinstance(how, SystemExit) else "raised KeyboardInterrupt"
    return TaskError(
        f"the program {what}",
        where="the job's process",
        remedy="return from the program, or raise an error: it must not end the process",
    )


def _look_at_units(job: JobConfig, gathered: Gathered) -> None:
    """Name a site whose columns are in other units before the first round.

    Raises:
        DataError: there is one, and the job rejects what stands far outside.
    """
    hellos = gathered.hellos
    named = {site: hello.card.features for site, hello in hellos.items() if hello.card is not None}
    names = next(iter(named.values()), ())
    for words in other_units(
        {site: _in_order(hello.scales, named.get(site, ()), names) for site, hello in hellos.items()}, names
    ):
        if job.on_outlier == "reject":
            raise DataError(
                words, where="data cards", remedy="give every site's column the same unit, or set on_outlier: warn"
            )
        logger.warning("%s: is it in another unit?", words)


def _in_order(scales: Sequence[int], own: Sequence[str], names: Sequence[str]) -> Sequence[int]:
    """Return a site's scales in another order of its columns, which have names."""
    if len(own) != len(scales) or set(own) != set(names):
        return scales
    return [scales[own.index(name)] for name in names]


async def _dismiss(channels: Mapping[str, Any]) -> None:
    """Let go of sites that the job began without."""
    await tell_all(channels, error_frame(AtollError("the job began without this site", where="server")))
    for channel in channels.values():
        channel.close("the job began without this site")


async def _carry_out(run: _Run, listeners: tuple[Any, ...], report: bool) -> None:
    begin = time.perf_counter()
    job = await asyncio.to_thread(run.job.made)
    remote, lone = await _population(run, job)
    run.kept.begin(job, remote, *listeners)
    try:
        prepared = await asyncio.to_thread(prepared_job, job, remote)
    except DataError as error:
        raise error if remote.card is None else _naming_classes(error, remote.card, lone) from error
    others = dict(job.others(len(remote)))
    _require_helpers(run, others)
    world = await _world(run, remote, others)
    world.install(prepared)
    value, fed = await run_program(world, prepared.program)
    run.kept.finish(result_of_run(job, remote, prepared, value, fed, time.perf_counter() - begin))
    if report:
        await asyncio.to_thread(run.kept.report)


def _require_helpers(run: _Run, others: Mapping[str, str]) -> None:
    """Refuse a job whose terms say other helpers than it turns out to need.

    Raises:
        CompositionError: they differ.
    """
    needed = {name: role for name, role in others.items() if role != EDGE}
    if run.job.helpers is not None and run.job.helpers != needed:
        raise CompositionError(
            f"helpers={dict(run.job.helpers)}, and for {len(run.gathered.names)} clients the job needs {needed}",
            where=f"job {run.job.name!r}",
            remedy="let `Job.helpers` say what `Job.others` needs, whatever the number of clients",
        )


async def _population(run: _Run, job: Job) -> tuple[RemoteIslands, Mapping[str, Sequence[str]]]:
    """Return what is known of the sites' data, and which site alone has which classes.

    If a job does not need data of one form, nothing is agreed on and nothing assumed.
    """
    names, sizes = run.gathered.names, run.gathered.sizes
    if not job.one_form:
        return RemoteIslands(names, sizes, None, None, run.job.name), {}
    test = await asyncio.to_thread(run.job.test_set)
    cards = cards_of_all(run.gathered, None if test is None else card_of(test))
    card, lone = merge_cards(cards), lone_classes(cards)
    card = replace(
        card, labelled=merge_cards(cards_of_all(run.gathered)).labelled
    )  # the server's own labels train nobody
    for name, labels in lone.items():
        logger.warning("%s alone has %s: if that is a misspelling, correct it there", name, _classes(labels))
    return RemoteIslands(names, sizes, card, _coded(test, card), run.job.name), lone


def _naming_classes(error: DataError, card: DataCard, lone: Mapping[str, Sequence[str]]) -> DataError:
    """Return the error with the names of the classes, if the model has too few outputs for them."""
    if not isinstance(error.__cause__, OutputsError) or not card.labels:
        return error
    alone = "; ".join(f"{name} alone has {_classes(labels)}" for name, labels in lone.items())
    outputs = f"give the model at least {card.classes} outputs"
    return DataError(
        f"the sites' data have {card.classes} classes, {_quoted(card.labels)}, and the model has {error.__cause__.outputs} outputs"
        + (f"; {alone}" if alone else ""),
        where=error.where,
        remedy=f"correct the label there first if it is misspelt; if it is a class, {outputs}" if alone else outputs,
    )


def _classes(labels: Sequence[str]) -> str:
    return f"the class{'es' if len(labels) > 1 else ''} {_quoted(labels)}"


def _quoted(labels: Sequence[str]) -> str:
    return few([repr(label) for label in labels])


def _coded(test: Dataset | None, card: DataCard) -> Dataset | None:
    """Return the server's own rows in the agreed codes."""
    return None if test is None else recoded(test, card_of(test), card)


async def _world(run: _Run, remote: RemoteIslands, others: Mapping[str, str]) -> World:
    """Tell the sites who takes part, wait until they can begin, and create the world."""
    names, seed = run.gathered.names, run.job.seed
    rendezvous = Rendezvous(
        names, run.gathered.sizes, remote.card, seed, dict(others), run.secret_seed, run.gathered.letters, run.helpers
    )
    await tell_all(run.channels, rendezvous.packed())
    required = frozenset(run.helpers.values())
    lost = await until_ready(run.channels, patience=run.job.patience, on_lost=run.job.on_lost, helpers=required)
    links = {site: channel for site, channel in run.channels.items() if site not in lost}
    absent = {site: _Absent(site) for site in run.gathered.hellos if site not in links}
    engine = Network(
        {**links, **absent}, [*run.gathered.placement, *(run.helpers.get(name, "") for name in others)],
        patience=run.job.patience, on_lost=run.job.on_lost, required=required, direct=run.job.direct, on_outlier=run.job.on_outlier,
    )  # fmt: skip
    return World(
        remote, engine, roster=Roster(list(names), others=dict(others)), seed=seed, clock=Clock(virtual=False),
        folder=run.folder.checkpoints, resume=run.resume, errors=run.job.errors, secret_seed=run.secret_seed,
        on_record=run.kept.record, on_restore=run.kept.restore,
    )  # fmt: skip


class _Absent:
    """The link to an absent site of a job that goes on without it: its replies never come."""

    def __init__(self, site: str) -> None:
        self.site = site

    async def send(self, tree: Any) -> None:
        """Raise ``LinkClosed``."""
        raise LinkClosed(f"site {self.site!r} is not there")

    async def recv(self) -> Any:
        """Raise ``LinkClosed``."""
        raise LinkClosed(f"site {self.site!r} is not there")

    def close(self, reason: str = "") -> None:
        """Do nothing."""
