"""What people ask the server: who may ask for what, and what changes then."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, JobError, PolicyError, nearest
from atoll.core.message import Limits
from atoll.core.persistence.trail import AuditEvent
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed

from ..bundle import LIMITS, Verified, verify
from ..confinement.folders import remove_tree
from ..daemon.control import content, text
from ..daemon.place import Place, clear_places
from ..identity import Peer
from ..line import Channel
from ..provision import Kit
from ..store.records import JobRecord, JobState, JobStore, Submission, require_ended, require_resumable
from ..terms import job_tree, read_terms
from .dispatch import Dispatcher, JobNews
from .looking import Looking, Quotas
from .site_session import LastSeen, Members, SiteSession

__all__ = ["KEPT", "MAY", "REQUEST", "RequestHandler", "clear", "forgotten", "remind", "require_kept", "tidy"]


# ------------------------------------------------------------------ whether a job that failed or was aborted can be resumed: what is kept of it, where, and for how long


KEPT = 30 * 86400.0
"""Seconds for which sites keep the private state of a job after a failure or an abort."""
_EVERY = 3600.0
"""Seconds between two checks of what sites keep."""


def forgotten(record: JobRecord, now: float) -> bool:
    """Tell whether sites need to keep only the privacy ledger of a job: it has its result, or ended too long ago.

    Args:
        record: the job.
        now: seconds since 1970.
    """
    if record.state is JobState.FINISHED:
        return True
    return record.state.terminal and now - record.times[-1][1] > KEPT


def require_kept(record: JobRecord, state: Path, sessions: Mapping[str, SiteSession], now: float) -> None:
    """Refuse to resume a job without a state to resume from. Sites that are away are assumed to keep what they had.

    Args:
        record: the job.
        state: the folder of its results and checkpoints at the server.
        sessions: the connected sites by name.
        now: seconds since 1970.

    Raises:
        JobError: something is missing; the message names it, and the remedy is to clone the job.
    """
    require_resumable(record.id, record.state)
    if not record.attempts:
        raise _make_gone_error(record, "it never began, so there is nothing to resume from")
    if not state.is_dir():
        raise _make_gone_error(record, f"its folder is no longer at the server: {state}")
    if forgotten(record, now):
        days = (now - record.times[-1][1]) / 86400
        raise _make_gone_error(
            record, f"it ended {days:.0f} days ago, and sites keep a job's state for {KEPT / 86400:.0f}"
        )
    for site in record.sites:
        if site in sessions and record.id not in sessions[site].kept:
            raise _make_gone_error(record, f"site {site!r} no longer keeps anything of it")


def _make_gone_error(record: JobRecord, what: str) -> JobError:
    return JobError(
        f"the job cannot be resumed: {what}",
        where=f"job {record.id}",
        remedy=f"run it again from its beginning: atoll clone {record.id}",
    )


async def remind(session: SiteSession, store: JobStore, now: float) -> None:
    """Tell a site which jobs it need not keep; it may have been away when they ended.

    Args:
        session: the site.
        store: the jobs; the site keeps what it has of jobs that were never in the store.
        now: seconds since 1970.
    """
    for job in sorted(session.kept):
        with contextlib.suppress(AtollError):
            if store.deleted(job) or forgotten(store.get(job), now):
                session.stop(job, 0, end=True)
        await asyncio.sleep(0)  # the list may be long: give others a turn


async def clear(folder: Path, store: JobStore) -> None:
    """Remove the files of deleted jobs that are still here, because the server was killed meanwhile.

    Args:
        folder: the server's.
        store: the jobs.
    """
    with contextlib.suppress(OSError):
        await asyncio.to_thread(clear_places, folder)
    for path in (folder / "jobs").glob("[!.]*"):
        with contextlib.suppress(AtollError, OSError):
            if await asyncio.to_thread(store.deleted, path.name):
                await asyncio.to_thread(remove_tree, path)


async def tidy(sessions: Mapping[str, SiteSession], store: JobStore) -> None:
    """Remind all sites regularly, for as long as the server runs."""
    while True:
        await asyncio.sleep(_EVERY)
        for session in list(sessions.values()):
            await remind(session, store, time.time())


# ------------------------------------------------------------------ what people ask the server: who may ask for what, and what changes then


REQUEST = "request"
"""Name of the channel of one request."""

_LOOK = frozenset({"about", "jobs", "sites", "events", "logs", "result"})
MAY = {
    "admin": _LOOK | {"submit", "abort", "resume", "delete", "bundle"},
    "auditor": _LOOK,
    "site": frozenset({"about", "jobs", "submit", "abort"}),
    "analyst": frozenset({"about", "jobs", "logs", "result", "submit", "abort"}),
}
"""Role -> what it may ask for. A site sees the jobs that it takes part in, an analyst those that it has submitted. Both submit only what their own signature is enough for, and abort only that."""

_SHORT = Limits(max_bytes=1 << 16, max_header_bytes=1 << 16, max_depth=8, max_leaves=1000)
_SMALL = Limits(max_bytes=1 << 20, max_header_bytes=1 << 16, max_depth=8, max_leaves=1000)
_LONGEST = {
    "admin": Limits(max_bytes=LIMITS.bundle + (1 << 20), max_header_bytes=1 << 16, max_depth=8, max_leaves=1000),
    "site": _SMALL,
    "analyst": _SMALL,
}
"""Limits of a request, by role: admins submit bundles, sites and analysts bundles without code."""

_LOG = logging.getLogger("atoll.runtime")
_QUIET = ("about", "jobs", "sites", "events")
"""Requests that are not recorded as events: they only read, and some read repeatedly."""


class RequestHandler(Looking):
    """Answers the requests of admins and auditors.

    Args:
        kit: the server's kit.
        store: what the server remembers.
        dispatcher: runs the jobs.
        news: wakes waiting requests.
        place: where a job's files are.
        revoked: tells whether a serial number is revoked.
        quotas: what one person may have here.
        members: the sites of the project.
        seen: when they were last connected.
    """

    def __init__(
        self,
        kit: Kit,
        store: JobStore,
        dispatcher: Dispatcher,
        news: JobNews,
        place: Callable[[str], Place],
        revoked: Callable[[int], bool],
        quotas: Quotas,
        members: Members,
        seen: LastSeen,
    ) -> None:
        super().__init__(store, dispatcher, news, lambda job: place(job).state, members, seen)
        self._kit = kit
        self._place = place
        self._revoked = revoked
        self._quotas = quotas

    async def serve(self, channel: Channel) -> None:
        """Answer one request with its frames or its error, and close the channel."""
        try:
            channel.narrow(_LONGEST.get(channel.peer.role, _SHORT))
            frame = await channel.recv()
            await self._while_there(channel, self._answer(channel, frame))
        except (LinkClosed, AtollError) as error:
            _LOG.info("%s hung up: %s", channel.peer, error)
        finally:
            channel.close()

    async def _while_there(self, channel: Channel, answer: Coroutine[Any, Any, None]) -> None:
        """Answer until the caller has gone: it may wait for something that never comes. A channel carries one request only."""
        answering, gone = asyncio.create_task(answer), asyncio.create_task(channel.recv())
        try:
            await asyncio.wait({answering, gone}, return_when=asyncio.FIRST_COMPLETED)
            (answering if answering.done() else gone).result()
        finally:
            answering.cancel()
            gone.cancel()
            await asyncio.gather(answering, gone, return_exceptions=True)

    async def _answer(self, channel: Channel, frame: Any) -> None:
        peer = channel.peer
        try:
            op = self._allowed(peer, frame)
            async for answer in getattr(self, f"_{op}")(peer, frame):
                await channel.send(answer)
        except LinkClosed:
            raise
        except AtollError as error:
            _LOG.warning("%s: %s", peer, error)
            await channel.send({"error": pack_error(error)})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            _LOG.warning("%s: an unreadable request: %s: %s", peer, type(error).__name__, error)
            wrong = JobError("the request cannot be read", where="server", remedy="use the server's version of Atoll")
            await channel.send({"error": pack_error(wrong)})
        except Exception as error:  # a defect in one answer affects no other
            _LOG.exception("%s", peer)
            told = JobError(f"{type(error).__name__}: {error}", where="server", remedy="see the server's log")
            await channel.send({"error": pack_error(told)})

    def _allowed(self, peer: Peer, frame: Any) -> str:
        op, job = str(frame["op"])[:40], str(frame.get("job", ""))[:100]
        known = MAY["admin"]
        if op not in known:
            raise JobError(
                f"{op!r} is not a request.{nearest(op, known)}",
                where="server",
                remedy="use the server's version of Atoll",
            )
        if op not in MAY.get(peer.role, frozenset()):
            self._note(peer, "refused", job, op)
            allowed = ", ".join(sorted(MAY.get(peer.role, ())))
            raise PolicyError(
                f"{peer} may not ask for {op!r}",
                where=f"server {self._kit.name!r}",
                remedy=f"use the kit of an admin; the role {peer.role!r} may ask for: {allowed or 'nothing'}",
            )
        own = {"site": ("abort",), "analyst": ("abort", "logs", "result")}.get(peer.role, ())
        if job and op in own and self._store.get(job).submitter != peer.name:
            self._note(peer, "refused", job, op)
            raise PolicyError(
                f"{peer} may ask for {op!r} of what it has submitted itself alone",
                where=f"server {self._kit.name!r}",
                remedy="ask an admin of the project",
            )
        if op not in _QUIET:
            self._note(peer, "asked", job, op)
        return op

    def _note(self, peer: Peer, what: str, job: str, op: str) -> None:
        self._store.record(AuditEvent(when=time.time(), who=str(peer), what=what, job=job, details={"request": op}))

    async def _submit(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Take a job, if this administrator has signed it."""
        bundle, token = content(frame, "bundle"), text(frame, "token", 100)
        async with self._turns.submission(peer.name):
            record = await self._taken(peer, bundle, token)
        yield {"job": self._summary(record)}

    async def _taken(self, peer: Peer, bundle: bytes, token: str) -> JobRecord:
        async with self._turns.reading():
            verified, spec = await asyncio.to_thread(self._read, bundle)
        if verified.signer.name != peer.name:
            self._note(peer, "refused", "", "submit")
            raise PolicyError(
                f"{peer} submits a job signed by {verified.signer}",
                where=f"server {self._kit.name!r}",
                remedy="submit it from its folder, or clone it, which signs it again",
            )
        terms, known = read_terms(spec), self._store.submitted(peer.name, token)
        if known is None:  # else it is the answer that was lost
            self._dispatcher.placed(terms)  # before anything is kept of it
            self._quotas.require(peer, len(bundle))
        made = Submission(
            name=terms.name, submitter=peer.name, org=peer.org, spec=spec, token=token,
            bundle=await asyncio.to_thread(self._store.put_bundle, bundle),
        )  # fmt: skip
        record = self._store.submit(made, now=time.time(), who=str(peer))
        if known is None:
            self._quotas.add(peer.name, len(bundle))
            self._dispatcher.submit(record)
        return self._store.get(record.id)

    def _read(self, bundle: bytes) -> tuple[Verified, dict[str, Any]]:
        """Verify a bundle, and read its settings, once."""
        verified = self._verified(bundle)
        return verified, job_tree(verified.job)

    async def _abort(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """End a job; answer when it has ended. A job that was aborted stays so: it is the answer that was lost."""
        job = str(frame["job"])
        if self._store.get(job).state is not JobState.ABORTED:
            self._dispatcher.abort(job, str(peer))
        while True:
            news = self._news.of(job)
            record = self._store.get(job)
            if record.state.terminal:
                break
            await news.wait()
        yield {"job": self._summary(record)}

    async def _resume(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Resume a job that failed or was aborted: the signed job itself, not another one."""
        job, token = str(frame["job"]), text(frame, "token", 100)
        if not any(e.what == "resumed" and e.details["token"] == token for e in self._store.events(job=job)):
            record = self._store.get(job)  # else it is the answer that was lost
            require_kept(record, self._result_folder(job), self._dispatcher.sessions, time.time())
            await asyncio.to_thread(lambda: self._verified(self._store.bundle(record.bundle), known=True))
            self._dispatcher.resume(job, str(peer), token)
        yield {"job": self._summary(self._store.get(job))}

    async def _delete(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Delete a job that has ended, here and at its sites; those that are away learn of it when they are back."""
        job = str(frame["job"])
        if not self._store.deleted(job):  # else it is the answer that was lost
            record = self._store.get(job)
            require_ended(job, record.state)
            self._store.delete(job, now=time.time(), who=str(peer))
            self._quotas.forget(record.submitter)
            for session in self._dispatcher.sessions.values():
                if job in session.kept:
                    session.stop(job, 0, end=True)
            self._news.tell(job)
        await asyncio.to_thread(self._remove, job)
        yield {"deleted": job}

    def _remove(self, job: str) -> None:
        """Remove a job's files.

        Raises:
            JobError: something of them stays.
        """
        try:
            remove_tree(self._place(job).folder)
        except OSError as error:
            raise JobError(
                f"the job is deleted, and files of it are still there: {error.strerror or error}",
                where=f"job {job}",
                remedy="see what uses its folder at the server, and delete the job once more",
            ) from error

    def _verified(self, bundle: bytes, known: bool = False) -> Verified:
        return verify(
            bundle, ca=self._kit.bytes_of("ca.pem"), project=self._kit.project, revoked=self._revoked,
            known=lambda manifest: known,
        )  # fmt: skip

    async def _bundle(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return a job's bundle, to clone it."""
        del peer
        record = self._store.get(str(frame["job"]))
        yield {"job": self._summary(record), "bundle": await asyncio.to_thread(self._store.bundle, record.bundle)}
