"""Checkpoints: one atomic generation at a time.

A generation is a manifest file, ``generation-00000012.msg``, with every scope's state, clock, meters, requests in flight and counters, and
the names of its segments of private state. Segments are written first, and the manifest last, by a rename: before the rename
the old generation counts, after it the new one. Two generations are kept.

Which replies were in: the accepted sets of rounds that a deadline or a number of replies closed, on a real clock.

Replies arrive in another order when a program runs again after a crash. So each decision is recorded durably before any
result is seen, and is repeated later. A checkpoint makes earlier decisions unnecessary; they are kept for one more.
If too few replies were in, and the program ended for that reason, no result was seen: a resumed run asks again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import CheckpointError, QuorumError, SessionError
from .files import append_bytes, read_message, write_bytes, write_message

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CheckpointStore", "Decisions", "within"]


FORMAT = 3


class CheckpointStore:
    """Generations in a folder, or in memory.

    Args:
        folder: the folder of the generations; ``None`` keeps the newest in memory, for tests and notebooks.

    Attributes:
        generation: number of the newest generation.
        slots: maps a scope to the content of its last checkpoint.
        chains: for each scope, the segments that now make up its private state, oldest first.
        choices: the engine's decisions.
        lock: allows one checkpoint at a time.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.generation = 0
        self.slots: dict[str, dict[str, Any]] = {}
        self.chains: dict[str, list[str]] = {}
        self.choices: dict[str, Any] = {}
        self.lock = asyncio.Lock()
        self._old: set[str] = set()
        self._ended: dict[str, set[str]] = {}

    def open(self, *, resume: bool) -> None:
        """Read the newest generation, or check that there is none to overwrite.

        Raises:
            CheckpointError: the folder contains a run and ``resume`` is false, or the newest generation is damaged and no older one is complete.
        """
        self.generation, self.slots, self.chains, self._old, self._ended = 0, {}, {}, set(), {}
        if self.folder is None:
            if resume:
                raise CheckpointError(
                    "a run in memory cannot be resumed", where="resume=True", remedy="give the run a folder"
                )
            return
        found = sorted(self.folder.glob("generation-*.msg"), reverse=True)
        if resume and (self.folder / "choices.msg").exists():
            self.choices = read_message(self.folder / "choices.msg")
        begun = [name for name in ("journal.log", "ledger.jsonl") if (self.folder / name).exists()]
        if (found or begun) and not resume:
            raise CheckpointError(
                f"the folder already contains {len(found)} generation(s) of a run",
                where=str(self.folder),
                remedy="continue the run there with resume=True, or choose another folder",
            )
        first: CheckpointError | None = None
        # A crash can leave the newest generation torn; the one before it is deleted only when its successor is whole.
        for path in found:
            try:
                self._load(read_message(path), path)
            except CheckpointError as error:
                first = first or error
            else:
                self._clean()
                return
        if first is not None:
            raise first

    def _load(self, manifest: Any, path: Path) -> None:
        if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
            raise CheckpointError(
                "the checkpoint has another format",
                where=str(path),
                remedy="resume with the version of Atoll that wrote it",
            )
        self.generation = manifest["generation"]
        self.slots = manifest["slots"]
        self.choices = {**manifest["choices"], **self.choices}
        missing = sorted(name for name in _find_named(self.slots) if not (path.parent / name).exists())
        if missing:
            raise CheckpointError(
                f"the generation needs the missing segment {missing[0]!r}", where=str(path), remedy="restore the folder"
            )

    def _clean(self) -> None:
        """Remove files that no kept generation names: the remains of a crash."""
        if self.folder is None:
            return
        manifests = sorted(self.folder.glob("generation-*.msg"))
        newest = [p for p in manifests if int(p.stem.split("-")[1]) <= self.generation][-2:]
        for path in manifests:
            if path not in newest:
                path.unlink()
        named = _find_named(self.slots)
        for path in newest[:-1]:
            named |= _find_named(read_message(path)["slots"])
        for path in [*self.folder.glob("state-*.msg"), *self.folder.glob("records-*.msg")]:
            if path.name not in named:
                path.unlink()

    def write(self, slot: str, content: dict[str, Any], choices: dict[str, Any], covered: Iterable[str] = ()) -> None:
        """Make the next generation: one slot changes, the others stay as they were.

        Args:
            slot: the scope.
            content: its state and all that belongs to it.
            choices: the engine's decisions.
            covered: further scopes whose ended programs this checkpoint covers.

        Raises:
            CheckpointError: the generation cannot be written; the previous one stays intact.
        """
        before = _find_named(self.slots)
        over = {name for parent in (slot, *covered) for name in self._ended.get(parent, ())}
        slots = {k: v for k, v in self.slots.items() if not any(within(k, name) for name in over)}
        slots[slot] = {**content, "generation": self.generation + 1}
        manifest = {"format": FORMAT, "generation": self.generation + 1, "slots": slots, "choices": choices}
        if self.folder is not None:
            write_message(self.folder / f"generation-{self.generation + 1:08d}.msg", manifest)
            (self.folder / f"generation-{self.generation - 1:08d}.msg").unlink(missing_ok=True)
        self.generation += 1
        self.slots, self.choices = slots, dict(choices)
        for parent in (slot, *covered):
            self._ended.pop(parent, None)
        # Files that only the generation before last names are garbage.
        for name in self._old - before - _find_named(slots):
            if self.folder is not None:
                (self.folder / name).unlink(missing_ok=True)
        self._old = before

    def end(self, parent: str, slot: str) -> None:
        """End a scope: its slot is removed with its parent's next checkpoint, not before, because until then it may run again."""
        self._ended.setdefault(parent, set()).add(slot)

    def remember(self, choices: dict[str, Any]) -> None:
        """Record the engine's decisions before any result depends on them."""
        self.choices = dict(choices)
        if self.folder is not None:
            write_message(self.folder / "choices.msg", self.choices)


def within(slot: str, other: str) -> bool:
    """Whether a slot is ``other`` or below it."""
    return slot == other or slot.startswith(other + "/")


def _find_named(slots: dict[str, dict[str, Any]]) -> set[str]:
    """The segment files in this folder that these contents name; a file at a party is named ``file@party``."""
    found: set[str] = set()
    for content in slots.values():
        found.update(name for names in content["homes"].values() for name in names if "@" not in name)
        for book in (content["book"], *content["below"].values()):
            found.update(book["segments"])
    return found


# ---------------------------------------------------------------------- decisions


class Decisions:
    """Accepted sets by request.

    Args:
        path: a JSON-lines file; ``None`` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, list[int]] = {}
        self._old: set[str] = set()
        self._steps: dict[str, dict[str, Any]] = {}
        self._found: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            self._read(path)
            self._found = dict(self._steps)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # an incomplete last line: no result of its decision was seen
        if len(whole) < len(content):
            append_bytes(path, b"", at=len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
                if "step" in entry:
                    self._steps[entry["session"]] = dict(entry["step"])
                else:
                    self._known[entry["request"]] = [int(position) for position in entry["in"]]
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointError(
                    f"line {number} is not a decision", where=str(path), remedy="restore the folder, or start a new run"
                ) from error

    def get(self, request: str) -> NDArray[np.int64] | None:
        """Positions of the accepted parties, if this was decided before."""
        known = self._known.get(request)
        return None if known is None else np.array(known, dtype=np.int64)

    def put(self, request: str, positions: NDArray[np.int64]) -> None:
        """Record the accepted parties; durable when this returns.

        Raises:
            CheckpointError: the file cannot be written.
        """
        self._known[request] = positions.tolist()
        if self.path is not None:
            append_bytes(self.path, _line(request, self._known[request]))

    def take_step(self, session: str) -> dict[str, Any] | None:
        """What an earlier process recorded of a session's last agreed step; once, because only its first run here goes on from there."""
        found = self._found.pop(session, None)
        if found is not None and found["step"]:
            return found
        if self._steps.get(session, {}).get("step"):  # it runs again in this process, from its first step
            self.put_step(session, {"step": 0})
        return None

    def put_step(self, session: str, step: Mapping[str, Any]) -> None:
        """Record a step that all roles of a session agree on; durable when this returns.

        Raises:
            CheckpointError: the file cannot be written.
        """
        self._steps[session] = dict(step)
        if self.path is not None:
            append_bytes(self.path, _line_of_step(session, step))

    def settle(self, slot: str, apart: Iterable[str] = ()) -> None:
        """After a safe checkpoint of a scope, remove its decisions from before the checkpoint before.

        Args:
            slot: the scope.
            apart: scopes inside it with their own checkpoints.
        """
        others = tuple(f"{other}/" for other in apart)
        covered = {
            r
            for r in (*self._known, *self._steps)
            if r.startswith(f"{slot}/") and not (others and r.startswith(others))
        }
        gone = self._old & covered
        for request in gone:
            self._known.pop(request, None)
            self._steps.pop(request, None)
        self._old = (self._old | covered) - gone
        if gone:
            self._rewrite()

    def reopen(self, error: BaseException) -> None:
        """Remove the decisions of rounds with too few replies, if the program ended because of them.

        Args:
            error: the error that ended the program; its place is the request of a ``QuorumError``, or the session of a ``SessionError``.

        Raises:
            CheckpointError: the file cannot be written.
        """
        places = {found.where for found in _causes(error) if isinstance(found, QuorumError | SessionError)}
        gone = [request for request in self._known if request in places]
        for request in gone:
            del self._known[request]
        self._old.difference_update(gone)
        if gone:
            self._rewrite()

    def _rewrite(self) -> None:
        if self.path is not None:
            lines = [_line(request, who) for request, who in self._known.items()]
            write_bytes(self.path, b"".join([*lines, *(_line_of_step(*item) for item in self._steps.items())]))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the errors that it was raised from, and all errors of a group."""
    while error is not None:
        yield error
        for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(each)
        error = error.__cause__


def _line(request: str, positions: list[int]) -> bytes:
    return json.dumps({"request": request, "in": positions}).encode() + b"\n"


def _line_of_step(session: str, step: Mapping[str, Any]) -> bytes:
    return json.dumps({"session": session, "step": step}).encode() + b"\n"
