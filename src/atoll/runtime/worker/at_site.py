"""What a job's process does at a site: loads the data, agrees with the server about it, and runs tasks until the job ends."""

from __future__ import annotations

import re
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from atoll.core.errors import AtollError, PolicyError, TaskError
from atoll.core.event import Ledger, unpack_event
from atoll.core.execution.executor import Executor
from atoll.core.execution.host import Host, Journal
from atoll.core.job import every_job, register_prepared
from atoll.core.job import prepared as prepared_job
from atoll.core.persistence.named_results import NamedResults
from atoll.core.persistence.state_table import StateStore
from atoll.core.redaction import private, redacted
from atoll.core.requests.party import Roster
from atoll.core.requests.policy import SitePolicy, admit_job
from atoll.core.sealing import Record, Sealing, VirtualSealing
from atoll.data import Islands
from atoll.data.units import ColumnExtent, extents_of
from atoll.engines.link import LinkClosed
from atoll.runs.log import logger
from atoll.runs.spending import seen_by

from ..network import SiteEngine
from ..network.daemon_ledger import DaemonLedger, most_of
from ..network.site_engine import TaskThread
from ..network.site_state import RowsRecord
from .cards import DataCard, RemoteIslands, card_of, recoded
from .frames import Hello, Rendezvous, error_frame
from .letters import LetterKey, pulsing
from .sitedata import SiteData, SitePopulation

if TYPE_CHECKING:
    from atoll.core.job import Job, Prepared

    from ..job_spec import JobConfig

__all__ = ["alive", "leaving", "named_objects", "serve_job", "trace_of"]


# ------------------------------------------------------------------ errors that leave a site: what they quote of its data stays here, in the site's own log
#
# Atoll's own errors mark such values (`atoll.core.redaction`). The text of any other library's error, or of a job's own code, may quote a
# row anywhere. Only its kind leaves.


_MARKED = re.compile("(«[^»]*(?:»|$))")
_STAYS = "the site's own log has the words"


def leaving(error: Exception) -> AtollError:
    """Return the error as it may leave this site; if that is less than it says, write all of it to the log.

    Args:
        error: one of Atoll's own, or any other, of which only the kind leaves.
    """
    known = getattr(error, "_leaves", None)
    if known is not None:
        return known  # type: ignore[no-any-return]  # it was asked before: one line in the log is enough
    found = error if isinstance(error, AtollError) else _of_kind(error)
    what, where, remedy = (_mark_repeated(text, error) for text in (found.what, found.where, found.remedy))
    told = tuple(None if text is None else redacted(text) for text in (what, where, remedy))
    if told == (what, where, remedy):
        return found
    logger.error("%s", type(found)(what or "", where=where, remedy=remedy))
    hint = _STAYS if not told[2] else told[2] if _STAYS in told[2] else f"{told[2]}; {_STAYS}"
    error._leaves = type(found)(told[0] or "", where=told[1], remedy=hint)  # type: ignore[attr-defined]
    return error._leaves  # type: ignore[attr-defined, no-any-return]


def _of_kind(error: Exception) -> TaskError:
    text = str(error)
    what = f"{type(error).__name__}: {private(text)}" if text else type(error).__name__
    return TaskError(what, remedy="see the log of the site")


def _mark_repeated(text: str | None, error: BaseException) -> str | None:
    """Mark what an error repeats of the errors that it comes from, unless these are Atoll's own."""
    if text is None:
        return None
    for cause in _causes(error):
        said = str(cause)
        part = next((part for part in (said, said.partition("\n")[0]) if part and part in text), "")
        if part and not isinstance(cause, AtollError):
            text = _outside(text, part)
    return text


def _outside(text: str, part: str) -> str:
    """Mark a part of a text wherever it stands outside of marks."""
    pieces = _MARKED.split(text)
    return "".join(piece if piece.startswith("«") else piece.replace(part, private(part)) for piece in pieces)


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    found = error.__cause__ or error.__context__
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        yield found
        found = found.__cause__ or found.__context__


def trace_of(error: BaseException) -> list[str]:
    """Return the lines of a traceback in which each error's text is marked, so that it stays at the site."""
    lines: list[str] = []
    for found in [*reversed([*_causes(error)]), error]:
        lines += [line for entry in traceback.format_tb(found.__traceback__) for line in entry.splitlines()]
        text = str(found)
        lines.append(f"{type(found).__name__}: {private(text)}" if text else type(found).__name__)
    return lines


# ------------------------------------------------------------------ what a job's process does at a site
#
# What a job's process does at a site: loads the data, agrees with the server about it, and runs tasks until the job ends.


async def serve_job(
    channel: Any,
    job: JobConfig,
    load: Callable[[], SiteData],
    folder: Path | None,
    *,
    results: NamedResults | None = None,
    state_memory: int | None = None,
    links: Callable[[], Awaitable[Mapping[str, Any]]] | None = None,
    letters: LetterKey | None = None,
    ledger: DaemonLedger | None = None,
) -> None:
    """Serve one job to its end: until the server closes the channel.

    Args:
        channel: to the server's job process.
        job: what the job is.
        load: loads this site's data; called in the thread in which tasks run, to which a live connection belongs.
        folder: the folder for private state, journal and privacy ledger; it must outlive the attempt. ``None`` keeps
            them in memory.
        results: the named results that stay at this site's parties; ``None`` keeps them in memory.
        state_memory: bytes of memory that private state may take; see `atoll.core.persistence.state_table.StateStore`.
        links: waits briefly for the links to other sites: site -> link.
        ledger: the site's privacy ledger, which its daemon writes; without a daemon, the job has a file of its own in the
            folder.
        letters: this site's key for the letters of the job. Daemons always pass one; without it letters are not
            encrypted, and the ledger says so.

    Raises:
        AtollError: the data cannot be used, the server refused, or the model cannot be built; the server has received
            the error.
        TaskError: the server went away before the work began.
    """
    work = TaskThread()
    try:
        async with alive(channel):
            data = await work.call(load)
            extents = await work.call(_admitted, job, data)
            hello = Hello(
                data.names, data.sizes, data.card, None if letters is None else letters.signed, extents, data.held_out
            )
            await channel.send({"hello": hello.packed()})
            rendezvous = Rendezvous.unpack(await channel.recv())
            if letters is not None and rendezvous.secret is not None:
                raise PolicyError(
                    "the server wants to choose this site's secrets",
                    where="roster",
                    remedy="a seed for secrets is for tests without kits: check what runs at the server",
                )
            homes = await work.call(_homes, job, data, rendezvous)
            sealing = VirtualSealing() if letters is None else letters.sealing(rendezvous.letters, homes)
            neighbours = {} if links is None else await links()
            named = NamedResults() if results is None else results
            engine = await work.call(
                _engine, channel, job, data, rendezvous, sealing, folder, state_memory, neighbours, named, ledger, work
            )
        await channel.send({"ready": True})
    except LinkClosed as error:
        work.close()
        raise TaskError(
            f"the server went away before the work began: {error}",
            where="site",
            remedy="see the server's log; the job begins its next attempt by itself",
        ) from error
    except BaseException as error:
        work.close()
        if isinstance(error, Exception):
            await _told(channel, error)
        raise
    await engine.serve()


def _admitted(job: JobConfig, data: SiteData) -> Mapping[str, ColumnExtent]:
    """Return the extents of the columns for the server, if the site tells them.

    Raises:
        PolicyError: the site's policy refuses the job.
    """
    made = job.made(checking=True)
    for one in every_job(made):
        admit_job({f"site {data.site!r}": data.policy or SitePolicy()}, one.names())
    tells = data.scales and data.card is not None and made.one_form and not promises_privacy(made)
    least = data.rules.rules.min_count
    return extents_of(data.population, least) if tells else {}


def alive(channel: Any) -> AbstractAsyncContextManager[None]:
    """Show the server, until the work begins, that this process makes progress."""
    return pulsing(lambda: channel.send({"pulse": True}))


async def _told(channel: Any, error: Exception) -> None:
    """Send the error to the server, unless it came from the server or the server is gone."""
    try:
        await channel.send(error_frame(leaving(error)))
    except LinkClosed:
        return


def _engine(
    channel: Any,
    job: JobConfig,
    data: SiteData,
    rendezvous: Rendezvous,
    sealing: Sealing,
    folder: Path | None,
    state_memory: int | None,
    neighbours: Mapping[str, Any],
    named: NamedResults,
    ledger: DaemonLedger | None,
    work: TaskThread,
) -> SiteEngine:
    roster = Roster(list(rendezvous.names), others=rendezvous.others)
    mine = [roster.position(name) for name in data.names]
    others = {party: data.own for party, site in rendezvous.helpers.items() if site == data.site}
    remote = RemoteIslands(rendezvous.names, rendezvous.sizes, rendezvous.card)
    prepared = _prepared(job, remote, data)
    spends = _spending(prepared, job, data, folder, ledger)
    registry: dict[str, Any] = {}
    register_prepared(registry, prepared)
    rows = _in_agreed_codes(data, rendezvous.card)
    population = SitePopulation(list(rendezvous.names), rendezvous.sizes, mine, rows, others)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    record = Record(None if folder is None else folder / "record.log") if ledger is None else ledger.record
    executor = Executor(
        roster, population, data.rules, secret_seed=rendezvous.secret, sealing=sealing, named=named,
        leaving=leaving, record=record, remote=True,
    )  # fmt: skip
    host = Host(
        executor,
        StateStore(folder, roster, state_memory),
        spends,
        Journal(None if folder is None else folder / "journal.log"),
    )
    kept = RowsRecord(None if folder is None else folder / "rows.digest", data.population)
    return SiteEngine(channel, host, registry, neighbours=neighbours, work=work, rows=kept)


def _homes(job: JobConfig, data: SiteData, rendezvous: Rendezvous) -> dict[str, tuple[str, str]]:
    """Party without clients -> the site that plays it, and its role. The parties are the job's own, and what is played here is what the kit says.

    Raises:
        PolicyError: the server tells otherwise.
    """
    said, needed = dict(rendezvous.others), dict(job.made(checking=True).others(len(rendezvous.names)))
    here = sorted({said.get(party, "nothing") for party, site in rendezvous.helpers.items() if site == data.site})
    if said != needed or not rendezvous.helpers.keys() <= said.keys():
        what = f"the server says that the job's further parties are {said}, and they are {needed}"
    elif here != ([data.plays] if data.plays else []):
        what = (
            f"the server has this site play {', '.join(here) or 'nothing'}, and its kit says {data.plays or 'nothing'}"
        )
    else:
        return {party: (site, said[party]) for party, site in rendezvous.helpers.items()}
    raise PolicyError(
        what, where="roster", remedy="look at what runs at the server; use the same version of Atoll everywhere"
    )


def named_objects(job: JobConfig, remote: RemoteIslands, data: SiteData | None = None) -> Mapping[str, Any]:
    """Return the tasks that a job's requests name, by address, as the simulator registers them.

    Args:
        job: what the job is.
        remote: the population as the server knows it; from it every site makes the same tasks as the server.
        data: this site's data, which the job must be able to use.

    Raises:
        AtollError: the parts do not fit together, or the model does not fit the data.
    """
    registry: dict[str, Any] = {}
    register_prepared(registry, _prepared(job, remote, data))
    return registry


def _prepared(job: JobConfig, remote: RemoteIslands, data: SiteData | None) -> Prepared:
    prepared = prepared_job(job.made(), remote)
    if data is not None and data.names:
        _require_fit(prepared, data, remote.card)
    return prepared


def _spending(
    prepared: Prepared, job: JobConfig, data: SiteData, folder: Path | None, ledger: DaemonLedger | None
) -> Ledger:
    """Return the ledger that the job spends from here, once the site has admitted what it releases at most.

    Raises:
        PolicyError: the site demands more privacy than the job has, or its budget has too little left.
    """
    demand = None if data.policy is None else data.policy.privacy
    made = Ledger(None if folder is None else folder / "ledger.jsonl") if ledger is None else ledger
    made.seen_by = seen_by(prepared)
    if not data.names:
        return made
    if demand is None:
        return _entrusting(made, prepared, data)
    title, most = f"{job.name}: {job.made(checking=True).title}", most_of(prepared, data.names, data.sizes)
    if ledger is not None:
        ledger.admit(title, most)
    else:
        from atoll.privacy import Demand, LedgerGuard

        wanted = cast("Demand", demand)
        packed = {party: row["events"] for row in most for party in row["parties"]}
        releases = {
            party: None if events is None else [unpack_event(dict(one)) for one in events]
            for party, events in packed.items()
        }
        LedgerGuard(made, lambda party: wanted).admit("", title, releases)
    return _entrusting(made, prepared, data)


def _entrusting(ledger: Ledger, prepared: Prepared, data: SiteData) -> Ledger:
    """Book what others will release of this site's clients with noise of their own, in all rounds: nobody here sees which of them count."""
    for name, size in zip(data.names, data.sizes, strict=True):
        for number, event in enumerate(prepared.entrusted(int(size))):
            ledger.append(event, name, f"entrusted/{number}")
    return ledger


def _require_fit(prepared: Prepared, data: SiteData, agreed: DataCard | None) -> None:
    """Let the job check the site's own rows; those of a site without labels have the form of the others' targets."""
    bare = data.card is not None and data.card.bare
    try:
        prepared.check(_in_agreed_codes(data, agreed) if bare else data.population)
    except AtollError as error:
        place = f"the data of site {data.site!r}" + ("" if error.where is None else f", {error.where}")
        raise type(error)(error.what, where=place, remedy=error.remedy) from error


def _in_agreed_codes(data: SiteData, agreed: DataCard | None) -> Any:
    """Return the site's rows with their labels in the agreed codes and their features in the agreed order."""
    own = data.card
    if own is None or agreed is None or not isinstance(data.population, Islands):
        return data.population
    islands = data.population
    same = agreed.task != "classification" or not agreed.labels or own.labels == agreed.labels
    if same and own.features == agreed.features and (not own.bare or agreed.bare):
        return islands
    shards = {str(shard.name): shard.dataset() for shard in islands}
    return Islands.from_datasets({name: recoded(rows, card_of(rows), agreed) for name, rows in shards.items()})


def promises_privacy(job: Job) -> bool:
    """Tell whether a job has a mechanism, or its algorithm or stages promise privacy."""
    if getattr(job, "privacy", None) is not None:
        return True
    algorithm = getattr(job, "algorithm", None)
    if algorithm is None:
        return False
    from atoll.learn.local.reports import is_private

    up = getattr(job, "up", None)
    stages = () if up is None else tuple(up(phase).events for phase in algorithm.phases)
    return is_private(algorithm) or any(stages)
