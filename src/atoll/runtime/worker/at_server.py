"""What a job's process does at the server: gathers the sites, runs the program between them, and keeps the result."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atoll.core.algebra.rng import name_key
from atoll.core.errors import (
    AtollError,
    CheckpointError,
    CompositionError,
    DataError,
    JobError,
    MessageError,
    TaskError,
)
from atoll.core.federation.federation import run_program
from atoll.core.job import EDGE
from atoll.core.job import prepared as prepared_job
from atoll.core.persistence.files import read_message, write_message
from atoll.core.requests.party import Roster
from atoll.core.time.clock import Clock
from atoll.core.world import World
from atoll.data import Dataset
from atoll.data.units import merge_extents, other_units
from atoll.engines.link import LinkClosed
from atoll.learn.local.own_loss import OutputsError
from atoll.runs import Kept, RunFolder, keeping, result_of, yaml
from atoll.runs.log import logger
from atoll.simulation import result_of_run

from ..bundle import SOURCE
from ..job_spec import JobConfig, parse_job
from ..network import Network
from ..network.validation import QUIET
from .cards import DataCard, RemoteIslands, card_of, few, lone_classes, merge_cards, recoded
from .frames import Hello, Rendezvous, error_frame, raise_if_error, require_own_names
from .letters import SignedKey

if TYPE_CHECKING:
    from atoll.core.job import Job

__all__ = ["Gathered", "JobFolder", "cards_of_all", "exit_error", "gather", "run_job", "tell_all", "until_ready"]


# ------------------------------------------------------------------ gathering the sites of a job
#
# Gathering the sites of a job: who is there, in which order, and whether they are the sites that the job began with.


OnLost = Literal["fail", "drop"]


@dataclass(frozen=True)
class Gathered:
    """The sites of a job.

    Attributes:
        hellos: site -> what it said when the job began, in the order of the roster; with its newest key for letters.
        present: sites that are there now.
    """

    hellos: Mapping[str, Hello]
    present: frozenset[str]

    @property
    def names(self) -> tuple[str, ...]:
        """Return all clients in the order of the roster: sites by name (numbers in names by value), each site's clients as it listed them."""
        return tuple(name for hello in self.hellos.values() for name in hello.parties)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Return the rows of each client."""
        return tuple(size for hello in self.hellos.values() for size in hello.sizes)

    @property
    def held_out(self) -> tuple[int, ...] | None:
        """Return the rows of each client on which it does not train; ``None`` if a site cannot tell."""
        held = [hello.held_out for hello in self.hellos.values() if hello.parties]
        return None if None in held else tuple(size for one in held for size in one or ())

    @property
    def letters(self) -> dict[str, SignedKey]:
        """Return the keys for letters that sites have sent."""
        return {site: hello.letters for site, hello in self.hellos.items() if hello.letters is not None}

    @property
    def placement(self) -> tuple[str, ...]:
        """Return the site of each client."""
        return tuple(site for site, hello in self.hellos.items() for _ in hello.parties)


async def gather(
    channels: Mapping[str, Any],
    record: Path,
    *,
    patience: float = 600.0,
    on_lost: OnLost = "fail",
    helpers: Collection[str] = (),
) -> Gathered:
    """Read every site's hello, and check that it matches what the site said when the job began.

    Args:
        channels: site -> channel to its job process.
        record: the file that records what they said at first.
        patience: seconds without a sign of life after which a site is lost.
        on_lost: what happens then: the job fails, or goes on without the site.
        helpers: the sites without clients; the job never goes on without one of them.

    Raises:
        JobError: a site is lost, or none is left.
        CheckpointError: a site is missing that the job began with, or came back with other parties or data.
        AtollError: a site's own error.
    """
    heard = await asyncio.gather(*(_hello(s, c, patience, on_lost, s in helpers) for s, c in channels.items()))
    hellos = {site: hello for site, hello in zip(channels, heard, strict=True) if hello is not None}
    # The first attempt alone writes the record. A site that comes back with other parties or rows must not continue their random streams.
    if not record.exists():
        if not hellos.keys() - set(helpers):
            raise JobError("no site is left", where="job", remedy="see the sites' logs, then submit again")
        ordered = {site: hellos[site] for site in sorted(hellos, key=name_key)}
        write_message(record, [[site, hello.packed()] for site, hello in ordered.items()])
        return Gathered(ordered, frozenset(ordered))
    first = {site: Hello.unpack(tree, str(record)) for site, tree in read_message(record)}
    for site, hello in hellos.items():
        if site in first:
            _require_same(site, first[site], hello)
    gone = [site for site in first if site not in hellos]
    needed = [site for site in gone if on_lost == "fail" or not first[site].parties]
    if needed or (gone and set(gone) >= {site for site, hello in first.items() if hello.parties}):
        raise CheckpointError(
            f"site {[*needed, *gone][0]!r} is missing, and the job began with it",
            where="job",
            remedy="bring the site back, or set on_lost: drop to go on without it"
            if first[[*needed, *gone][0]].parties
            else "bring the helper back: no job goes on without one",
        )
    renewed = {site: replace(hello, letters=hellos.get(site, hello).letters) for site, hello in first.items()}
    return Gathered(renewed, frozenset(site for site in hellos if site in first))


async def _hello(site: str, channel: Any, patience: float, on_lost: OnLost, helper: bool) -> Hello | None:
    where = f"site {site!r}"
    narrow = getattr(channel, "narrow", None)
    if narrow is not None:
        narrow(QUIET)
    try:
        frame = await _read_frame(channel, patience)
    except (LinkClosed, TimeoutError) as error:
        if on_lost == "drop" and not helper:
            return None
        raise _make_loss_error(where, error, patience, "before it had loaded its data") from error
    except MessageError as error:
        raise MessageError(f"its greeting cannot be read: {error.what}", where=where, remedy=error.remedy) from error
    raise_if_error(frame, where)
    hello = Hello.unpack(frame.get("hello"), where)
    require_own_names(site, hello, helper)
    return hello


async def _read_frame(channel: Any, patience: float) -> Any:
    """Return the next frame that is not a sign of life; each sign restarts the wait."""
    while True:
        frame = await asyncio.wait_for(channel.recv(), patience)
        if not (isinstance(frame, dict) and frame.get("pulse") is True):
            return frame


def _make_loss_error(where: str, error: Exception, patience: float, when: str) -> JobError:
    why = f"no progress for {patience:g} s" if isinstance(error, TimeoutError) else f"its job process ended: {error}"
    return JobError(
        f"the site was lost {when}: {why}",
        where=where,
        remedy="see the site's log; raise `patience`, or set on_lost: drop to go on without it",
    )


def _require_same(site: str, first: Hello, now: Hello) -> None:
    """Refuse a site that came back with other parties or data."""
    if first == now:
        return
    if first.parties != now.parties:
        said = f"parties {', '.join(now.parties[:5])}, and it began with {', '.join(first.parties[:5])}"
    elif first.sizes != now.sizes:
        said = f"{sum(now.sizes)} rows, and it began with {sum(first.sizes)}"
    else:
        said = "columns, features or labels other than those it began with"
    raise CheckpointError(
        f"it came back with {said}",
        where=f"site {site!r}",
        remedy="bring back the data that the job began with, or submit the job again: atoll clone JOB",
    )


def cards_of_all(gathered: Gathered, test: DataCard | None = None) -> dict[str, DataCard]:
    """Return the card of every site with clients, keyed as errors name it (``"site 'a'"``), and that of the server's own test rows.

    Raises:
        JobError: a site's data has no card.
    """
    cards = {f"site {site!r}": hello.card for site, hello in gathered.hellos.items() if hello.parties}
    bare = [name for name, card in cards.items() if card is None]
    if bare:
        raise JobError(
            "its data has a form of its own, and a model needs columns x and y",
            where=bare[0],
            remedy="give it a data set (a CSV file, an archive, an atoll.data.Dataset), or run a program of your own",
        )
    known = {name: card for name, card in cards.items() if card is not None}
    return known if test is None else {**known, "the server's data.test": test}


async def tell_all(channels: Mapping[str, Any], frame: Any) -> None:
    """Send every site the same frame; a site that is gone is noticed when its answer is awaited."""

    async def tell(channel: Any) -> None:
        try:
            await channel.send(frame)
        except LinkClosed:
            return

    await asyncio.gather(*(tell(channel) for channel in channels.values()))


async def until_ready(
    channels: Mapping[str, Any],
    *,
    patience: float = 600.0,
    on_lost: OnLost = "fail",
    helpers: Collection[str] = (),
) -> set[str]:
    """Wait until every site can begin; return those that are lost. No job goes on without a helper.

    Raises:
        JobError: a site is lost.
        AtollError: a site's own error; the others are told.
    """
    lost: set[str] = set()

    async def wait(site: str, channel: Any) -> None:
        try:
            frame = await _read_frame(channel, patience)
        except (LinkClosed, TimeoutError) as error:
            if on_lost == "fail" or site in helpers:
                raise _make_loss_error(f"site {site!r}", error, patience, "before the work began") from error
            lost.add(site)
            return
        raise_if_error(frame, f"site {site!r}")

    found = await asyncio.gather(*(wait(s, c) for s, c in channels.items()), return_exceptions=True)
    for error in found:
        if isinstance(error, BaseException):
            # A site's own error says more than the loss of another site, which may follow from it.
            raise next((e for e in found if isinstance(e, AtollError) and not isinstance(e, JobError)), error)
    return lost


# ------------------------------------------------------------------ what a job's process does at the server
#
# What a job's process does at the server: gathers the sites, runs the program between them, and keeps the result.


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
    far = other_units({site: hello.extents for site, hello in gathered.hellos.items()}, fine=False)
    if far and job.on_outlier == "reject":
        raise DataError(
            far[0], where="data cards", remedy="give every site's column the same unit, or set on_outlier: warn"
        )
    for line in _name_units(gathered):
        logger.warning("%s", line)


def _name_units(gathered: Gathered) -> list[str]:
    """Say which site's columns may be in other units."""
    told = other_units({site: hello.extents for site, hello in gathered.hellos.items()})
    return [f"{words}: is it in another unit?" for words in told]


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
    result = result_of_run(job, remote, prepared, value, fed, time.perf_counter() - begin)
    run.kept.finish(replace(result, notices=(*result.notices, *_name_units(run.gathered))))
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
            remedy="let `Job.helpers` say what `Job.others` needs, whatever the number of clients; SQL under shares at two sites has helper: true for it",
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
    extents = merge_extents(hello.extents for hello in run.gathered.hellos.values())
    made = RemoteIslands(names, sizes, card, _coded(test, card), run.job.name, extents, held_out=run.gathered.held_out)
    public = await asyncio.to_thread(run.job.public_set)
    return made if public is None else made.with_public(public), lone


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
