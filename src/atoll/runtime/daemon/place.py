"""Where a daemon keeps the files of a job: its code while an attempt runs, and what outlives attempts."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atoll.core.errors import IdentityError
from atoll.runtime.bundles.bundle import Verified, verify
from atoll.runtime.bundles.manifest import Manifest
from atoll.runtime.bundles.unpack import unpack
from atoll.runtime.provision import Kit

__all__ = ["LEDGER", "Place", "results_of"]

LEDGER = "ledger.jsonl"
"""The file of a job's state that records what it has spent."""
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
        for old in self.folder.glob("attempt-*"):
            shutil.rmtree(old, ignore_errors=True)
        unpack(bundle, verified, code)
        return code

    def forget(self) -> None:
        """Remove a job's code and private state; the ledger of what it has spent stays."""
        for path in self.folder.rglob("*") if self.folder.is_dir() else ():
            if path.is_file() and path.name != LEDGER:
                path.unlink(missing_ok=True)
        for path in sorted((p for p in self.folder.rglob("*") if p.is_dir()), reverse=True):
            with contextlib.suppress(OSError):  # the ledger's folder is not empty
                path.rmdir()
        with contextlib.suppress(OSError):
            self.folder.rmdir()


def results_of(top: Path) -> Path:
    """Return the folder of named results in a site's folder."""
    return top / "results"
