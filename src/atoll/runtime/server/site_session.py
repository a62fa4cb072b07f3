"""The sites of a project as its server knows them: members, connections, and the lists that an operator may replace at any moment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from atoll.core.errors import AtollError, ConfigError, MessageError
from atoll.core.persistence.files import write_bytes
from atoll.engines.link import LinkClosed

from ..daemon.control import Control, job_channel, text, whole
from ..identity import Peer
from ..line import Channel, Line, LineLost, PackedMessage, Switchboard
from ..provision import Revocations, SiteList
from ..provision.project import Listing
from ..scheduler import place_helpers
from ..terms import JobTerms

__all__ = ["EVERY", "Gone", "LastSeen", "Members", "Sighting", "SiteSession", "follow", "guard", "publish", "watch"]


# ------------------------------------------------------------------ the sites of a project as its server knows them
#
# The sites of a project as its server knows them: those that its operator's list names, and those that have come.


class Members:
    """Sites with clients, and helpers with what they play.

    Args:
        listed: the operator's list; it may be older than those that come, or not be there.
        path: a file of the server's own, in which it writes down who has come.
    """

    def __init__(self, listed: SiteList, path: Path) -> None:
        self._listed = listed
        self._path = path
        self._met = Listing()
        if path.exists():
            with contextlib.suppress(ValueError):  # damaged: they come again
                self._met = Listing.read(path.read_text(encoding="utf-8"))

    @property
    def clients(self) -> list[str]:
        """Sites with clients."""
        return sorted(self._listed.among(self._met.named) - self._roles.keys())

    @property
    def plays(self) -> dict[str, str]:
        """Helper -> what it plays."""
        there = self._listed.among(self._met.named)
        return {name: role for name, role in self._roles.items() if name in there}

    @property
    def _roles(self) -> Mapping[str, str]:
        """The same, of those that are gone, too: they may have been part of an attempt."""
        return {**self._listed.plays, **self._met.plays}

    def meet(self, name: str, plays: str) -> None:
        """A site has come; ``plays`` as its certificate says.

        Raises:
            CheckpointError: it cannot be written down, which matters only while the site is away.
        """
        if name in self._met.named or (name in self.clients and not plays):
            return
        named = dict.fromkeys(sorted({*self._met.named, name}), True)
        self._met = Listing(named, {**self._met.plays, **({name: plays} if plays else {})})
        write_bytes(self._path, self._met.text().encode())

    def place(self, terms: JobTerms, there: Collection[str], before: Collection[str] = ()) -> dict[str, str]:
        """Which helper plays which part of a job: party -> helper.

        Args:
            terms: the job's.
            there: sites that are connected.
            before: the sites of its earlier attempts.

        Raises:
            ConfigError: nobody plays a role that it needs, or a helper stands among its sites.
        """
        helpers = self._roles
        wrong = [site for site in ([] if terms.sites == "all" else terms.sites) if site in helpers]
        if wrong:
            raise ConfigError(
                f"sites names {wrong[0]!r}, a helper ({helpers[wrong[0]]}), which has no clients",
                where=f"job {terms.name!r}",
                remedy="leave it out: what the job needs beside its clients is found by role",
            )
        try:
            return place_helpers(terms.helpers or {}, helpers if before else self.plays, there=there, before=before)
        except ConfigError as error:
            raise ConfigError(error.what, where=f"job {terms.name!r}, helpers", remedy=error.remedy) from error


# ------------------------------------------------------------------ a site as the server's daemon sees it: one line, one channel about jobs, one name


Frame = Mapping[str, Any]
_BURST = 10_000
"""Log lines that a site may send in a second, and in one go."""


class Gone(Exception):  # noqa: N818 - an event, not a fault
    """A site's daemon restarted, closed its line, or was away for too long."""


class SiteSession:
    """One connected site.

    Args:
        line: its line.
        control: its channel about jobs.
        holding: the jobs for which it says that it holds resources.
        on_offered: called with each answer to an offer.
        on_log: called with a job and its log lines.
        kept: the jobs whose files it says that it keeps.
        direct: where it listens for other sites, or nothing.

    Attributes:
        name: the site's, from its certificate.
        plays: what it plays in jobs, from its certificate, if it is a helper.
        holding: see above.
        kept: the jobs whose files it keeps now.
        direct: see above.
        on_token: called with each token that the site says it has kept, see `atoll.runtime.daemon.monitor`.
        on_deploy: called when an attempt is deployed there.
    """

    def __init__(
        self,
        line: Line,
        control: Channel,
        holding: list[str],
        on_offered: Callable[[SiteSession, Frame], None],
        on_log: Callable[[str, str, list[str]], None],
        kept: Iterable[str] = (),
        direct: str = "",
    ) -> None:
        self.name = line.peer.name
        self.plays = line.peer.plays
        self.line = line
        self.holding = holding
        self.kept = set(kept)
        self.direct = direct
        self._on_offered = on_offered
        self._on_log = on_log
        self._control = Control(control, self._frame)
        self._allowed, self._since, self._left_out = float(_BURST), time.monotonic(), 0
        self._waiting: dict[tuple[str, int], asyncio.Queue[Frame]] = {}
        self.tell = self._control.tell
        self.on_token: Callable[[str], None] = lambda token: None
        self.on_deploy: Callable[[], None] = lambda: None

    async def run(self) -> str:
        """Carry frames until the site has gone; return why it went."""
        why = await self._control.run()
        # A daemon without its control channel can neither be asked nor stopped, so its line ends too.
        await self.line.close(why or "the channel about jobs was closed", within=2.0)
        return why

    @property
    def connected(self) -> bool:
        """Tell whether it can be reached now."""
        return self.line.connected and not self.line.lost.is_set()

    def deploy(self, job: str, frame: PackedMessage) -> None:
        """Start an attempt of a job there.

        Args:
            job: its id.
            frame: the order, serialised once for all sites.
        """
        self.kept.add(job)
        self._control.send(frame)
        self.on_deploy()

    def stop(self, job: str, attempt: int, *, end: bool) -> None:
        """Stop an attempt; with ``end``, make the site forget everything of the job except its privacy ledger."""
        if end:
            self.kept.discard(job)
        self.tell("stop", job=job, attempt=attempt, end=end)

    def listen(self, job: str, attempt: int) -> asyncio.Queue[Frame]:
        """Return a queue of what the site says about an attempt from now on."""
        return self._waiting.setdefault((job, attempt), asyncio.Queue())

    def forget(self, job: str, attempt: int) -> None:
        """Stop listening."""
        self._waiting.pop((job, attempt), None)

    def open(self, job: str, attempt: int) -> Channel:
        """Open the channel of an attempt.

        Raises:
            Gone: the line is lost.
        """
        try:
            return self.line.open(job_channel(job, attempt))
        except LinkClosed as error:
            raise Gone(str(error)) from error

    def _frame(self, frame: Frame) -> None:
        op = frame["op"]
        if op == "offered":
            self._on_offered(self, frame)
        elif op == "incarnation":
            self.on_token(text(frame, "now", 100))
        elif op == "log":
            self._on_log(text(frame, "job"), self.name, self._readable(frame.get("lines")))
        elif op in ("starting", "deployed", "exited"):
            # Reports about an attempt that is no longer awaited are dropped.
            waiting = self._waiting.get((text(frame, "job"), whole(frame, "attempt")))
            if waiting is not None:
                waiting.put_nowait(frame)

    def _readable(self, lines: Any) -> list[str]:
        """Return log lines, no more than a site of ours would send; a site drops lines beyond that."""
        if not isinstance(lines, list) or not all(isinstance(line, str) for line in lines):
            raise MessageError("malformed log lines", where="control", remedy="check what runs at that site")
        now = time.monotonic()
        self._allowed = min(_BURST, self._allowed + _BURST * (now - self._since))
        self._since = now
        kept = lines[: int(self._allowed)]
        self._allowed -= len(kept)
        self._left_out += len(lines) - len(kept)
        if kept and self._left_out:
            kept, self._left_out = [*kept, f"[{self._left_out} more lines, left out]"], 0
        return kept


# ------------------------------------------------------------------ what the server checks regularly: lists that its operator may replace at any moment


EVERY = 2.0
"""Seconds between two looks."""
_LOG = logging.getLogger("atoll.runtime")


async def guard(board: Switchboard, revoked: Callable[[int], bool], on_cut: Callable[[Peer], None]) -> None:
    """Cut off parties whose certificate was revoked since they connected; when they dial again, they learn why.

    Args:
        board: the lines of all connected parties.
        revoked: tells whether a serial number is revoked; follows the list by itself.
        on_cut: called with each party that is cut off.
    """
    unsaid: list[Peer] = []
    while True:
        await asyncio.sleep(EVERY)
        for line in board.lines:
            if revoked(line.peer.serial):
                _LOG.warning("%s is cut off: its certificate (serial %x) was revoked", line.peer, line.peer.serial)
                line.lose(LineLost(f"the certificate of {line.peer} was revoked"))
                unsaid.append(line.peer)
        try:  # even if the disk is full, revoked parties are cut off; it is recorded when there is room
            while unsaid:
                on_cut(unsaid[0])
                del unsaid[0]
        except AtollError as error:
            _LOG.error("the cut of %s cannot be recorded yet: %s", unsaid[0], error)


async def follow(sites: SiteList, on_change: Callable[[], None]) -> None:
    """Follow the list of the project's sites.

    Args:
        sites: the list.
        on_change: called when its names have changed.
    """
    while True:
        await asyncio.sleep(EVERY)
        if sites.changed():
            on_change()


async def publish(revoked: Revocations, sessions: Mapping[str, SiteSession]) -> None:
    """Send the revocation list to the sites whenever it changes: they are connected to each other too.

    Args:
        revoked: the list.
        sessions: connected sites by name.
    """
    known = revoked.signed
    while True:
        await asyncio.sleep(EVERY)
        if (found := revoked.latest()) != known:
            known = found
            for session in sessions.values():
                session.tell("revoked", revoked=known)


# ------------------------------------------------------------------ when each site was last connected: kept in a file, so that it is known after a restart too


_EVERY = 30.0
"""Seconds between two times that are written down."""


@dataclass(frozen=True)
class Sighting:
    """When a site was last connected.

    Attributes:
        when: in seconds since 1970.
        org: its organisation.
        serial: of its certificate, in hex.
    """

    when: float
    org: str
    serial: str


class LastSeen:
    """Site -> when it was last connected.

    Args:
        path: the file.
        revoked: tells whether a serial number is revoked.
    """

    def __init__(self, path: Path, revoked: Callable[[int], bool]) -> None:
        self._path = path
        self._revoked = revoked
        self._rows: dict[str, Sighting] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # damaged: they come again
            tree = json.loads(path.read_text(encoding="utf-8"))
            self._rows = {
                str(site): Sighting(float(when), str(org), str(serial)) for site, (when, org, serial) in tree.items()
            }

    def note(self, session: SiteSession, now: float) -> None:
        """A site is connected; this is written down with the next ``keep``."""
        peer = session.line.peer
        self._rows[session.name] = Sighting(now, peer.org, f"{peer.serial:x}")

    def keep(self) -> None:
        """Write everything down.

        Raises:
            CheckpointError: it cannot be written.
        """
        write_bytes(
            self._path, json.dumps({site: list(asdict(row).values()) for site, row in self._rows.items()}).encode()
        )

    def of(self, site: str) -> Sighting | None:
        """Return when a site was last connected; None if it never was."""
        return self._rows.get(site)

    def list_revoked(self) -> list[str]:
        """Sites that have come with a certificate that is revoked now; the operator's list may not have them any more."""
        return [site for site in self._rows if self.revoked(site)]

    def revoked(self, site: str) -> bool:
        """Tell whether the certificate with which a site last came is revoked."""
        row = self._rows.get(site)
        return row is not None and self._revoked(int(row.serial, 16))


async def watch(seen: LastSeen, sessions: Mapping[str, SiteSession]) -> None:
    """Note and write down who is connected, for as long as the server runs."""
    while True:
        for session in sessions.values():
            if session.connected:
                seen.note(session, time.time())
        with contextlib.suppress(AtollError):  # a full disk: later
            seen.keep()
        await asyncio.sleep(_EVERY)
