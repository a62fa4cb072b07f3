"""What people ask the server: who may ask for what, and what changes then."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, JobError, PolicyError, nearest
from atoll.core.message import Limits
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed
from atoll.runs import yaml
from atoll.runtime.bundles.bundle import Verified, verify
from atoll.runtime.bundles.names import LIMITS
from atoll.runtime.identity import Peer
from atoll.runtime.jobs.terms import read_terms
from atoll.runtime.line import Channel
from atoll.runtime.provision import Kit
from atoll.runtime.store.records import AuditEvent, Submission
from atoll.runtime.store.store import JobStore

from ..daemon.control import content, text
from .dispatch import Dispatcher
from .looking import Looking, summary_of
from .news import JobNews
from .resuming import require_kept

__all__ = ["MAY", "REQUEST", "RequestHandler"]

REQUEST = "request"
"""Name of the channel of one request."""

_LOOK = frozenset({"about", "jobs", "sites", "events", "logs", "result"})
MAY = {"admin": _LOOK | {"submit", "abort", "resume", "bundle"}, "auditor": _LOOK}
"""Role -> what it may ask for."""

_SHORT = Limits(max_bytes=1 << 16, max_header_bytes=1 << 16, max_depth=8, max_leaves=1000)
_LONGEST = {
    "admin": Limits(max_bytes=LIMITS.bundle + (1 << 20), max_header_bytes=1 << 16, max_depth=8, max_leaves=1000)
}
"""Limits of a request, by role: only admins submit bundles."""

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
        result: the folder of a job's results.
        revoked: tells whether a serial number is revoked.
    """

    def __init__(
        self,
        kit: Kit,
        store: JobStore,
        dispatcher: Dispatcher,
        news: JobNews,
        result: Callable[[str], Path],
        revoked: Callable[[int], bool],
    ) -> None:
        super().__init__(store, dispatcher, news, result)
        self._kit = kit
        self._revoked = revoked

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
        if op not in _QUIET:
            self._note(peer, "asked", job, op)
        return op

    def _note(self, peer: Peer, what: str, job: str, op: str) -> None:
        self._store.record(AuditEvent(when=time.time(), who=str(peer), what=what, job=job, details={"request": op}))

    async def _submit(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Take a job, if this administrator has signed it."""
        bundle, token = content(frame, "bundle"), text(frame, "token", 100)
        verified = await self._verified(bundle)
        if verified.signer.name != peer.name:
            self._note(peer, "refused", "", "submit")
            raise PolicyError(
                f"{peer} submits a job signed by {verified.signer}",
                where=f"server {self._kit.name!r}",
                remedy="submit it from its folder, or clone it, which signs it again",
            )
        terms, spec = read_terms(verified.job), yaml.parse(verified.job.decode(), "job.yaml")
        made = Submission(
            name=terms.name, submitter=peer.name, org=peer.org, spec=spec, token=token,
            bundle=self._store.put_bundle(bundle),
        )  # fmt: skip
        known = {record.token: record.id for record in self._store.jobs(submitter=peer.name)}
        if token not in known:
            self._dispatcher.placed(terms)  # before anything is kept of it
        record = self._store.submit(made, now=time.time(), who=str(peer))
        if record.id not in known.values():  # else it is the answer that was lost
            self._dispatcher.submit(record)
        yield {"job": summary_of(self._store.get(record.id))}

    async def _abort(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """End a job; answer when it has ended."""
        job = str(frame["job"])
        self._dispatcher.abort(job, str(peer))
        while True:
            news = self._news.of(job)
            record = self._store.get(job)
            if record.state.terminal:
                break
            await news.wait()
        yield {"job": summary_of(record)}

    async def _resume(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Resume a job that failed or was aborted: the signed job itself, not another one."""
        job, token = str(frame["job"]), text(frame, "token", 100)
        if not any(e.what == "resumed" and e.details["token"] == token for e in self._store.events(job=job)):
            record = self._store.get(job)  # else it is the answer that was lost
            require_kept(record, self._result_folder(job), self._dispatcher.sessions, time.time())
            await self._verified(self._store.bundle(record.bundle), known=True)
            self._dispatcher.resume(job, str(peer), token)
        yield {"job": summary_of(self._store.get(job))}

    async def _verified(self, bundle: bytes, known: bool = False) -> Verified:
        authorities = self._kit.bytes_of("ca.pem")
        return await asyncio.to_thread(
            verify, bundle, ca=authorities, project=self._kit.project, revoked=self._revoked,
            known=lambda manifest: known,
        )  # fmt: skip

    async def _bundle(self, peer: Peer, frame: Any) -> AsyncIterator[Any]:
        """Return a job's bundle, to clone it."""
        del peer
        record = self._store.get(str(frame["job"]))
        yield {"job": summary_of(record), "bundle": self._store.bundle(record.bundle)}
