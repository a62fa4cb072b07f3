"""Which replies were in: the accepted sets of rounds that a deadline or a number of replies closed, on a real clock.

Replies arrive in another order when a program runs again after a crash. So each decision is recorded durably before any
result is seen, and is repeated later. A checkpoint makes earlier decisions unnecessary; they are kept for one more.
If too few replies were in, and the program ended for that reason, no result was seen: a resumed run asks again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ..errors import CheckpointError, QuorumError, SessionError
from .files import append_bytes, write_bytes

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Decisions"]


class Decisions:
    """Accepted sets by request.

    Args:
        path: a JSON-lines file; ``None`` keeps them in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self._known: dict[str, list[int]] = {}
        self._old: set[str] = set()
        if path is not None and path.exists():
            self._read(path)

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]  # an incomplete last line: no result of its decision was seen
        if len(whole) < len(content):
            append_bytes(path, b"", at=len(whole))
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                entry = json.loads(line)
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

    def settle(self, slot: str, apart: Iterable[str] = ()) -> None:
        """After a safe checkpoint of a scope, remove its decisions from before the checkpoint before.

        Args:
            slot: the scope.
            apart: scopes inside it with their own checkpoints.
        """
        others = tuple(f"{other}/" for other in apart)
        covered = {r for r in self._known if r.startswith(f"{slot}/") and not (others and r.startswith(others))}
        gone = self._old & covered
        for request in gone:
            del self._known[request]
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
            write_bytes(self.path, b"".join(_line(request, who) for request, who in self._known.items()))


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the errors that it was raised from, and all errors of a group."""
    while error is not None:
        yield error
        for each in error.exceptions if isinstance(error, BaseExceptionGroup) else ():
            yield from _causes(each)
        error = error.__cause__


def _line(request: str, positions: list[int]) -> bytes:
    return json.dumps({"request": request, "in": positions}).encode() + b"\n"
