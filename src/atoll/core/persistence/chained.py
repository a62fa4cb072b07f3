"""A file of JSON lines that only grows, each bound to the one before it by a hash. Several processes may append to it."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from ..errors import CheckpointError
from .files import append_bytes, sync_folder

__all__ = ["HASH", "ChainedFile", "linked"]

HASH = "hash"
"""The field of a line that binds it to everything before it."""


def linked(before: str, line: Mapping[str, Any]) -> str:
    """The hash of a line, in hex: SHA-256 over the hash before it and its own fields.

    Args:
        before: the hash of the line before it; empty for the first.
        line: its fields; its own hash does not count.
    """
    fields = {name: value for name, value in line.items() if name != HASH}
    return hashlib.sha256(json.dumps([before, fields], sort_keys=True).encode()).hexdigest()


class ChainedFile:
    """The lines of a file, read in order and checked against their hashes.

    Lines of older versions have no hash. They may come first only; the first hash binds them too.

    Args:
        path: the file; it is created by the first line.
        what: the file's name in errors, such as ``"the privacy ledger"``.
        whole: remove the remains of a line that a crash cut short. Without it the file is only read.

    Attributes:
        head: hash of the last line that was read or written; empty if there is none.
        count: number of lines.

    Raises:
        CheckpointError: a line is not JSON, or is not the one that was written.
    """

    def __init__(self, path: Path, what: str, *, whole: bool = True) -> None:
        self.path, self.what = path, what
        self.head, self.count = "", 0
        self._size, self._hashed = 0, False
        self.first: list[dict[str, Any]] = []
        if path.exists():
            with self._held() if whole else contextlib.nullcontext():
                self.first = self._news(repair=whole)

    @contextlib.contextmanager
    def growing(self) -> Iterator[list[dict[str, Any]]]:
        """Keep other processes from writing; yield the lines that they have written since the last look.

        Raises:
            CheckpointError: the file is shorter than it was, a line is damaged, or the file cannot be opened.
        """
        with self._held():
            yield self._news(repair=True)

    def add(self, line: dict[str, Any]) -> None:
        """Write a line inside ``growing``; durable when this returns, and not written at all if it raises.

        Raises:
            CheckpointError: the disk is full or the file cannot be written.
        """
        head = linked(self.head, line)
        text = json.dumps({**line, HASH: head}, sort_keys=True).encode() + b"\n"
        append_bytes(self.path, text)
        self.head, self._hashed = head, True
        self.count += 1
        self._size += len(text)

    def require(self, number: int, digest: str) -> None:
        """Refuse a file of which this line is missing or has another hash.

        Raises:
            CheckpointError: names what is wrong.
        """
        lines = [text for text in self.path.read_bytes().split(b"\n") if text.strip()] if self.path.exists() else []
        if number > self.count or (number and json.loads(lines[number - 1]).get(HASH, "") != digest):
            raise self._broken(f"was replaced: it does not have the line {number} that was noted down")

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        new = not self.path.exists()
        with self._opened() as file:
            if new:
                self._named()
            _lock(file)  # until the file is closed
            yield

    def _opened(self) -> IO[bytes]:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            return self.path.open("ab")
        except OSError as error:
            raise self._closed(error) from error

    def _named(self) -> None:
        try:
            sync_folder(self.path.parent)
        except OSError as error:
            raise self._closed(error) from error

    def _closed(self, error: OSError) -> CheckpointError:
        return CheckpointError(
            f"{self.what} cannot be opened: {error.strerror or error}",
            where=str(self.path),
            remedy="free space or fix the permissions; nothing was released",
        )

    def _news(self, *, repair: bool) -> list[dict[str, Any]]:
        if not self.path.exists():
            content = b""
        else:
            with self.path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                if file.tell() < self._size:
                    raise self._broken("is shorter than it was")
                file.seek(self._size)
                content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        made = [self._line(text) for text in whole.split(b"\n")[:-1] if text.strip()]
        self._size += len(whole)
        if repair and len(whole) < len(content):  # an incomplete last line: what it says never happened
            append_bytes(self.path, b"", at=self._size)
        return made

    def _line(self, text: bytes) -> dict[str, Any]:
        number = self.count + 1
        try:
            line = json.loads(text)
        except ValueError as error:
            raise self._broken(f"is damaged: line {number} of {self.what} is not JSON") from error
        if not isinstance(line, dict):
            raise self._broken(f"is damaged: line {number} has no fields")
        right = linked(self.head, line)
        if (self._hashed or HASH in line) and line.get(HASH) != right:
            raise self._broken(f"was changed: line {number} does not follow the line before it")
        self.head, self.count, self._hashed = right, number, HASH in line
        return {name: value for name, value in line.items() if name != HASH}

    def _broken(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self.what} {how}",
            where=str(self.path),
            remedy="restore the file from a backup; a ledger is never repaired by guessing",
        )


def _lock(file: IO[Any]) -> None:
    try:
        import fcntl
    except ImportError:  # not on POSIX: do not let two processes share a ledger there
        return
    fcntl.flock(file, fcntl.LOCK_EX)
