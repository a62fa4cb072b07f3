"""What a site keeps of private state on the server's orders: replies that are not decided yet, generations, and their files."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from atoll.core.errors import CheckpointError, TaskError
from atoll.core.persistence.files import write_bytes
from atoll.core.requests.cohort import Population
from atoll.core.requests.request import PartialSum, Request, TaskResult
from atoll.core.requests.wire import pack_error, pack_ran, unpack_request
from atoll.core.time.meter import Said
from atoll.data import Dataset, DataTable
from atoll.data.islands import Shard

if TYPE_CHECKING:
    from atoll.core.execution.host import Host
    from atoll.core.persistence.state_table import StateStore

__all__ = ["RowsRecord", "SiteState", "PendingReply", "PendingReplies", "Segments", "without_state"]


# ------------------------------------------------------------------ what a site has done that is not decided yet: replies, and the private state that they would leave


@dataclass
class PendingReply:
    """One execution.

    Attributes:
        request: the request.
        ran: what the task gave.
        folded: its summand, if the reply was asked for as one; then the stages' memory and the state come from it.
    """

    request: Request
    ran: TaskResult
    folded: PartialSum | None = None


class PendingReplies:
    """Executions by request and party, until the server says whether their replies are used.

    A party's private state changes only when its reply is used. A simulation has the same effect: it never does the
    work of an unwanted reply.

    Args:
        host: has the states.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self._kept: dict[tuple[str, int], PendingReply] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, request: Request, ran: TaskResult) -> PendingReply:
        """Hold an execution; one that must not be repeated is journaled before any of it can leave."""
        # Secrets were drawn: after a crash the same reply must leave again, since another one would be a second release.
        if ran.sealed and ran.reply.error is None and self.host.replay(request, ran.reply.party) is None:
            self.host.journal.put([(request, ran)])
        return self.hold(request, ran)

    def hold(self, request: Request, ran: TaskResult) -> PendingReply:
        """Hold what a role of a session gave; whether to journal it is known once all roles have ended."""
        pending_reply = self._kept[request.id, ran.reply.party] = PendingReply(request, ran)
        return pending_reply

    def get(self, request: str, position: int) -> PendingReply:
        """Return an execution that is not decided yet.

        Raises:
            TaskError: there is none.
        """
        pending_reply = self._kept.get((request, position))
        if pending_reply is None:
            raise TaskError(
                f"party number {position} has no reply to {request} any more",
                where="site",
                remedy="resume the job from its last checkpoint",
            )
        return pending_reply

    def keep(self, request: str, positions: Iterable[int]) -> None:
        """Use the replies: what they leave behind becomes the parties' state."""
        for position in positions:
            pending_reply = self._kept.pop((request, position), None)
            if pending_reply is not None:
                self._settle(pending_reply)

    def _settle(self, pending_reply: PendingReply) -> None:
        request, ran, folded = pending_reply.request, pending_reply.ran, pending_reply.folded
        if folded is not None:
            self.host.drafts.leave(request, folded.left)
        else:
            self.host.leave(request, ran.reply.party, ran.left)

    def conclude(self, path: str, kept: Iterable[int]) -> None:
        """End a sum: what its requests left, pending or drafted, becomes the state of the kept parties and is dropped for all others."""
        there = set(kept)
        for key in [key for key, pending_reply in self._kept.items() if pending_reply.request.sum == path]:
            pending_reply = self._kept.pop(key)
            if key[1] in there:
                self._settle(pending_reply)
        self.host.drafts.conclude(path, np.array(sorted(there), dtype=np.int64))

    def discard(self, request: str, positions: Iterable[int]) -> None:
        """Discard the replies, as if the tasks had not run."""
        for position in positions:
            self._kept.pop((request, position), None)


# ------------------------------------------------------------------ which segment files of private state a site may forget


class Segments:
    """Removes segments that neither of the server's last two generations names.

    Args:
        store: the store in whose folder they lie.
    """

    def __init__(self, store: StateStore) -> None:
        self._folder = store.folder
        self._named: dict[str, list[set[str]]] = {}

    def settle(self, slot: str, names: list[str]) -> None:
        """Note which segments the server's newest generation names for a slot."""
        before = self._named.setdefault(slot, [])
        before.append(set(names))
        # The server may go back one generation: its newest checkpoint may be the one that the crash interrupted.
        if len(before) > 2:
            for name in before.pop(0) - before[0] - before[1]:
                if self._folder is not None:
                    with contextlib.suppress(OSError):
                        (self._folder / name).unlink()


# ------------------------------------------------------------------ what a site does with states and generations on the server's orders


class RowsRecord:
    """What rows the checkpoints of a job belong to, as a digest that stays at the site.

    A site may come back with as many rows as before and other values in them. Then a job that went on would have learned from both, and no data set would give its result.
    The digest is noted with the first checkpoint: until then a job begins anew, and data may be corrected.

    Args:
        path: the file of the digest; ``None`` keeps none.
        population: this site's data. Tables and data sets have a digest; a database, which changes while a job runs, and data of a kind of their own have none.
    """

    def __init__(self, path: Path | None, population: Population | None) -> None:
        self._path, self._population = path, population

    def note(self) -> None:
        """Note the digest, once."""
        if self._path is not None and not self._path.exists():
            write_bytes(self._path, self._digest(), private=True)

    def require_same(self) -> None:
        """Refuse other rows than those of the checkpoint.

        Raises:
            CheckpointError: some value differs.
        """
        if self._path is not None and self._path.exists() and self._path.read_bytes() != self._digest():
            raise CheckpointError(
                "it came back with other values in its rows than it had at the job's last checkpoint",
                remedy="bring back the data that the job began with, or submit the job again: atoll clone JOB",
            )

    def _digest(self) -> bytes:
        if self._population is None:
            return b""
        found = hashlib.blake2b(digest_size=16)
        for i in range(len(self._population)):
            shard = self._population.shard(i)
            for part in (shard, shard.held_out) if isinstance(shard, Shard) else (shard,):
                rows = part.source.take(part.rows) if isinstance(part, Shard) else part
                if rows is None:
                    continue
                if not isinstance(rows, Dataset | DataTable):
                    return b""
                for name in sorted(rows.columns):
                    values = np.ascontiguousarray(rows[name])
                    found.update(f"{i} {name} {values.dtype.str} {values.shape} ".encode())
                    found.update(values.tobytes())
        return found.hexdigest().encode()


class SiteState:
    """Carries out orders about what tasks left behind.

    Args:
        host: the owner of the states and the journal.
        registry: tasks and stages that the program registered by name.
        pending: executions that are not decided yet.
        rows: what rows the checkpoints belong to.
    """

    def __init__(
        self, host: Host, registry: Mapping[str, Any], pending: PendingReplies, rows: RowsRecord | None = None
    ) -> None:
        self._host = host
        self._rows = RowsRecord(None, None) if rows is None else rows
        self._registry = registry
        self._pending = pending
        self._segments = Segments(host.store)

    def obey(self, frame: Any) -> Any:
        """Carry out an order; return the answer if one is wanted."""
        op, positions = frame["op"], [int(p) for p in frame.get("positions", ())]
        if op == "keep":
            self._pending.keep(frame["id"], positions)
        elif op == "discard":
            self._pending.discard(frame["id"], positions)
        elif op == "conclude":
            self._pending.conclude(frame["id"], positions)
        elif op == "drop":
            self._host.store.drop(frame["slot"])
        if "number" not in frame:
            return None
        answer = {"op": "answer", "number": frame["number"]}
        if op == "known":
            step = self._host.journal.step(frame["request"]["id"], int(frame["position"]), int(frame["step"]))
            return {**answer, "ran": self._find_known(frame), "step": step is not None}
        try:
            return {**answer, "names": self._generation(frame)}
        except Exception as error:
            return {**answer, "error": pack_error(self._host.executor.redact_error(error))}

    def _find_known(self, frame: Any) -> Any:
        """Return what the journal has of a role's result, for a session that is not held again."""
        request = unpack_request({**frame["request"], "message": None}, self._registry)
        ran = self._host.replay(request, int(frame["position"]))
        if ran is None:
            return None
        self._pending.hold(request, ran)
        return pack_ran(without_state(ran))

    def _generation(self, frame: Any) -> list[str]:
        host, op = self._host, frame["op"]
        if op == "commit":
            self._rows.note()
            return host.store.commit(frame["slot"], frame["generation"], full=frame["full"])
        if op == "settle":
            host.store.settle(frame["slot"])
            host.journal.forget(frame["slot"])
            self._segments.settle(frame["slot"], list(frame["names"]))
        elif op == "load":
            self._rows.require_same()
            host.store.load(frame["slot"], list(frame["names"]))
        elif op == "kept":
            self._role(frame)
        elif op == "publish":
            host.publish()
        return []

    def _role(self, frame: Any) -> None:
        """Make what a role left behind the party's state: the session is over and counts."""
        host, position = self._host, int(frame["position"])
        pending_reply = self._pending.get(frame["id"], position)
        pending_reply.ran = replace(
            pending_reply.ran,
            said={role: Said(*words) for role, words in frame["said"].items()},
            time=float(frame["time"]),
        )
        if frame["sealed"] and host.replay(pending_reply.request, pending_reply.ran.reply.party) is None:
            host.journal.put([(pending_reply.request, pending_reply.ran)])
        self._pending.keep(frame["id"], [position])


def without_state(ran: TaskResult) -> TaskResult:
    """Return what may leave the site: the reply, never the private state behind it."""
    return replace(ran, left={})
