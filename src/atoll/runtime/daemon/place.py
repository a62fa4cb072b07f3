"""Where a daemon keeps the files of a job: its code while an attempt runs, and what outlives attempts."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.core.errors import IdentityError
from atoll.runtime.confinement.folders import HeldFolder, clear_removed, remove_tree
from atoll.runtime.provision import Kit

from ..bundle import Manifest, Verified, unpack, verify
from ..worker.letters import KEY_FILE

__all__ = ["LEDGER", "RECORD", "Place", "clear_places", "results_of"]

LEDGER = "ledger.jsonl"
"""The file of a site that records what its jobs have spent."""
RECORD = "record"
"""The folder of what a daemon keeps of its jobs where no job writes; see `Place.record`."""
_OLDEST = 1 << 20
"""Bytes of the ledger of an older version that stay of a job."""
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}")


@dataclass(frozen=True)
class Place:
    """Where a daemon keeps the files of a job.

    Attributes:
        folder: the job's own.
    """

    folder: Path

    @classmethod
    def of(cls, top: Path, job: str) -> Place:
        """Return the place of a job in a daemon's folder; the job's id may have come over the network.

        Raises:
            IdentityError: the id is not a folder name.
        """
        if not _JOB.fullmatch(job) or ".." in job:
            raise IdentityError(
                f"{job[:100]!r} is not a job id", where="the server's order", remedy="check that server"
            )
        return cls(top / "jobs" / job)

    @property
    def state(self) -> Path:
        """Return what outlives an attempt: results and checkpoints at the server, private state at a site."""
        return self.folder / "state"

    @property
    def record(self) -> Path:
        """Return what the daemon keeps of the job where no job writes: keys, and what its parties have done.

        A sandbox does not show it. A job's process asks the daemon, over a channel of their pair of sockets. It outlives
        the job like the ledger, but for the key of its letters.
        """
        return self.folder.parent.parent / RECORD / self.folder.name

    def hold_record(self) -> HeldFolder:
        """Open the record, and make it if it is not there; use it as a context.

        Raises:
            OSError: it cannot be made.
        """
        return HeldFolder.open(self.folder.parent.parent, RECORD, self.folder.name, make=True)

    @property
    def results(self) -> Path:
        """Named results that stay at a site, of all its jobs; see `atoll.core.persistence.named_results`."""
        return results_of(self.folder.parent.parent)

    @property
    def checkpoints(self) -> Path:
        """Return the generations of the job at the server."""
        return self.state / "checkpoints"

    def code(self, attempt: int) -> Path:
        """Return the unpacked bundle of an attempt."""
        return self.folder / f"attempt-{attempt}"

    def open(
        self,
        bundle: bytes,
        kit: Kit,
        attempt: int,
        *,
        known: Callable[[Manifest], bool],
        admit: Callable[[Verified], None] = lambda verified: None,
    ) -> Path:
        """Verify a bundle with the kit's own authorities, and only then write anything; return where its files are.

        Args:
            bundle: the bundle.
            kit: the daemon's.
            attempt: the attempt's number.
            known: tells whether this very bundle was accepted before, see `verify`.
            admit: may refuse a correctly signed bundle.

        Raises:
            BundleError: it was altered, or must not be opened.
            IdentityError: no authorised party has signed it.
        """
        verified = verify(bundle, ca=kit.bytes_of("ca.pem"), project=kit.project, known=known)
        admit(verified)
        code = self.code(attempt)
        with contextlib.suppress(FileNotFoundError), HeldFolder.open(self.folder) as held:
            for old in held.names():
                if old.startswith("attempt-"):
                    held.remove(old)
        unpack(bundle, verified, code)
        return code

    def forget(self) -> None:
        """Remove a job's code, private state and the key of its letters. Its record stays, as the site's ledger does, and so does the ledger of a job of an older version.

        Raises:
            OSError: something of it cannot be removed.
        """
        with contextlib.suppress(FileNotFoundError), HeldFolder.open(self.folder, self.state.name) as state:
            kept = not state.fault_of(LEDGER) and os.stat(LEDGER, dir_fd=state.handle).st_size <= _OLDEST
            for name in os.listdir(state.handle) if kept else ():
                if name != LEDGER:
                    state.remove(name)
            for path in self.folder.iterdir() if kept else ():
                if path.name != self.state.name:
                    remove_tree(path)
            if not kept:
                remove_tree(self.folder)
        if not self.state.is_dir():
            remove_tree(self.folder)
        with contextlib.suppress(FileNotFoundError), HeldFolder.open(self.record.parent, self.folder.name) as held:
            held.remove(KEY_FILE)
            if not held.names():
                self.record.rmdir()


def clear_places(top: Path) -> None:
    """Remove what was on its way out of a daemon's folder when it was killed.

    Raises:
        OSError: this user may not.
    """
    clear_removed(top / "jobs")
    with contextlib.suppress(FileNotFoundError), HeldFolder.open(top / "jobs") as jobs:
        for name in jobs.names():
            clear_removed(top / "jobs" / name)


def results_of(top: Path) -> Path:
    """Return the folder of named results in a site's folder."""
    return top / "results"
