"""Files that are whole or not there: written at once, appended to, and lines of JSON."""

from __future__ import annotations

import contextlib
import json
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError, MessageError

if TYPE_CHECKING:
    from ..algebra.tree import Tree

__all__ = ["append_bytes", "as_json", "read_lines", "read_message", "sync_folder", "write_bytes", "write_message"]


def write_bytes(path: Path, content: bytes, *, private: bool = False, mode: int = 0o666) -> None:
    """Replace a file atomically and durably.

    Args:
        path: the file.
        content: the whole content.
        private: whether only the owner may read it, from its first byte on.
        mode: permissions of a file that is not private, less the umask.

    Raises:
        CheckpointError: the disk is full or the folder cannot be written; the previous file stays intact.
    """
    aside = path.with_name(f".{path.name}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if private:
            # Made anew, never opened as somebody left it: whoever holds an older handle would read what is written now.
            aside.unlink(missing_ok=True)
        how, allowed = ("xb", 0o600) if private else ("wb", mode)
        with open(aside, how, opener=lambda name, flags: os.open(name, flags, allowed)) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
        raise CheckpointError(
            f"could not write {len(content)} bytes: {error.strerror or error}",
            where=str(path),
            remedy="free space or fix the permissions, then resume; the previous checkpoint is intact",
        ) from error


def append_bytes(path: Path, content: bytes, *, at: int | None = None) -> None:
    """Append to a file durably; a failed append leaves the file as it was.

    Args:
        path: the file; created if it is missing.
        content: what to append.
        at: cut the file to this length first: what follows is the remains of a crash.

    Raises:
        CheckpointError: the disk is full or the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            end = file.truncate(at) if at is not None else file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(content)
                while len(rest):
                    rest = rest[file.write(rest) :]
                os.fsync(file.fileno())
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(end)
                raise
    except OSError as error:
        raise CheckpointError(
            f"could not append {len(content)} bytes: {error.strerror or error}",
            where=str(path),
            remedy="free space or fix the permissions, then resume; nothing was released",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make the names of new files in a folder durable."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def write_message(path: Path, tree: Tree) -> None:
    """Write a tree in the binary Message form, atomically."""
    from ..message import encode

    write_bytes(path, encode(tree))


def read_message(path: Path) -> Any:
    """Read a tree.

    Raises:
        CheckpointError: the file is missing, incomplete or not a message.
    """
    from ..message import decode

    try:
        return decode(path.read_bytes(), copy=True)  # the copy is writable, as the saved tree was
    except OSError as error:
        raise CheckpointError(
            f"could not read: {error.strerror or error}",
            where=str(path),
            remedy="start a new run, or restore the folder",
        ) from error
    except MessageError as error:
        raise CheckpointError(
            f"the file is damaged: {error.what}", where=str(path), remedy="start a new run, or restore the folder"
        ) from error


def as_json(value: Any, indent: int | None = None) -> str:
    """Standard JSON: NumPy numbers become plain numbers, and non-finite ones become null."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; an incomplete last line was cut short by a crash and is skipped.

    Raises:
        CheckpointError: the file cannot be read, or another line is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"cannot be read: {said}", where=str(path), remedy="restore the file") from error
    rows = []
    whole = text[: text.rfind("\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CheckpointError(
                f"the line is damaged: {error}",
                where=f"{path}, line {number}",
                remedy="resume the run, which writes the file again from its checkpoint",
            ) from error
        rows.append(row)
    return rows
