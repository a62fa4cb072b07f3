"""The journal of a host: replies that must never be made twice.

A task that drew on its island's secret or spent privacy budget would answer differently if it ran again, so its reply (and the state it left)
is written down durably before it is released. Everything else is a function of its request and is simply run again after a crash.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from . import message as M
from .errors import CheckpointError, MessageError
from .request import Ran, Reply
from .tree import Tree
from .wire import pack_value, unpack_value

__all__ = ["Journal"]

_LENGTH = struct.Struct("<Q")


class Journal:
    """Replies by request and party.

    Args:
        path: the file they are appended to; ``None`` keeps them in memory.
        others: journals of earlier hosts to read as well.
    """

    def __init__(self, path: Path | None = None, others: list[Path] | None = None) -> None:
        self.path = path
        self._kept: dict[tuple[str, int], Ran] = {}
        for file in [*(others or []), *([path] if path is not None else [])]:
            if file.exists():
                self._read(file)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        at = 0
        while at + _LENGTH.size <= len(content):
            (length,) = _LENGTH.unpack_from(content, at)
            frame = content[at + _LENGTH.size : at + _LENGTH.size + length]
            if len(frame) < length:  # torn by a crash: that reply was never released
                break
            try:
                entry = M.decode(frame)
            except MessageError as error:
                raise CheckpointError(
                    f"the journal is damaged at byte {at}: {error.what}", where=str(path), remedy="start a new run"
                ) from error
            reply = Reply(entry["party"], unpack_value(entry["value"]), entry["mail"], [], entry["nbytes"])
            self._kept[entry["request"], entry["party"]] = Ran(reply, entry["state"], entry["changed"])
            at += _LENGTH.size + length

    def __bool__(self) -> bool:
        return bool(self._kept)

    def get(self, request: str, party: int) -> Ran | None:
        """The reply that was already given, if any."""
        return self._kept.get((request, party)) if self._kept else None

    def put(self, request: str, reply: Reply, state: Tree, changed: bool) -> None:
        """Write a reply down; durable when this returns."""
        kept = Ran(reply, state if changed else None, changed)
        if self.path is not None:
            entry = {
                "request": request,
                "party": reply.party,
                "value": pack_value(reply.value),
                "mail": reply.mail,
                "nbytes": reply.nbytes,
                "state": kept.state,
                "changed": changed,
            }
            frame = M.encode(entry)
            try:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                with self.path.open("ab") as file:
                    file.write(_LENGTH.pack(len(frame)) + frame)
                    file.flush()
                    os.fsync(file.fileno())
            except OSError as error:
                raise CheckpointError(
                    f"could not write a reply down: {error.strerror or error}",
                    where=str(self.path),
                    remedy="free space, then resume; the reply was not released",
                ) from error
        self._kept[request, reply.party] = kept

    def forget(self, slot: str) -> None:
        """Drop what a checkpoint made superfluous: the requests of a slot before it."""
        prefix = slot + "/"
        remaining = {k: v for k, v in self._kept.items() if not k[0].startswith(prefix)}
        self._kept = remaining
        if self.path is not None and not remaining and self.path.exists():
            self.path.unlink()
