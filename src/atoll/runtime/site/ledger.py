"""A site's own privacy ledger: one file of all its jobs, which only its daemon writes. A job's process has no way to the file."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import tempfile
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, BundleError, CheckpointError, MessageError, PolicyError
from atoll.core.event import Ledger, unpack_event
from atoll.core.persistence.files import write_bytes
from atoll.core.requests.wire import pack_error
from atoll.core.sealing import HASH, Record, rows_in
from atoll.engines.link import LinkClosed

from ..bundle import Manifest, Verified
from ..confinement.folders import HeldFolder
from ..daemon.place import LEDGER, Place

if TYPE_CHECKING:
    from atoll.privacy import Demand, LedgerGuard

__all__ = ["MOST", "Register", "SiteLedger"]


# ------------------------------------------------------------------ what a site remembers of the bundles that it has run
#
# What a site remembers of the bundles that it has run: one signature is for one job, and a job that has ended never runs again.
# A signature says that an admin wanted a job, not how often. So each signature carries a nonce and the signer's time, and
# a site runs it as one job
# only: the job as which it first came, in any number of attempts, until that job has ended for good. The memory is
# bounded. When it drops an entry, the site no longer accepts anything of that admin signed before that entry as new. So
# the only clock used is the signer's own, and only for the order of what it has signed.


MOST = 4096
"""Bundles that a site remembers."""
_FORMAT = 1


@dataclass(frozen=True)
class _Entry:
    nonce: str
    signer: str
    signed: int
    job: str
    ended: bool = False
    digest: str = ""  # of the manifest; earlier registers have none


class Register:
    """Which bundles ran, as which job. Threads may share it.

    Args:
        path: its file, created when there is something to record.
        most: bundles to remember.

    Raises:
        CheckpointError: the file cannot be read.
    """

    def __init__(self, path: Path, most: int = MOST) -> None:
        self._path = path
        self._most = most
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._before: dict[str, int] = {}
        if path.exists():
            self._read()

    def admit(self, job: str, bundle: Verified) -> None:
        """Record a bundle as that of a job, durably, before any of it runs.

        Raises:
            BundleError: it ran as another job, the job has ended or has run another bundle, or it is too old to
                tell.
            CheckpointError: it cannot be recorded.
        """
        manifest = bundle.manifest
        new = _Entry(manifest.nonce, bundle.signer.name, manifest.signed, job, digest=manifest.digest)
        with self._lock:
            known = self._entries.get(new.nonce)
            if known is not None:
                _require_same(known, new)
                return
            if any(entry.job == job for entry in self._entries.values()):
                raise _make_refusal(job, "the job has run another bundle here")
            if new.signed <= self._before.get(new.signer, -1):
                when = datetime.fromtimestamp(new.signed / 1e6, UTC)
                raise _make_refusal(
                    job, f"the bundle was signed on {when:%F %T} UTC, longer ago than this site remembers"
                )
            self._keep({**self._entries, new.nonce: new})

    def knows(self, job: str, manifest: Manifest) -> bool:
        """Tell whether this very manifest was admitted as that of a job that has not ended."""
        with self._lock:
            found = self._entries.get(manifest.nonce)
        return found is not None and (found.job, found.digest, found.ended) == (job, manifest.digest, False)

    def end(self, job: str) -> None:
        """End a job for good: its bundle never runs again.

        Raises:
            CheckpointError: it cannot be recorded.
        """
        with self._lock:
            found = {n: replace(entry, ended=True) for n, entry in self._entries.items() if entry.job == job}
            if any(self._entries[nonce] != entry for nonce, entry in found.items()):
                self._keep({**self._entries, **found})

    @property
    def ran(self) -> bool:
        """Tell whether any bundle has run here."""
        with self._lock:
            return bool(self._entries or self._before)

    @property
    def over(self) -> frozenset[str]:
        """Return the jobs known to have ended for good."""
        with self._lock:
            return frozenset(entry.job for entry in self._entries.values() if entry.ended)

    def _keep(self, entries: dict[str, _Entry]) -> None:
        """Write entries to disk, then use them; drop the oldest, ended jobs first."""
        before = dict(self._before)
        while len(entries) > self._most:
            old = min(entries.values(), key=lambda entry: (not entry.ended, entry.signed))
            del entries[old.nonce]
            before[old.signer] = max(before.get(old.signer, -1), old.signed)
        rows = [list(astuple(entry)) for entry in entries.values()]
        write_bytes(self._path, json.dumps({"atoll": _FORMAT, "bundles": rows, "before": before}).encode())
        self._entries, self._before = entries, before

    def _read(self) -> None:
        try:
            tree = json.loads(self._path.read_bytes())
            if tree["atoll"] != _FORMAT:
                raise ValueError(f"format {tree['atoll']}")
            self._entries = {row[0]: _Entry(*row) for row in tree["bundles"]}
            self._before = {str(signer): int(signed) for signer, signed in tree["before"].items()}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
            raise CheckpointError(
                f"the register of bundles cannot be read: {error}",
                where=str(self._path),
                remedy="restore the file; without it this site would run again what it has run before",
            ) from error


def _require_same(known: _Entry, new: _Entry) -> None:
    if known.job != new.job:
        raise _make_refusal(new.job, f"its bundle ran here as job {known.job} already")
    if known.ended:
        raise _make_refusal(new.job, "the job has ended here for good")
    if known.digest not in ("", new.digest):
        raise _make_refusal(new.job, "the job has run another bundle here")


def _make_refusal(job: str, why: str) -> BundleError:
    return BundleError(
        f"the bundle is not run: {why}",
        where=f"job {job}, deployment",
        remedy="if this job is wanted, have an admin sign it again: atoll clone; if nobody wanted it, check that server",
    )


# ------------------------------------------------------------------ a site's own privacy ledger
#
# A site's own privacy ledger: one file of all its jobs, which only its daemon writes. A job's process has no way to the file.


_LOG = logging.getLogger("atoll.runtime")
_FIELDS = ("party", "request", "job")
_NOTED = "ledger.noted"
"""The file with the number of lines of the ledger and the hash of the last, as it was last written."""
_PROMISES = "promises"
"""The file of what the parties have promised in a job; see `atoll.core.sealing.Record`."""
_MOST_PROMISES = 256 << 20
"""Bytes of it, so that no job fills the disk of a daemon."""
_OLDEST = 64 << 20
"""Bytes that the ledger of a job of an older version may have."""
Answer = Callable[[str, Any], Awaitable[dict[str, Any]]]


class SiteLedger:
    """The ledger of a site, and the guard of what the site demands. What the server says of spending changes nothing here.

    Args:
        folder: the site's own.
        site: the site's name: its clients are called so, or ``site/client``.
        helper: whether it has no clients; what it plays has names of its own.
        demand: reads what the site demands now.
        ran: whether the site has run jobs.
        accept_lost: start without the lines that the ledger once had and has no more.

    Raises:
        CheckpointError: the ledger is damaged, was changed, or is missing or shorter than it was.
    """

    def __init__(
        self,
        folder: Path,
        site: str,
        helper: bool,
        demand: Callable[[], Demand | None],
        *,
        ran: bool = False,
        accept_lost: bool = False,
    ) -> None:
        self._ledger = Ledger(folder / LEDGER)
        self._site, self._helper, self._read = site, helper, demand
        self._demand: Demand | None = None
        self._guarding: LedgerGuard | None = None
        self._one = threading.Lock()
        self._folder = folder
        self._records: dict[str, Record] = {}
        self._noted_file = folder / _NOTED
        noted = self._read_noted()
        if not noted and not self._lines:
            self._take_over(folder)
        self._require_whole(noted, ran, accept_lost)
        self._note()

    @property
    def _lines(self) -> int:
        return int(self._ledger.head.partition(":")[0])

    def _read_noted(self) -> str:
        """The end of the ledger as it was noted down last; empty if it was never."""
        try:
            found = self._noted_file.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError):
            return ""
        return found if found.partition(":")[0].isdecimal() else ""

    def _note(self) -> None:
        """Note down the end of the ledger, after its lines are durable: so a note never has more than the ledger had."""
        aside = self._noted_file.with_name(f".{_NOTED}.tmp")
        with contextlib.suppress(OSError):  # on a full disk the note is older, and finds less
            aside.write_text(f"{self._ledger.head}\n", encoding="ascii")
            aside.replace(self._noted_file)

    def _require_whole(self, noted: str, ran: bool, accept_lost: bool) -> None:
        """Refuse a ledger that has lost lines."""
        try:
            if noted:
                self._ledger.require_head(noted)
            elif ran and not self._lines:
                raise CheckpointError("the privacy ledger is missing, and the site has run jobs")
        except CheckpointError as error:
            if not accept_lost:
                raise CheckpointError(
                    error.what,
                    where=str(self._ledger.path),
                    remedy=f"restore {LEDGER} from a backup; if it is lost for good, start once with --accept-lost-ledger: what was spent before counts no more",
                ) from error
            _LOG.error("%s; it is accepted, and what was spent before counts no more", error.what)

    async def serve(self, channel: Any, job: str, others: Mapping[str, Answer] | None = None) -> None:
        """Write what a job's process is about to release, one event after another, until it is gone.

        Args:
            channel: to the process.
            job: the job.
            others: operation -> who else of the daemon answers it, given the job and the frame.
        """
        with contextlib.suppress(LinkClosed):
            while True:
                frame = await channel.recv()
                op = frame.get("op") if isinstance(frame, dict) else None
                answer = (others or {}).get(op, self.answer) if isinstance(op, str) else self.answer
                await channel.send(await answer(job, frame))

    async def answer(self, job: str, frame: Any) -> dict[str, Any]:
        """Answer a job's process; an event is durable when this returns."""
        return await asyncio.to_thread(self._answer, job, frame)

    def _answer(self, job: str, frame: Any) -> dict[str, Any]:
        try:
            with self._one:
                return self._obey(job, frame)
        except AtollError as error:
            return {"error": pack_error(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"a job's process sent no event: {type(error).__name__}"
            return {"error": pack_error(MessageError(what, where="ledger", remedy="look at the job's own code"))}

    def _obey(self, job: str, frame: Any) -> dict[str, Any]:
        op = frame["op"]
        if op == "open":
            self._demand = self._read()
            self._ledger.update()
            return {"lines": [line for line in self._ledger.lines() if line.get("job") == job]}
        if op == "admit":
            most = {
                party: None if row["events"] is None else [unpack_event(dict(event)) for event in row["events"]]
                for row in frame["most"] for party in self._own(row["parties"])
            }  # fmt: skip
            self._guard.admit(job, str(frame["title"])[:200], most)
            self._note()
            return {"ok": True}
        if op == "spend":
            parties = self._own(frame["parties"])
            _ = self._guard  # in place before anything is spent
            event = unpack_event(dict(frame["event"]))
            self._ledger.append(event, parties[0] if len(parties) == 1 else parties, str(frame["request"]), job=job)
            self._note()
            return {"ok": True}
        if op == "promises":
            record = self._record_of(job)
            return {"incarnation": record.incarnation, "key": record.key, "rows": record.rows()}
        if op == "promise":
            record, rows = self._record_of(job), bytes(frame["rows"])
            if len(record) * 2 * HASH + len(rows) > _MOST_PROMISES:
                raise PolicyError(
                    f"the job has promised {len(record):,} things, and may promise {_MOST_PROMISES // (2 * HASH):,}",
                    where="record",
                    remedy="submit the job again; a job of Atoll's own promises a few in each round",
                )
            record.note(rows_in(rows))
            return {"ok": True}
        raise ValueError(op)

    def _record_of(self, job: str) -> Record:
        """What the site's parties have promised in a job. It stays as long as the ledger does.

        Raises:
            CheckpointError: the folder was copied or restored since the job began, so that it may lack promises.
        """
        if job not in self._records:
            place = Place.of(self._folder, job)
            with place.hold_record():
                self._records[job] = Record(place.record / _PROMISES, renew=False)
        return self._records[job]

    def _own(self, parties: Any) -> list[str]:
        """The parties, if they are this site's."""
        for party in parties:
            if not isinstance(party, str) or not (self._helper or party.partition("/")[0] == self._site):
                raise MessageError(
                    f"{party!r:.100} is no party of site {self._site!r}",
                    where="ledger",
                    remedy="look at the job's own code",
                )
        return list(parties)

    @property
    def _guard(self) -> LedgerGuard:
        from atoll.privacy import LedgerGuard  # a daemon without jobs needs no accountants

        if self._guarding is None:
            self._guarding = LedgerGuard(self._ledger, lambda party: self._demand)
        return self._guarding

    def close(self, job: str) -> None:
        """Note that a job has ended for good.

        Raises:
            CheckpointError: the ledger cannot be written.
        """
        with self._one:
            self._guard.close(job)
            self._note()

    def _take_over(self, folder: Path) -> None:
        """Take over what jobs of older versions have spent: each had a file of its own, where jobs write.

        So this is done once, before the first job of this version: later, such a file says what some job wants it to say.
        """
        for job in _jobs_in(folder):
            try:
                old = _read_old_lines(folder, job)
            except (CheckpointError, OSError) as error:
                _LOG.error("what job %s has spent is not in the site's ledger: %s", job, error)
                continue
            for number, line in enumerate(old):
                event = unpack_event({name: value for name, value in line.items() if name not in _FIELDS})
                self._ledger.append(event, line["party"], line["request"] or f"older/{number}", job=job)


def _jobs_in(folder: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError), HeldFolder.open(folder, "jobs") as held:
        return held.names()
    return []


def _read_old_lines(folder: Path, job: str) -> list[dict[str, Any]]:
    """Return the lines of the ledger that a job of an older version has, which is read from a copy."""
    try:
        with HeldFolder.open(folder, "jobs", job, "state") as held:
            content = held.read(LEDGER, _OLDEST)
    except FileNotFoundError:
        return []
    with tempfile.TemporaryDirectory(dir=folder) as place:
        copy = Path(place) / LEDGER
        copy.write_bytes(content)
        return list(Ledger(copy, readable=True).lines())
