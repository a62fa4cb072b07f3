"""The server's daemon: one port, the lines of sites and people, the jobs and their store. It computes nothing itself."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shutil
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, ConfigError, MessageError
from atoll.core.persistence.files import write_bytes
from atoll.core.persistence.trail import AuditEvent
from atoll.engines.link import LinkClosed
from atoll.runs.versions import versions

from ..confinement.sandbox import UNCONFINED, Confinement
from ..daemon.control import CONTROL, FROM_SITE
from ..daemon.launch import JobProcess, launch
from ..daemon.monitor import Sample, SiteTokens, serve_monitor
from ..daemon.place import Place
from ..daemon.ready import ReadyProcesses
from ..identity import SITES, Peer
from ..line import Channel, Line, PackedMessage, Settings, Switchboard
from ..provision import Kit, Revocations, SiteList
from ..provision.keys import make_folder
from ..scheduler import Scheduler
from ..store.changes import visible
from ..store.records import JobFilter, JobRecord, JobState, JobStore
from ..store.sqlite import SqliteStore
from ..terms import read_terms
from ..transport import transport
from ..transport.sockets import own
from .attempt import Attempt
from .dispatch import Dispatcher, JobNews
from .looking import JOBS, Quotas
from .requests import MAY, REQUEST, RequestHandler, clear, remind, tidy
from .site_session import LastSeen, Members, SiteSession, follow, guard, publish, watch

__all__ = ["Server", "measures"]


# ------------------------------------------------------------------ what a server tells its operator's monitoring: jobs by state, sites, bytes


def measures(
    store: JobStore, members: Members, seen: LastSeen, sessions: Mapping[str, SiteSession]
) -> Iterator[Sample]:
    """Yield the numbers of now.

    Args:
        store: the jobs.
        members: the sites of the project.
        seen: when they were last connected.
        sessions: those that have a line.

    Raises:
        JobError: the store cannot be read.
    """
    yield Sample("atoll_info", 1, "This server.", {"version": str(versions()["atoll"]), "role": "server"})
    for state in JobState:
        count = store.count(JobFilter(states=frozenset({state})))
        yield Sample("atoll_jobs", count, "Jobs in the store, by state.", {"state": str(state)})
    names = sorted({*sessions, *members.clients, *members.plays})
    there = {name for name, session in sessions.items() if session.connected}
    for name in names:
        yield Sample("atoll_site_connected", name in there, "Whether a site is connected.", {"site": name})
    for name in names:
        last = seen.of(name)
        if name in there or last is not None:
            when = time.time() if name in there or last is None else last.when
            yield Sample("atoll_site_last_seen_seconds", when, "When it last was, since 1970.", {"site": name})
    stats = {name: session.line.stats() for name, session in sorted(sessions.items())}
    for name, line in stats.items():
        yield Sample("atoll_received_bytes_total", line.received_bytes, "Bytes of a site's line.", {"site": name})
    for name, line in stats.items():
        yield Sample("atoll_sent_bytes_total", line.sent_bytes, "Bytes to a site.", {"site": name})
    for name, line in stats.items():
        yield Sample("atoll_line_cuts_total", line.resumes, "Cuts of a site's line that it survived.", {"site": name})
    for name, line in stats.items():
        if line.round_trip is not None:
            yield Sample("atoll_round_trip_seconds", line.round_trip, "Round trip of a site's line.", {"site": name})


# ------------------------------------------------------------------ the server's daemon
#
# The server's daemon: one port, the lines of sites and people, the jobs and their store. It computes nothing itself.


_LOG = logging.getLogger("atoll.runtime")
_ROOM = 64 << 20
"""Bytes that must be free for the server to count as well."""
_REQUESTS = 64
"""Most requests of a person at once."""
_AWAY = 3600.0
"""Seconds without a connection after which a line is given up; the job's own patience is usually shorter."""


class Server:
    """Serves a project until you stop it. Everything it must remember is in its folder, so you may kill it at any moment and start it again.

    Args:
        kit: a server's kit.
        folder: its folder, with the store, the jobs and their results.
        address: ``host:port`` to listen at; by default the kit's. Port 0 lets the system choose.
        max_jobs: most jobs at once.
        quota: most jobs of one admin that have not ended.
        metrics: ``host:port`` at which it serves ``/healthz`` and ``/metrics``; nowhere by default.
        confinement: how the jobs' processes here are confined.
        takeover: let a second process of a site replace the first one while that lives.
        standby: if another server uses the folder, wait until its process has ended, and take its place.

    Raises:
        ConfigError: the kit is not a server's, or the folder cannot be made.
        IdentityError: its certificate has expired or is not valid yet, by this machine's clock.
        JobError: another process serves from the folder.
    """

    def __init__(
        self,
        kit: Kit,
        folder: Path,
        *,
        address: str | None = None,
        max_jobs: int | None = None,
        quota: int | None = None,
        metrics: str | None = None,
        confinement: Confinement = UNCONFINED,
        takeover: bool = False,
        standby: bool = False,
    ) -> None:
        kit.require("server")
        self.kit = kit
        self.folder = folder
        self._takeover = takeover
        self._confinement = confinement.hiding(kit.folder, folder)
        self._address = address or f"{kit.server.listen}:{kit.server.port}"
        make_folder(folder, "--folder")  # models and logs are private to this user
        self._credentials = kit.credentials()
        own(self._credentials)  # otherwise it would listen, and refuse everyone for a reason that only its clock knows
        self._revoked = Revocations(kit.revoked_file, kit.folder / "ca.pem")
        self._news = JobNews()
        if standby:
            _LOG.info(
                "server %r of project %r stands by: it serves once no other server uses %s",
                kit.name,
                kit.project,
                folder,
            )
        self._store = SqliteStore(folder, wait=standby)
        self._ready = ReadyProcesses(folder)
        self._listed = SiteList(kit.sites_file)
        self._members = Members(self._listed, folder / "sites.txt")
        self._seen = LastSeen(folder / "seen.json", self._revoked)
        scheduler = Scheduler(max_jobs=max_jobs, known=self._members.clients, revoked=self._seen.revoked)
        self._dispatcher = Dispatcher(self._store, scheduler, self._members, self._begin, self._news)
        self._requests = RequestHandler(
            kit, self._store, self._dispatcher, self._news, lambda job: Place.of(folder, job), self._revoked,
            Quotas(self._store, JOBS if quota is None else quota), self._members, self._seen,
        )  # fmt: skip
        self._tokens = SiteTokens(folder)
        self._tasks: set[asyncio.Task[Any]] = set()
        self._metrics = metrics

    async def serve(self, on_listening: Callable[[str], None] = lambda address: None) -> None:
        """Listen until cancelled.

        Args:
            on_listening: called with the address once parties can connect.

        Raises:
            ConfigError: it cannot listen at the address.
        """
        board = Switchboard(
            self._line,
            Settings(patience=_AWAY, spool=self.folder / "spool"),
            takeover=self._takeover,
            on_second=self._second,
        )
        try:
            carrier = transport(self.kit.transport)
            listener = await carrier.listen(
                self._address, self._credentials, board.accept, self._revoked, on_refused=self._record_refusals
            )
        except OSError as error:
            self._store.close()
            raise ConfigError(
                f"cannot listen at {self._address}: {error.strerror or error}",
                where=f"server {self.kit.name!r}",
                remedy="stop the server or program that uses the port, or choose another with --listen HOST:PORT",
            ) from error
        try:
            write_bytes(self.folder / "address", listener.address.encode())
            _LOG.info("server %r of project %r listens at %s", self.kit.name, self.kit.project, listener.address)
            self._store.record(AuditEvent(when=time.time(), who="server", what="started"))
            on_listening(listener.address)
            self._spawn(guard(board, self._revoked, self._cut))
            self._spawn(publish(self._revoked, self._dispatcher.sessions))
            self._spawn(tidy(self._dispatcher.sessions, self._store))
            self._spawn(follow(self._listed, self._dispatcher.know))
            self._dispatcher.restart()
            self._spawn(clear(self.folder, self._store))
            self._spawn(watch(self._seen, self._dispatcher.sessions))
            async with serve_monitor(self._metrics, self._ill, self._measures):
                await self._dispatcher.run()
        finally:
            await self._dispatcher.close()
            await self._ready.close()
            with contextlib.suppress(AtollError):
                self._seen.keep()
            await board.close("the server was stopped", within=1.0)
            await listener.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._store.close()

    def _ill(self) -> str:
        """Return what keeps this server from its work, or nothing."""
        self._store.count(JobFilter(states=frozenset()))  # raises if it cannot be read
        free = shutil.disk_usage(self.folder).free
        return "" if free > _ROOM else f"{free} bytes are free at {self.folder.name}, fewer than {_ROOM}"

    def _measures(self) -> Iterable[Sample]:
        return measures(self._store, self._members, self._seen, self._dispatcher.sessions)

    # ------------------------------------------------------------------ who connects

    def _line(self, line: Line) -> None:
        peer = line.peer
        _LOG.info("%s is connected", peer)
        self._note(peer, "connected", line)
        line.on_lost.append(lambda error: self._note_gone(line, error))
        if peer.role in SITES and not line.asks:
            line.on_open = lambda channel: self._spawn(self._site(line, channel))
        elif peer.role in MAY:
            line.on_open = lambda channel: self._spawn(self._person(line, channel))
        else:
            self._spawn(line.close(f"a {peer.role} may not connect here"))

    def _note_gone(self, line: Line, error: Exception) -> None:
        _LOG.info("%s has gone: %s", line.peer, error)
        self._note(line.peer, "left", line, why=visible(str(error), 1000))

    def _second(self, peer: Peer, first: str, other: str, refused: bool) -> None:
        """Record that a second process uses a kit."""
        details = {"first": first, "second": other, "refused": refused}
        self._record_event(AuditEvent(when=time.time(), who=str(peer), what="second process", details=details))

    def _record_refusals(self, origin: str, why: str, count: int) -> None:
        """Record that connections were refused."""
        details = {"address": origin, "why": visible(why, 1000), "count": count}
        self._record_event(AuditEvent(when=time.time(), who="somebody", what="refused", details=details))

    def _note(self, peer: Peer, what: str, line: Line, **more: Any) -> None:
        """Record that a party came or went, and from where."""
        details = {"address": line.address, **more}
        self._record_event(AuditEvent(when=time.time(), who=str(peer), what=what, details=details))

    def _record_event(self, event: AuditEvent) -> None:
        """Record an event that nobody asked for; a full disk must not keep anybody out."""
        try:
            self._store.record(event, durable=False)
        except AtollError as error:
            _LOG.warning("%s, %s: it cannot be recorded: %s", event.who, event.what, error)

    def _cut(self, peer: Peer) -> None:
        why = {"why": "its certificate was revoked", "serial": f"{peer.serial:x}"}
        self._store.record(AuditEvent(when=time.time(), who=str(peer), what="cut", details=why))

    async def _site(self, line: Line, channel: Channel) -> None:
        """Serve a site: its first channel is about jobs, and lasts as long as its line."""
        if channel.name != CONTROL or channel.number != 1:
            channel.close("a site opens one channel, named control")
            return
        channel.narrow(FROM_SITE)
        try:
            holding, kept, direct, tokens = _greeting(await channel.recv(), str(line.peer))
        except (LinkClosed, AtollError) as error:
            _LOG.warning("%s is refused: %s", line.peer, error)
            await line.close(f"refused: {error}")
            return
        session = SiteSession(line, channel, holding, self._dispatcher.take_answer, self._log, kept, direct)
        try:
            self._members.meet(session.name, session.plays)
        except AtollError as error:  # it is needed only while the site is away
            _LOG.warning("the visit of %s cannot be recorded: %s", line.peer, error)
        session.on_token = lambda token: self._spawn(self._confirm(session.name, token))
        if tokens:
            session.on_deploy = lambda: self._spawn(self._show(session))
            await self._show(session)  # before any order: a copy of this folder must give none
        await remind(session, self._store, time.time())
        if line.lost.is_set():
            return
        self._dispatcher.add_site(session)
        self._seen.note(session, time.time())
        try:
            await session.run()
        finally:
            self._dispatcher.left(session)

    async def _show(self, session: SiteSession) -> None:
        """Show a site that this server is the one that it knows, and give it a token for the next time."""
        session.tell("incarnation", **await asyncio.to_thread(self._tokens.offer, session.name))

    async def _confirm(self, site: str, token: str) -> None:
        with contextlib.suppress(AtollError):  # it is offered the same again
            await asyncio.to_thread(self._tokens.confirm, site, token)

    async def _person(self, line: Line, channel: Channel) -> None:
        if channel.name != REQUEST:
            channel.close("no such channel")
        elif len(line.table) > _REQUESTS:
            _LOG.warning("%s makes more than %d requests at once", line.peer, _REQUESTS)
            channel.close(f"more than {_REQUESTS} requests at once")
        else:
            await self._requests.serve(channel)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._end_task)

    def _end_task(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a defect, which ends the work of this connection only", exc_info=task.exception())

    # ------------------------------------------------------------------ jobs

    async def _begin(
        self, record: JobRecord, sessions: list[SiteSession], running: Callable[[Sequence[str]], None]
    ) -> Attempt:
        place, bundle = Place.of(self.folder, record.id), await asyncio.to_thread(self._store.bundle, record.bundle)
        terms = read_terms(record.spec)
        helpers = self._members.place(terms, (), record.sites)
        frame = {"op": "deploy", "job": record.id, "attempt": record.attempts, "bundle": bundle}
        frame["revoked"] = self._revoked.latest()  # sites verify each other's keys for letters
        if terms.direct:
            frame["direct"] = {session.name: session.direct for session in sessions}

        async def start(sites: Sequence[str]) -> JobProcess:
            # The bundle in the store was verified when it was submitted.
            code = await asyncio.to_thread(place.open, bundle, self.kit, record.attempts, known=lambda manifest: True)
            return await launch(
                place, code, role="server", name=self.kit.name, sites=sites, helpers=helpers, confinement=self._confinement,
                on_lines=lambda lines: self._log(record.id, "server", lines), ready=self._ready, kind=str(record.spec.get("job", "")),
            )  # fmt: skip

        return Attempt(
            record.id, record.attempts, terms, sessions, place.checkpoints, PackedMessage(frame), start, running,
            frozenset(helpers.values()),
        )  # fmt: skip

    def _log(self, job: str, node: str, lines: list[str]) -> None:
        with contextlib.suppress(AtollError):  # nothing is kept of a job that is not here
            if node == "server" or node in self._store.get(job).sites:
                self._store.log(job, node, lines, now=time.time())
                self._news.tell_log(job)


def _greeting(frame: object, where: str) -> tuple[list[str], list[str], str, bool]:
    """Return what a site says first: the jobs that run there, those whose files it keeps, where it listens for other sites, and whether it keeps tokens.

    Raises:
        MessageError: it is not a greeting.
    """
    said = frame if isinstance(frame, dict) and frame.get("op") == "hello" else {}
    lists, direct = (said.get("holding"), said.get("kept", [])), said.get("direct", "")
    if not all(isinstance(one, list) and all(isinstance(job, str) for job in one) for one in lists):
        raise MessageError("no hello", where=where, remedy="use the same version of Atoll at both ends")
    if not isinstance(direct, str) or len(direct) > 300:
        raise MessageError("no address for other sites", where=where, remedy="check its --direct")
    return list(said["holding"]), list(said.get("kept", [])), direct, said.get("tokens") is True
