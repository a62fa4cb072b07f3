"""The journal of a host: replies that must never be made twice.

A task that drew on its island's secret or spent privacy budget would answer differently if it ran again, so its reply (and the state it left)
is written down durably before it is released. Everything else is a function of its request and is simply run again after a crash.

A checkpoint makes the replies before it superfluous. They are kept for one more, because a resume may have to fall back one generation.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import message as M
from .errors import CheckpointError, MessageError
from .files import append_bytes, write_bytes
from .request import Ran, Request
from .wire import pack_ran, unpack_ran

__all__ = ["Journal"]

_LENGTH = struct.Struct("<Q")


@dataclass
class _Entry:
    slot: str
    ran: Ran
    old: bool = False


class Journal:
    """Replies by request and party.

    Args:
        path: the file they are appended to; ``None`` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._kept: dict[tuple[str, int], _Entry] = {}
        self._dropped = 0
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        at = 0
        while at + _LENGTH.size <= len(content):
            (length,) = _LENGTH.unpack_from(content, at)
            frame = content[at + _LENGTH.size : at + _LENGTH.size + length]
            if len(frame) < length:
                break
            try:
                entry = M.decode(frame)
            except MessageError as error:
                raise CheckpointError(
                    f"the journal is damaged at byte {at}: {error.what}", where=str(path), remedy="start a new run"
                ) from error
            ran = unpack_ran(entry["ran"])
            self._kept[entry["request"], ran.reply.party] = _Entry(entry["slot"], ran)
            at += _LENGTH.size + length
        if at < len(content):  # torn by a crash: that reply was never released
            append_bytes(path, b"", at=at)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, request: str, party: int) -> Ran | None:
        """The reply that was already given, if any."""
        entry = self._kept.get((request, party)) if self._kept else None
        return None if entry is None else entry.ran

    def put(self, rows: Iterable[tuple[Request, Ran]]) -> None:
        """Write replies down; durable when this returns.

        Raises:
            CheckpointError: they cannot be written; nothing may be released.
        """
        entries = {(request.id, ran.reply.party): _Entry(request.slot, ran) for request, ran in rows}
        if self.path is not None and entries:
            append_bytes(self.path, _frames(entries))
        self._kept.update(entries)

    def forget(self, slot: str) -> None:
        """A checkpoint of a slot is safe: drop what came before the checkpoint before it."""
        remaining = {k: e for k, e in self._kept.items() if not (e.slot == slot and e.old)}
        self._dropped += len(self._kept) - len(remaining)
        self._kept = remaining
        for entry in remaining.values():
            entry.old = entry.old or entry.slot == slot
        # Written anew only when it has shrunk by half or more, so that forgetting costs as much as remembering.
        if self.path is not None and self._dropped and self._dropped >= len(remaining):
            write_bytes(self.path, _frames(remaining))
            self._dropped = 0


def _frames(entries: Mapping[tuple[str, int], _Entry]) -> bytes:
    frames = [
        M.encode({"request": request, "slot": entry.slot, "ran": pack_ran(entry.ran)})
        for (request, _), entry in entries.items()
    ]
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
