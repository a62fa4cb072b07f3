"""Receives files from a server, in pieces."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from atoll.core.errors import JobError, MessageError

from ..daemon.control import RESULT_NAME

__all__ = ["claim", "receive_file", "require_free"]

_MARK = ".job"
"""The file that says which job a folder is for, so that fetching again may replace its files."""


async def receive_file(answers: AsyncIterator[Any], name: str, out: Path) -> Path:
    """Receive one file; it appears in its place only when complete.

    Args:
        answers: its pieces, and then its SHA-256.
        name: its name at the server.
        out: the folder.

    Raises:
        MessageError: the name leads elsewhere, or what arrived is not what was sent.
    """
    if not RESULT_NAME.fullmatch(name):
        raise MessageError(f"{name[:100]!r} is not a file name", where="server", remedy="check that server")
    answer: Any = {}
    seen, part = hashlib.sha256(), out / f".{name}.part"
    with part.open("wb") as file:
        async for answer in answers:
            if "piece" not in answer:
                break
            seen.update(answer["piece"])
            file.write(answer["piece"])
    if answer.get("sha256") != seen.hexdigest():
        raise MessageError(f"{name} did not arrive whole", where=str(out), remedy="fetch it again")
    return part.replace(out / name)


def require_free(out: Path, job: str) -> None:
    """Refuse a folder with files that did not come from this job: they would be overwritten.

    Raises:
        JobError: it holds other files, or is not a folder.
    """
    try:
        free = not out.exists() or not any(out.iterdir()) or (out / _MARK).read_text(encoding="utf-8").strip() == job
    except (OSError, ValueError):  # a file, or an unreadable mark
        free = False
    if not free:
        raise JobError(
            "the folder holds something else, which would be overwritten",
            where=str(out),
            remedy="choose a new or an empty folder: --out FOLDER",
        )


def claim(out: Path, job: str) -> None:
    """Make the folder of a job's files, which `require_free` has checked.

    Raises:
        JobError: it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / _MARK).write_text(f"{job}\n", encoding="utf-8")
    except OSError as error:
        raise JobError(
            f"the folder cannot be made: {error.strerror or error}",
            where=str(out),
            remedy="choose another: --out FOLDER",
        ) from error
