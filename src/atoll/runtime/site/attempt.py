"""One attempt of a job at a site: its verified bundle, its process, and its channel to the server."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from atoll.core import message
from atoll.core.errors import AtollError, CheckpointError, JobError, MessageError, PolicyError
from atoll.core.persistence.named_results import file_of, place_of, require_grown
from atoll.core.redaction import redacted
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed

from ..bundle import Verified
from ..confinement.folders import HeldFolder, remove_tree
from ..confinement.sandbox import UNCONFINED, Confinement
from ..consent import Consent
from ..daemon.control import carry, direct_channel, relay
from ..daemon.launch import JobProcess, ProcessDiedEarly, launch
from ..daemon.place import Place, results_of
from ..daemon.ready import ReadyProcesses
from ..line import Channel
from ..network.daemon_ledger import CHANNEL
from ..provision import Kit
from ..resources import Grant
from ..terms import job_tree
from ..worker.letters import LetterKey
from ..worker.words import paths_of
from .database import DatabaseRelay, LogHolder, open_way
from .ledger import Register, SiteLedger
from .neighbours import Neighbours, partners

__all__ = ["Post", "SiteAttempt", "SiteResults"]


# ------------------------------------------------------------------ the named results that stay at a site, as its daemon keeps them
#
# The named results that stay at a site, as its daemon keeps them: a job's process reads them, and has no way to write one but to ask.
# A result of a job replaces an older one of its name. A record, which a task has left at once (`Island.leave`), such as what
# the site has answered, may only grow: no later job, whoever has signed it, makes it shorter.


_LONGEST_NAME = 400
_LONGEST_FILE = 1 << 40
_RECORD = ".record"
"""Ends the name of an empty file that says that a result is a record."""


class SiteResults:
    """The results of a site.

    Args:
        folder: the site's own.
        site: the site's name: its clients are called so, or ``site/client``.
        helper: whether it has no clients; what it plays has names of its own.
        most: bytes that one job may leave.
    """

    def __init__(self, folder: Path, site: str, helper: bool, most: int) -> None:
        self._place, self._site, self._helper, self._most = results_of(folder), site, helper, most
        self._sizes: dict[str, dict[tuple[str, str], int]] = {}
        self._one = threading.Lock()

    async def answer(self, job: str, frame: Any) -> dict[str, Any]:
        """Answer a job's process; what it leaves is durable when this returns."""
        return await asyncio.to_thread(self._answer, job, frame)

    def _answer(self, job: str, frame: Any) -> dict[str, Any]:
        try:
            with self._one:
                self._put(job, *self._check_name(frame), frame["value"], frame.get("at_once") is True)
            return {"ok": True}
        except AtollError as error:
            return {"error": pack_error(error)}
        except OSError as error:
            what = f"a result cannot be kept: {error.strerror or error}"
            return {"error": pack_error(CheckpointError(what, where="results", remedy="free space at the site"))}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"a job's process sent no result: {type(error).__name__}"
            return {"error": pack_error(MessageError(what, where="results", remedy="look at the job's own code"))}

    def _check_name(self, frame: Any) -> tuple[str, str]:
        """The party and the name, if a result may be called so."""
        party, name = frame["party"], frame["name"]
        own = isinstance(party, str) and (self._helper or party.partition("/")[0] == self._site)
        if not own or not 0 < len(party) <= _LONGEST_NAME:
            raise MessageError(
                f"{party!r:.100} is no party of site {self._site!r}",
                where="results",
                remedy="look at the job's own code",
            )
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise MessageError(
                f"{name!r:.100} is not the name of a result", where="results", remedy="look at the job's own code"
            )
        return party, name

    def _put(self, job: str, party: str, name: str, value: Any, at_once: bool) -> None:
        content = message.encode(file_of(party, name, job, value))
        mine = self._sizes.setdefault(job, {})
        left = sum(size for key, size in mine.items() if key != (party, name))
        if left + len(content) > self._most:
            raise PolicyError(
                f"the job has left results of {left + len(content):,} bytes, more than the {self._most:,} that jobs may write here",
                where=party,
                remedy="let the job leave less, or start the site with --scratch and a larger size",
            )
        folder, file = place_of(party, name)
        mark = file.removesuffix(".msg") + _RECORD
        with HeldFolder.open(self._place, folder, make=True) as held:
            record = at_once or not held.fault_of(mark)
            if record and not held.fault_of(file):
                require_grown(message.decode(held.read(file, _LONGEST_FILE)), value, party, name)
            if record:
                with contextlib.suppress(FileExistsError):
                    held.create(mark, b"")
            held.write(file, bytes(content))
        mine[party, name] = len(content)


# ------------------------------------------------------------------ one attempt of a job at a site: its verified bundle, its process, and its channel to the server


_LOG = logging.getLogger("atoll.runtime")
_GRACE = 10.0
"""Seconds for a job's process to end by itself once the server has closed its channel."""
_REACH = 5.0
"""Seconds within which another site must be reached directly."""

Tell = Callable[..., None]


@dataclass(frozen=True)
class Post:
    """What all jobs of a site share.

    Attributes:
        kit: the site's own; its authorities decide whose bundles run, whatever the server says.
        data: the site's data, as `atoll.runtime.worker.sitedata.site_spec` gives it.
        folder: where the site keeps its jobs.
        register: the bundles that it has run.
        tell: sends a frame to the server.
        neighbours: its lines to other sites.
        consent: reads what the site consents to now.
        ledger: what the site's parties have spent, of all jobs.
        results: the named results that stay at the site.
        ready: the process that waits for a job.
        confinement: how its jobs are confined.
    """

    kit: Kit
    data: Mapping[str, Any]
    folder: Path
    register: Register
    tell: Tell
    neighbours: Neighbours
    consent: Callable[[], Consent]
    ledger: SiteLedger
    results: SiteResults
    ready: ReadyProcesses | None = None
    confinement: Confinement = UNCONFINED


class SiteAttempt:
    """One attempt of a job at this site. It ends by itself, and then sends ``exited`` exactly once.

    Args:
        post: the site.
        job: its id.
        attempt: its number.
        grant: the resources that it holds here.
        addresses: every site of the attempt -> where it listens for others, or nothing; empty if the job does not use
            direct links.
    """

    def __init__(
        self, post: Post, job: str, attempt: int, grant: Grant, addresses: Mapping[str, str] | None = None
    ) -> None:
        self.job = job
        self.attempt = attempt
        self._post = post
        self._grant = grant
        self._place = Place.of(post.folder, job)
        self._channel: asyncio.Future[Channel] = asyncio.get_running_loop().create_future()
        self._process: JobProcess | None = None
        self._way: DatabaseRelay | LogHolder | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._dialled, self._awaited = partners(post.kit.name, addresses or {})
        self._direct: set[asyncio.Task[Any]] = set()
        self._verified: Verified | None = None
        self._allow: tuple[str, ...] | None = None
        self._kind = ""
        self._why, self._withdrawn = "", None  # type: str, AtollError | None

    def start(self, bundle: bytes) -> None:
        """Start the attempt."""
        self._task = asyncio.create_task(self._live(bundle))

    def take_channel(self, channel: Channel) -> None:
        """Take the attempt's channel, which the server has opened."""
        if self._channel.done():
            channel.close("this attempt has its channel already")
        else:
            self._channel.set_result(channel)

    def take_peer_channel(self, channel: Channel) -> None:
        """Take the attempt's channel from another site."""
        if channel.peer.name in self._awaited and self._process is not None:
            self._awaited.discard(channel.peer.name)
            self._spawn(self._pass_on(channel.peer.name, channel, self._process))
        else:
            channel.close("nothing waits for this channel")

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._direct.add(task)
        task.add_done_callback(self._direct.discard)

    async def stop(self, why: str = "", withdrawn: AtollError | None = None) -> None:
        """Stop the attempt at any stage, and wait until it has ended.

        Args:
            why: what the server is told, if it has not ordered this; the job goes on with its next attempt.
            withdrawn: the site no longer consents, so the job fails.
        """
        self._why, self._withdrawn = why, withdrawn
        self._stopping.set()
        if self._task is not None:
            await asyncio.gather(self._task, return_exceptions=True)

    async def _live(self, bundle: bytes) -> None:
        work: asyncio.Future[Any] = asyncio.create_task(self._work(bundle))
        stopped: asyncio.Future[Any] = asyncio.create_task(self._stopping.wait())
        await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
        code, error = None, None
        try:
            stopped.cancel()
            work.cancel()
            code, error = await work
        except asyncio.CancelledError:
            _LOG.info("job %s: attempt %d is stopped", self.job, self.attempt)
        except ProcessDiedEarly as found:
            _LOG.warning("job %s: attempt %d: %s", self.job, self.attempt, found)
            code = found.code or None  # not an error of the job's: the next attempt may succeed
        except (AtollError, LinkClosed, OSError) as found:
            _LOG.warning("job %s: attempt %d: %s", self.job, self.attempt, found)
            error = pack_error(found if isinstance(found, AtollError) else _wrap_error(found))
        finally:
            for task in self._direct:
                task.cancel()
            if self._process is not None:
                code = await self._process.stop()
            if self._way is not None:
                await self._way.close()
            if self._withdrawn is not None:
                error = pack_error(self._withdrawn)
            self._say("exited", code=code, error=error, **({"why": self._why} if self._why else {}))
            if self._channel.done():
                self._channel.result().close("the job's process has ended")
            with contextlib.suppress(OSError):
                await asyncio.to_thread(remove_tree, self._place.code(self.attempt))

    async def _work(self, bundle: bytes) -> tuple[int, Any]:
        kit = self._post.kit
        register = self._post.register
        code = await asyncio.to_thread(
            self._place.open, bundle, kit, self.attempt,
            known=partial(register.knows, self.job), admit=self._admit,
        )  # fmt: skip
        letters = await asyncio.to_thread(self._letter_key)
        self._way = await open_way(self._post.data, kit)
        self._process = await launch(
            self._place, code, role="site", name=kit.name, plays=kit.plays, data=self._post.data, grant=self._grant, on_lines=self._log,
            confinement=self._post.confinement, reads=paths_of(self._post.data, kit.name, bool(kit.plays)),
            neighbours=sorted({*self._dialled, *self._awaited}), letters=letters.order(), allow=self._allow, signer="" if self._verified is None else str(self._verified.signer), leads=self._way if isinstance(self._way, DatabaseRelay) else None, on_life=partial(self._say, "starting"),
            ready=self._post.ready, kind=self._kind,
        )  # fmt: skip
        with contextlib.suppress(LinkClosed):
            others = {"put": self._post.results.answer}
            self._spawn(self._post.ledger.serve(self._process.channel(CHANNEL), self.job, others))
        self._say("deployed")
        return await self._serve(self._process)

    def _admit(self, verified: Verified) -> None:
        """Ask the site's consent, and remember what runs."""
        self._allow = self._post.consent().admit(verified)
        self._post.register.admit(self.job, verified)
        self._verified, self._kind = verified, str(job_tree(verified.job).get("job", ""))

    async def reconsider(self, consent: Consent, closed: str) -> None:
        """Stop the attempt if the site no longer consents to it, or has closed."""
        if self._stopping.is_set() or self._verified is None:
            return
        try:
            await asyncio.to_thread(consent.admit, self._verified)
        except AtollError as error:
            _LOG.warning("job %s: attempt %d is stopped: %s", self.job, self.attempt, error)
            await self.stop(withdrawn=error)
        else:
            if closed:
                _LOG.warning("job %s: attempt %d is stopped: %s", self.job, self.attempt, closed)
                await self.stop(closed)

    def _letter_key(self) -> LetterKey:
        """Return the site's key for the letters of this job, signed with its kit, which job processes do not get."""
        kit = self._post.kit
        return LetterKey.make_key(
            kit.credentials(), project=kit.project, job=self.job, site=kit.name, state=self._place.record,
            revoked=self._post.neighbours.signed,
        )  # fmt: skip

    async def _serve(self, process: JobProcess) -> tuple[int, Any]:
        """Relay until one end closes; return the exit code and error of the process."""
        ended: asyncio.Future[Any] = asyncio.create_task(process.wait())
        await asyncio.wait({ended, self._channel}, return_when=asyncio.FIRST_COMPLETED)
        if self._channel.done():
            local = process.channel("server")
            for site, address in self._dialled.items():
                self._spawn(self._reach(site, address, process))
            ending = await carry(self._channel.result(), local)
            local.close(str(ending.error))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(ended), _GRACE)
        code = await process.stop()
        await ended
        return code, process.error()

    async def _reach(self, site: str, address: str, process: JobProcess) -> None:
        """Open a channel to another site, if it can be reached; otherwise the server relays the messages."""
        try:
            async with asyncio.timeout(_REACH):
                channel = await self._post.neighbours.open(site, address, direct_channel(self.job, self.attempt))
        except (AtollError, OSError) as error:
            why = str(error) or f"not within {_REACH:g} s"
            _LOG.warning("job %s: site %r is not reached directly: %s", self.job, site, why)
            self._log([f"site {site!r} is not reached directly, the server relays its messages: {why}"])
        else:
            await self._pass_on(site, channel, process)

    @staticmethod
    async def _pass_on(site: str, channel: Channel, process: JobProcess) -> None:
        try:
            local = process.channel(f"direct/{site}")
        except LinkClosed as error:
            channel.close(str(error))
        else:
            await relay(channel, local)

    def _say(self, op: str, **fields: Any) -> None:
        self._post.tell(op, job=self.job, attempt=self.attempt, **fields)

    def _log(self, lines: list[str]) -> None:
        """Send lines of the job's log to the server; what they quote of the data stays in this daemon's log."""
        told = [redacted(line) for line in lines]
        for line, shown in zip(lines, told, strict=True):
            if line != shown:
                _LOG.warning("job %s: %s", self.job, line)
        self._post.tell("log", job=self.job, lines=told)


def _wrap_error(error: Exception) -> JobError:
    return JobError(
        f"the job could not be started: {error}", where="site", remedy="see the site's log, then submit the job again"
    )
