"""A site's daemon: it dials the server, answers offers, runs the jobs' processes, and opens a port only if you ask for one, for other sites."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from atoll.core.errors import AtollError, ConfigError, IdentityError, JobError, MessageError
from atoll.core.persistence.files import write_bytes
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed
from atoll.runs.versions import versions

from ..confinement.sandbox import UNCONFINED, Confinement
from ..consent import Consent, consent_of
from ..daemon.control import CONTROL, FROM_SERVER, Control, content, dialler, direct_channel, job_channel, text, whole
from ..daemon.monitor import KnownServer, Sample, serve_monitor
from ..daemon.place import Place, clear_places
from ..daemon.ready import ReadyProcesses
from ..identity import SITES
from ..line import Backoff, Channel, Line, LineRefused, Settings, dial_line
from ..provision import Kit
from ..provision.keys import make_folder
from ..resources import Answer, ResourceManager, Resources
from ..worker.policies import demand_of_site
from .attempt import Post, SiteAttempt, SiteResults
from .ledger import Register, SiteLedger
from .neighbours import Neighbours, require_named

if TYPE_CHECKING:
    from atoll.privacy import Demand

__all__ = ["Site", "take_folder"]


# ------------------------------------------------------------------ who owns a folder: another site would take the files there for its own, and remove them


_OWNER = "owner"


def take_folder(folder: Path, kit: Kit) -> None:
    """Make a party's folder and write its owner's name into it. Later processes of the same party may use it too.

    Args:
        folder: the folder.
        kit: the party's kit.

    Raises:
        ConfigError: it is another party's, or cannot be made or written.
    """
    make_folder(folder, "--folder")  # private states are private to this user
    me = f"{kit.role} {kit.name!r} of project {kit.project!r}"
    try:
        with (folder / _OWNER).open("a+", encoding="utf-8", errors="replace") as file:
            owner = _owner(file, me)
    except OSError as error:
        raise ConfigError(
            f"the folder cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="free space, let this user write there, or choose another --folder",
        ) from error
    if owner != me:
        raise ConfigError(
            f"the folder belongs to {owner}, but this is {me}",
            where=str(folder),
            remedy="give each its own --folder, or move this one away if you do not need it",
        )


def _owner(file: IO[str], me: str) -> str:
    """Return the owner that is written down; the first to come is written, even if two come at once."""
    try:
        import fcntl
    except ImportError:  # not on POSIX: avoid starting two at once
        pass
    else:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
    file.seek(0)
    found = file.read().strip()
    if not found:
        file.write(f"{me}\n")
    return found or me


# ------------------------------------------------------------------ a site's daemon
#
# A site's daemon: it dials the server, answers offers, runs the jobs' processes, and opens a port only if you ask for one, for other sites.


_ORDERS = 1000
"""Most orders of the server that may wait here."""
_LOG = logging.getLogger("atoll.runtime")
_LOOK = 10.0
"""Seconds between two looks at the site's consent while jobs run."""
_AWAY = 600.0
"""Seconds without a connection after which a line to another site is given up; the attempts that use it end then."""


class Site:
    """Runs a site until you stop it. You may kill it at any moment: the jobs go on with their next attempt.

    Args:
        kit: the kit of the site or helper.
        data: its data, as `atoll.runtime.worker.site_spec` gives it; a helper may have none.
        folder: its own: private states of jobs and, while they run, their code.
        resources: what jobs may use here.
        server: ``host:port`` in place of the kit's addresses.
        gpus: names of the devices, as ``CUDA_VISIBLE_DEVICES`` takes them.
        direct: ``host:port`` to listen at for other sites, as they dial it; by default it opens no port.
        confinement: how its jobs are confined.
        clock: tells this machine's time, for the hours of the site's consent.
        metrics: ``host:port`` at which it serves ``/healthz`` and ``/metrics``; nowhere by default.
        accept_lost_ledger: start although the privacy ledger has lost lines.
        accept_restored_server: take the server as it is, although it has forgotten what it did with this site.

    Raises:
        ConfigError: the kit is not a site's, its certificate does not name the host to listen at, or the folder belongs
            to another party or cannot be made.
        CheckpointError: the record of what it has run cannot be read, or its privacy ledger was changed or has lost lines.
    """

    def __init__(
        self,
        kit: Kit,
        data: Mapping[str, Any],
        folder: Path,
        resources: Resources,
        *,
        server: str | None = None,
        gpus: tuple[str, ...] | None = None,
        direct: str | None = None,
        confinement: Confinement = UNCONFINED,
        clock: Callable[[], datetime] = datetime.now,
        metrics: str | None = None,
        accept_lost_ledger: bool = False,
        accept_restored_server: bool = False,
    ) -> None:
        kit.require(*SITES)
        self.kit = kit
        self.folder = folder
        self._dial = dialler(kit, server)
        if direct is not None:
            require_named(kit, direct)
        self._neighbours = Neighbours(
            kit.credentials(), kit.transport, direct, Settings(spool=folder / "spool", patience=_AWAY)
        )
        self._neighbours.on_open = self._take_peer_channel
        self._manager = ResourceManager(resources, gpus=gpus, site=kit.name)
        self._data = data
        self._confinement = confinement.hiding(kit.folder, folder)
        self._clock = clock
        self._metrics = metrics
        self._line: Line | None = None
        self._jobs: dict[str, SiteAttempt] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._control: Control | None = None
        take_folder(folder, kit)
        with contextlib.suppress(OSError):
            clear_places(folder)
        self._ready = ReadyProcesses(folder)
        self._register = Register(folder / "bundles.json")
        self._ledger = SiteLedger(
            folder, kit.name, bool(kit.plays), self._demand, ran=self._register.ran, accept_lost=accept_lost_ledger
        )
        self._results = SiteResults(folder, kit.name, bool(kit.plays), confinement.scratch)
        self._known = KnownServer(folder / "server.token", accept_restored_server)
        self._stranger: AtollError | None = None
        # Neither an older server nor a hostile one can return this site to an older revocation list.
        self._revoked_file = folder / "revoked.crl"
        for path in (self._revoked_file, kit.revoked_file):
            if path.is_file():
                self._learn(path.read_bytes())

    async def serve(self, on_connected: Callable[[str], None] = lambda server: None) -> None:
        """Stay connected until cancelled.

        Args:
            on_connected: called with the server's name whenever a line begins.

        Raises:
            IdentityError: one end refuses the other, another process uses the kit, or the server has forgotten what it did with this site: a person must act.
        """
        await self._neighbours.listen()
        try:
            async with serve_monitor(self._metrics, self._ill, self._measures):
                await self._serve(on_connected)
        except LineRefused as refused:
            raise refused.error from None
        finally:
            await self._neighbours.close()
            await self._ready.close()

    async def _serve(self, on_connected: Callable[[str], None]) -> None:
        settings = Settings(patience=None, spool=self.folder / "spool")
        # Sites that were cut off together must not come back all at once.
        backoff = Backoff(seed=int.from_bytes(hashlib.sha256(self.kit.name.encode()).digest()[:4]))
        while True:
            line = await dial_line(self._dial, settings=settings, on_open=self._take_channel, backoff=backoff)
            _LOG.info("site %r is connected to %s", self.kit.name, line.peer)
            self._line = line
            keeping = asyncio.create_task(self._keep_consent())
            try:
                await self._stay(line, on_connected)
            finally:
                keeping.cancel()
                await self._stop_all()
                await line.close("the site was stopped", within=1.0)
            if self._stranger is not None:
                raise LineRefused(self._stranger)
            if isinstance(line.error, LineRefused):
                raise line.error
            await asyncio.sleep(backoff.pause())

    def _ill(self) -> str:
        """Return what keeps this site from its work, or nothing."""
        return "" if self._line is not None and self._line.connected else "it is not connected to the server"

    def _measures(self) -> Iterable[Sample]:
        yield Sample("atoll_info", 1, "This site.", {"version": str(versions()["atoll"]), "role": "site"})
        yield Sample("atoll_connected", not self._ill(), "Whether it is connected to the server.")
        yield Sample("atoll_jobs", len(self._jobs), "Jobs that run here.", {"state": "running"})

    async def _stay(self, line: Line, on_connected: Callable[[str], None]) -> None:
        """Serve one line, from the greeting to its end."""
        try:
            channel = line.open(CONTROL)
            channel.narrow(FROM_SERVER)
            self._known.begin()
            # A new line means that nothing runs here; the server says of jobs whose files are still here whether they
            # have ended.
            folders = sorted(path.name for path in (self.folder / "jobs").glob("[!.]*"))
            over = self._register.over
            kept = [job for job in folders if job not in over]
            hello = {"op": "hello", "holding": [], "kept": kept, "tokens": True}
            await channel.send({**hello, "direct": self._neighbours.address} if self._neighbours.address else hello)
            self._control = Control(channel, self._frame)
            on_connected(line.peer.name)
            why = await self._control.run()
        except LinkClosed as error:
            why = str(error)
        _LOG.warning("%s: the line has ended (%s); jobs stop here, and go on with their next attempt", line.peer, why)

    async def _keep_consent(self) -> None:
        """Stop what the site no longer consents to. A file that cannot be read stops nothing that runs, and lets nothing begin."""
        while True:
            await asyncio.sleep(_LOOK)
            try:
                consent = await asyncio.to_thread(self._consent)
            except AtollError as error:
                if self._jobs:
                    _LOG.warning("the site's consent cannot be read: %s", error)
                continue
            closed = consent.explain_closed(self._clock())
            for running in list(self._jobs.values()):
                await running.reconsider(consent, closed)

    def _consent(self) -> Consent:
        """Read what the site consents to now: its file may be changed at any moment."""
        return consent_of(self._data, self.kit.name, bool(self.kit.plays))

    def _demand(self) -> Demand | None:
        """Read what the site demands of every release now."""
        return demand_of_site(self._data, self.kit.name, bool(self.kit.plays))

    async def _stop_all(self) -> None:
        """Stop everything: the server begins a new attempt of each job, and nothing of the old ones may stay."""
        await asyncio.gather(*(running.stop() for running in self._jobs.values()))
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for job in self._manager.held:
            self._manager.release(job)
        self._jobs.clear()

    # ------------------------------------------------------------------ the server's orders

    def _frame(self, frame: Mapping[str, Any]) -> None:
        if frame["op"] == "revoked":
            self._learn(content(frame, "revoked"))
            return
        if frame["op"] == "incarnation":
            self._meet(frame)
            return
        self._known.require_shown()
        op, job = frame["op"], text(frame, "job")
        if op not in ("offer", "release", "stop", "deploy"):
            _LOG.warning("unknown order %r from the server", op[:40])
            return
        if len(self._tasks) >= _ORDERS:
            raise MessageError(f"more than {_ORDERS} orders wait here", where="control", remedy="check that server")
        # One after another for each job: an order to stop finds the attempt begun, and an offer finds nothing of the
        # last attempt.
        before = [task for task in self._tasks if task.get_name() == job]
        task = asyncio.create_task(self._order(before, op, job, frame), name=job)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _meet(self, frame: Mapping[str, Any]) -> None:
        """Find whether the server is the one that this site knows."""
        try:
            token = self._known.take(frame)
        except IdentityError as error:
            self._stranger = error
            raise
        if token:
            self._tell("incarnation", now=token)

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, AtollError):
            _LOG.warning("an order of the server was not carried out: %s", error)
        elif error is not None:
            _LOG.error("an order of the server was not carried out", exc_info=error)

    def _offer(self, job: str, frame: Mapping[str, Any]) -> None:
        ticket = whole(frame, "ticket")  # before anything is reserved
        try:
            Place.of(self.folder, job)
            told = self._answer(job, Resources.of(frame.get("resources"))).tree()
        except AtollError as error:
            told = {"ok": False, "why": str(error), "never": True}
        self._tell("offered", job=job, ticket=ticket, **told)

    def _answer(self, job: str, need: Resources) -> Answer:
        try:
            consent = self._consent()
        except AtollError as error:  # somebody may be writing it just now
            return Answer(False, f"site {self.kit.name!r} cannot read its consent: {error}")
        closed = consent.explain_closed(self._clock())
        if closed:
            return Answer(False, closed)
        self._manager.limit(consent.most, consent.jobs)
        return self._manager.offer(job, need)

    async def _order(self, before: list[asyncio.Task[Any]], op: str, job: str, frame: Mapping[str, Any]) -> None:
        await asyncio.gather(*before, return_exceptions=True)
        running = self._jobs.get(job)
        if op == "offer":
            self._offer(job, frame)
            return
        if op == "deploy":
            number, bundle = whole(frame, "attempt"), content(frame, "bundle")
            if running is not None:
                await running.stop()
            learned = self._learn(content(frame, "revoked"))
            self._deploy(job, number, bundle, self._addresses(frame) if learned else {})
            return
        attempt = frame.get("attempt")
        if running is not None and attempt in (None, running.attempt):
            await running.stop()
            self._jobs.pop(job, None)
        if op == "release":
            self._manager.release(job)
        elif frame.get("end") is True:
            await self._forget(job)

    def _deploy(self, job: str, attempt: int, bundle: bytes, addresses: dict[str, str]) -> None:
        grant = self._manager.held.get(job)
        if grant is None:
            error = JobError("nothing is reserved for it here", where=f"job {job}", remedy="a defect of the server")
            self._tell("exited", job=job, attempt=attempt, code=None, error=pack_error(error))
            return
        post = Post(
            self.kit,
            self._data,
            self.folder,
            self._register,
            self._tell,
            self._neighbours,
            self._consent,
            self._ledger,
            self._results,
            self._ready,
            self._confinement,
        )
        running = self._jobs[job] = SiteAttempt(post, job, attempt, grant, addresses)
        running.start(bundle)

    def _addresses(self, frame: Mapping[str, Any]) -> dict[str, str]:
        """Return where the other sites of an attempt listen, if its job uses direct links."""
        found = frame.get("direct")
        if not isinstance(found, dict):
            return {}
        return {str(site): str(at) for site, at in found.items()}

    def _learn(self, signed: bytes) -> bool:
        """Take a revocation list, and keep it if it is the newest; return whether it is reliable."""
        before = self._neighbours.signed
        try:
            self._neighbours.learn(signed)
            if self._neighbours.signed != before:
                write_bytes(self._revoked_file, signed)
        except AtollError as error:
            _LOG.warning("a revocation list is ignored: %s", error)
            return False
        return True

    async def _forget(self, job: str) -> None:
        """Forget a job that has ended for good: only what it has spent of the site's privacy stays on record."""
        place = Place.of(self.folder, job)
        await asyncio.to_thread(self._register.end, job)
        await asyncio.to_thread(self._ledger.close, job)
        try:
            await asyncio.to_thread(place.forget)
        except OSError as error:
            _LOG.error("job %s has ended, and its files cannot be removed: %s", job, error)

    def _take_channel(self, channel: Channel) -> None:
        """Take the channel of an attempt, which the server opens."""
        for job, running in self._jobs.items():
            if channel.name == job_channel(job, running.attempt):
                running.take_channel(channel)
                return
        channel.close("there is no such attempt here")

    def _take_peer_channel(self, channel: Channel) -> None:
        """Take the channel of an attempt, which another site opens."""
        for job, running in self._jobs.items():
            if channel.name == direct_channel(job, running.attempt):
                running.take_peer_channel(channel)
                return
        channel.close("there is no such attempt here")

    def _tell(self, op: str, **fields: Any) -> None:
        if self._control is not None:
            self._control.tell(op, **fields)
