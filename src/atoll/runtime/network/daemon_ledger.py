"""A job process's side of what its site's daemon keeps: the privacy ledger and the named results that stay. The daemon writes, and answers before anything leaves.

```
job's process                             site's daemon
{"op": "open"}                        ->
                                      <-  {"lines": what this job has spent so far}
{"op": "admit", "title", "most"}      ->  refused, or noted in the ledger
{"op": "spend", "event", "parties", "request"}
                                      ->  refused, or durable in the ledger
{"op": "promises"}                    ->
                                      <-  the record of what the parties have promised in this job
{"op": "promise", "rows"}             ->  refused, or durable in the record
{"op": "put", "party", "name", "value", "at_once"}
                                      ->  refused, or durable among the site's results
                                      <-  {"ok": true} or {"error": ...}
```
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.event import Event, Ledger, Promise
from atoll.core.persistence.named_results import NamedResults
from atoll.core.requests.wire import unpack_error
from atoll.core.sealing import Record, Row

if TYPE_CHECKING:
    from atoll.core.algebra.tree import Tree
    from atoll.core.job import Prepared

__all__ = ["CHANNEL", "DaemonLedger", "DaemonResults", "most_of"]

CHANNEL = "ledger"
"""The name of the channel that the daemon opens for it."""


class DaemonLedger(Ledger):
    """What a job has spent, as the site's daemon has it. Threads of tasks and roles append; the event loop must stay free to talk to the daemon.

    Args:
        channel: to the daemon.
        loop: the loop that the channel belongs to.
        job: the job's id.
        lines: what the job has spent so far.
    """

    def __init__(
        self, channel: Any, loop: asyncio.AbstractEventLoop, job: str, lines: Sequence[Mapping[str, Any]]
    ) -> None:
        super().__init__(None, job, complete=True)
        self._channel, self._loop, self._turn = channel, loop, asyncio.Lock()
        for line in lines:
            self._take(dict(line))
        self.record = Record()

    @classmethod
    async def open_ledger(cls, channel: Any, job: str) -> DaemonLedger:
        """Ask the daemon what a job has spent.

        Raises:
            AtollError: the daemon cannot read its ledger, or what the site demands.
        """
        await channel.send({"op": "open"})
        told = await channel.recv()
        if told.get("error") is not None:
            raise unpack_error(told["error"]) or RuntimeError("unknown")
        made = cls(channel, asyncio.get_running_loop(), job, told["lines"])
        kept = await made._ask_daemon({"op": "promises"})
        if kept.get("error") is not None:
            raise unpack_error(kept["error"]) or RuntimeError("unknown")
        made.record = _DaemonRecord(made.ask, kept)
        return made

    def append(self, event: Event, party: str | Sequence[str], request: str = "", *, job: str | None = None) -> None:
        """Let the daemon record an event, unless it is there already. It is durable when this returns.

        Raises:
            PolicyError: the site's policy refuses it.
            CheckpointError: the daemon cannot write it.
        """
        parties = [party] if isinstance(party, str) else list(party)
        if isinstance(event, Promise):
            self._require_kept(event, parties, self.job)
        if request:
            parties = self._missing(self.content(event, request, self.job), parties)
        if parties:
            self.ask({"op": "spend", "event": event.pack(), "parties": parties, "request": request})
            super().append(event, parties, request)

    def admit(self, title: str, most: Sequence[Mapping[str, Any]]) -> None:
        """Let the daemon compare what a job releases at most with what the site demands.

        Args:
            title: the job, for people.
            most: rows of ``parties`` and their ``events``, packed, or None if nobody can say.

        Raises:
            PolicyError: the site refuses the job.
        """
        self.ask({"op": "admit", "title": title, "most": list(most)})

    def ask(self, frame: dict[str, Any]) -> None:
        """Ask the daemon for anything that it does, and wait for its answer; not from the loop.

        Raises:
            AtollError: it refuses.
        """
        told = asyncio.run_coroutine_threadsafe(self._ask_daemon(frame), self._loop).result()
        if told.get("error") is not None:
            raise unpack_error(told["error"]) or RuntimeError("unknown")

    async def _ask_daemon(self, frame: dict[str, Any]) -> Any:
        async with self._turn:  # one question, one answer
            await self._channel.send(frame)
            return await self._channel.recv()


class _DaemonRecord(Record):
    """The record of a job's parties, which the site's daemon keeps where no job writes."""

    durable = True

    def __init__(self, ask: Callable[[dict[str, Any]], None], kept: Mapping[str, Any]) -> None:
        super().__init__()
        self._ask = ask
        self.incarnation, self.key = bytes(kept["incarnation"]), bytes(kept["key"])
        self.read(bytes(kept["rows"]))

    def _write(self, rows: Sequence[Row]) -> None:
        self._ask({"op": "promise", "rows": b"".join(matter + bound for matter, bound in rows)})


class DaemonResults(NamedResults):
    """The named results of a site, which a job's process reads in their folder and which only the daemon writes.

    Args:
        folder: their folder.
        job: the job.
        ask: asks the daemon, see `DaemonLedger.ask`.
    """

    def __init__(self, folder: Path, job: str, ask: Callable[[dict[str, Any]], None]) -> None:
        super().__init__(folder, job)
        self._ask = ask

    def put(self, party: str, name: str, value: Tree, *, at_once: bool = False) -> None:
        """Let the daemon store a result; durable when this returns.

        Raises:
            PolicyError: it is a record that would become shorter, or the job has stored more than it may.
            CheckpointError: it cannot be written.
        """
        self._ask({"op": "put", "party": party, "name": name, "value": value, "at_once": at_once})


def most_of(prepared: Prepared, names: Sequence[str], sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Return what a job releases of each of a site's clients at most; clients with as many rows share a row.

    Args:
        prepared: the job.
        names: the clients.
        sizes: their numbers of rows.
    """
    groups: dict[int, list[str]] = {}
    for name, size in zip(names, sizes, strict=True):
        groups.setdefault(int(size), []).append(name)
    made = []
    for size, parties in groups.items():
        events = prepared.most(size)
        made.append({"parties": parties, "events": None if events is None else [event.pack() for event in events]})
    return made
