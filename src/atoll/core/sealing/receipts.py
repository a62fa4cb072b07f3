"""Receipts: a letter is valid for one request. A letter opened in one request does not open in another, even if it is delivered again."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from ..errors import LetterError
from ..persistence.files import append_bytes

__all__ = ["Receipts", "Tag"]

Tag = tuple[str, str, int]
"""Request, sender and number of a letter."""
_ROW = struct.Struct("<16s8s")
_FEW = 20_000


class Receipts:
    """The record of opened letters, and of the request in which each was opened.

    Receipts never roll back: a job that returns to a checkpoint may open the same letters in the same requests again.

    Args:
        path: the file of the receipts. Without one, as in a simulation, only the latest are kept: enough to notice a program that delivers
            letters twice.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[bytes, bytes] = {}
        if path is not None and path.exists():
            raw = path.read_bytes()
            whole = len(raw) // _ROW.size * _ROW.size  # no reply followed an incomplete row
            self._known.update(_ROW.iter_unpack(raw[:whole]))
            if whole < len(raw):
                append_bytes(path, b"", at=whole)

    def __len__(self) -> int:
        return len(self._known)

    def require_fresh(self, request: str, party: str, tags: Iterable[Tag]) -> None:
        """Refuse letters that were opened in another request.

        Raises:
            LetterError: a letter was opened in another request.
        """
        here = _hash(8, request)
        for tag in tags:
            if self._known.get(_row(party, tag), here) != here:
                raise LetterError(
                    f"the letter of {tag[1]} to {party}, written in {tag[0]}, was opened before in another request",
                    where=request,
                    remedy="deliver each letter once; if the program does, check the relay",
                )

    def note(self, request: str, party: str, tags: Iterable[Tag]) -> None:
        """Record the letters that a reply depends on; durable when this returns."""
        here = _hash(8, request)
        fresh = {row: here for tag in tags if (row := _row(party, tag)) not in self._known}
        if self.path is not None and fresh:
            append_bytes(self.path, b"".join(_ROW.pack(row, where) for row, where in fresh.items()))
        self._known.update(fresh)
        if self.path is None and len(self._known) > _FEW:
            for row in list(islice(self._known, len(self._known) - _FEW // 2)):
                del self._known[row]


def _row(party: str, tag: Tag) -> bytes:
    return _hash(16, party, *tag)


def _hash(size: int, *parts: str | int) -> bytes:
    digest = hashlib.blake2b(digest_size=size)
    for part in parts:
        raw = str(part).encode()
        digest.update(len(raw).to_bytes(4, "little") + raw)
    return digest.digest()
