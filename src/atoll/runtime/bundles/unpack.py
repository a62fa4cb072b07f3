"""Unpacks a verified bundle: all of it or nothing, and only into its folder."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from atoll.core.errors import BundleError, JobError

from .bundle import Verified, contents, open_bundle
from .names import LIMITS, BundleLimits

__all__ = ["unpack"]


def unpack(bundle: bytes, verified: Verified, folder: Path, limits: BundleLimits = LIMITS) -> None:
    """Write the files of a bundle into a new folder: ``job.yaml`` and ``source/``.

    It writes them to a temporary folder and moves that into place at the end; a failure leaves nothing behind.

    Args:
        bundle: its bytes.
        verified: the result of ``verify`` for these bytes; every file is compared with its manifest again.
        folder: the folder; it must not exist yet, or be empty.
        limits: bounds of a bundle.

    Raises:
        BundleError: the bundle is not the one that was verified, or must not be opened.
        JobError: the folder is taken, or cannot be written.
    """
    text, files = open_bundle(bundle, limits)
    if text[0] != verified.manifest.text():
        raise BundleError("it is not the bundle that was verified", where="bundle", remedy="verify these very bytes")
    if folder.is_symlink() or (folder.exists() and (not folder.is_dir() or any(folder.iterdir()))):
        raise JobError("the folder is taken", where=str(folder), remedy="unpack into a new folder")
    with _aside(folder) as aside:
        for path, content in contents(verified.manifest, files, limits):
            _write(aside, path, content)
        aside.replace(folder)


@contextlib.contextmanager
def _aside(folder: Path) -> Iterator[Path]:
    """Yield a new folder next to it, removed afterwards unless it was moved."""
    made: Path | None = None
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        yield made
    except OSError as error:
        raise JobError(
            f"the job's files cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="free space, or correct the permissions of the folder",
        ) from error
    finally:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)


def _write(top: Path, path: str, content: bytes) -> None:
    target = top.joinpath(*path.split("/"))
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
    with os.fdopen(os.open(target, flags, 0o644), "wb") as file:
        file.write(content)
