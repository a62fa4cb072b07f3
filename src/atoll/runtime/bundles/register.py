"""What a site remembers of the bundles that it has run: one signature is for one job, and a job that has ended never runs again.

A signature says that an admin wanted a job, not how often. So each signature carries a nonce and the signer's time, and
a site runs it as one job
only: the job as which it first came, in any number of attempts, until that job has ended for good. The memory is
bounded. When it drops an entry, the site no longer accepts anything of that admin signed before that entry as new. So
the only clock used is the signer's own, and only for the order of what it has signed.
"""

from __future__ import annotations

import json
import threading
from dataclasses import astuple, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from atoll.core.errors import BundleError, CheckpointError
from atoll.core.persistence.files import write_bytes

from .bundle import Verified
from .manifest import Manifest

__all__ = ["MOST", "Register"]

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
