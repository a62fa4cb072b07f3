"""The journal of a host: replies that must never be made twice.

A task that drew on its island's secret or spent privacy budget would reply differently if it ran again, so its reply (and the state it left)
is recorded durably before it is released. Everything else is a function of its request and simply runs again after a crash.

For a stage that draws on secrets the journal keeps the parties' seeds, which give the same noise again.

A checkpoint makes earlier replies unnecessary. They are kept for one more, because a resume may have to fall back one generation.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import message as M
from ..errors import CheckpointError, MessageError, PolicyError
from ..persistence.files import append_bytes, write_bytes
from ..requests.context import SEED_BYTES, Seeds
from ..requests.request import Request, TaskResult
from ..requests.wire import pack_ran, unpack_ran

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Journal"]

_LENGTH = struct.Struct("<Q")


@dataclass
class _Entry:
    slot: str
    ran: TaskResult
    old: bool = False

    def packed(self, request: str) -> dict[str, Any]:
        return {"request": request, "slot": self.slot, "ran": pack_ran(self.ran)}


@dataclass
class _Draw:
    """Seeds drawn for some parties of a request, and a digest of the stages that they were drawn for."""

    slot: str
    seeds: Seeds
    stages: bytes
    old: bool = False

    def packed(self, request: str) -> dict[str, Any]:
        return {"request": request, "slot": self.slot, "stages": self.stages, "seeds": self.seeds.packed()}


class Journal:
    """Replies by request and party, and secret seeds.

    Args:
        path: the file that they are appended to; ``None`` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._kept: dict[tuple[str, int], _Entry] = {}
        self._draws: dict[str, list[_Draw]] = {}
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
            if "seeds" in entry:
                draw = _Draw(entry["slot"], Seeds.unpack(entry["seeds"]), entry["stages"])
                self._draws.setdefault(entry["request"], []).append(draw)
            else:
                ran = unpack_ran(entry["ran"])
                self._kept[entry["request"], ran.reply.party] = _Entry(entry["slot"], ran)
            at += _LENGTH.size + length
        if at < len(content):  # incomplete after a crash: this reply was never released
            append_bytes(path, b"", at=at)

    def __bool__(self) -> bool:
        return bool(self._kept)

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, request: str, party: int) -> TaskResult | None:
        """The reply that was given before, if there is one."""
        entry = self._kept.get((request, party)) if self._kept else None
        return None if entry is None else entry.ran

    def put(self, rows: Iterable[tuple[Request, TaskResult]]) -> None:
        """Record replies; durable when this returns.

        Raises:
            CheckpointError: the file cannot be written; nothing may be released.
        """
        entries = {(request.id, ran.reply.party): _Entry(request.slot.partition("//")[0], ran) for request, ran in rows}
        if self.path is not None and entries:
            append_bytes(self.path, _frames(entry.packed(request) for (request, _), entry in entries.items()))
        self._kept.update(entries)

    def draw(self, request: Request, positions: NDArray[np.int64]) -> Seeds:
        """A secret seed of each party for the stages of a request: the one drawn before, or a new one, which is durable when this returns.

        Args:
            request: a request whose stages draw on secrets.
            positions: positions of the parties, sorted, each once.

        Raises:
            PolicyError: seeds were drawn for other stages: with the same noise, the two replies would reveal what it hides.
            CheckpointError: the file cannot be written.
        """
        stages, rows = _digest(request), np.zeros((len(positions), SEED_BYTES), dtype=np.uint8)
        fresh = np.ones(len(positions), dtype=bool)
        for known in self._draws.get(request.id, ()):
            met = np.isin(positions, known.seeds.positions)
            if met.any() and known.stages != stages:
                raise PolicyError(
                    "the same request has other stages or round parameters than before",
                    where=request.id,
                    remedy="ask again under another label (at=)",
                )
            rows[met] = known.seeds.of(positions[met])
            fresh &= ~met
        if fresh.any():
            count = int(fresh.sum())
            rows[fresh] = np.frombuffer(os.urandom(SEED_BYTES * count), dtype=np.uint8).reshape(count, SEED_BYTES)
            made = _Draw(request.slot.partition("//")[0], Seeds(positions[fresh], rows[fresh]), stages)
            if self.path is not None:
                append_bytes(self.path, _frames([made.packed(request.id)]))
            self._draws.setdefault(request.id, []).append(made)
        return Seeds(positions, rows)

    def forget(self, slot: str) -> None:
        """After a safe checkpoint of a slot, drop what was recorded before the previous checkpoint."""
        before = self._count()
        self._kept = {k: e for k, e in self._kept.items() if not (e.slot == slot and e.old)}
        drawn = {k: [e for e in rows if not (e.slot == slot and e.old)] for k, rows in self._draws.items()}
        self._draws = {k: rows for k, rows in drawn.items() if rows}
        remaining = self._count()
        self._dropped += before - remaining
        entries: list[_Entry | _Draw] = [*self._kept.values(), *(e for rows in self._draws.values() for e in rows)]
        for entry in entries:
            entry.old = entry.old or entry.slot == slot
        # Rewritten only when it has shrunk by half or more, so that removing costs as much as recording.
        if self.path is not None and self._dropped and self._dropped >= remaining:
            replies = [entry.packed(request) for (request, _), entry in self._kept.items()]
            draws = [entry.packed(request) for request, rows in self._draws.items() for entry in rows]
            write_bytes(self.path, _frames([*replies, *draws]))
            self._dropped = 0

    def _count(self) -> int:
        return len(self._kept) + sum(map(len, self._draws.values()))


def _digest(request: Request) -> bytes:
    """What a release depends on besides the reply: the stages, their round parameters, and the number of replies that share the noise."""
    uplink = request.uplink
    said = (
        [stage.spec() for stage in uplink.stages],
        list(request.public),
        uplink.replies,
        uplink.hidden,
        uplink.indexing,
    )
    return hashlib.blake2b(M.encode(list(said)), digest_size=16).digest()


def _frames(entries: Iterable[dict[str, Any]]) -> bytes:
    frames = [M.encode(entry) for entry in entries]
    return b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
