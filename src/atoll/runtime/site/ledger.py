"""A site's own privacy ledger: one file of all its jobs, which only its daemon writes. A job's process has no way to the file."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from atoll.core.errors import AtollError, CheckpointError, MessageError
from atoll.core.event import Ledger, unpack_event
from atoll.core.requests.wire import pack_error
from atoll.engines.link import LinkClosed

from ..daemon.place import LEDGER

if TYPE_CHECKING:
    from atoll.privacy import Demand, LedgerGuard

__all__ = ["SiteLedger"]

_LOG = logging.getLogger("atoll.runtime")
_FIELDS = ("party", "request", "job")


class SiteLedger:
    """The ledger of a site, and the guard of what the site demands. What the server says of spending changes nothing here.

    Args:
        folder: the site's own.
        site: the site's name: its clients are called so, or ``site/client``.
        helper: whether it has no clients; what it plays has names of its own.
        demand: reads what the site demands now.

    Raises:
        CheckpointError: the ledger is damaged or was changed.
    """

    def __init__(self, folder: Path, site: str, helper: bool, demand: Callable[[], Demand | None]) -> None:
        self._ledger = Ledger(folder / LEDGER)
        self._site, self._helper, self._read = site, helper, demand
        self._demand: Demand | None = None
        self._guarding: LedgerGuard | None = None
        self._one = threading.Lock()
        self._take_over(folder)

    async def serve(self, channel: Any, job: str) -> None:
        """Write what a job's process is about to release, one event after another, until it is gone."""
        with contextlib.suppress(LinkClosed):
            while True:
                await channel.send(await self.answer(job, await channel.recv()))

    async def answer(self, job: str, frame: Any) -> dict[str, Any]:
        """Answer a job's process; an event is durable when this returns."""
        return await asyncio.to_thread(self._answer, job, frame)

    def _answer(self, job: str, frame: Any) -> dict[str, Any]:
        try:
            with self._one:
                return self._obey(job, frame)
        except AtollError as error:
            return {"error": pack_error(error)}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"a job's process sent no event: {type(error).__name__}"
            return {"error": pack_error(MessageError(what, where="ledger", remedy="look at the job's own code"))}

    def _obey(self, job: str, frame: Any) -> dict[str, Any]:
        op = frame["op"]
        if op == "open":
            self._demand = self._read()
            self._ledger.update()
            return {"lines": [line for line in self._ledger.lines() if line.get("job") == job]}
        if op == "admit":
            most = {
                party: None if row["events"] is None else [unpack_event(dict(event)) for event in row["events"]]
                for row in frame["most"] for party in self._own(row["parties"])
            }  # fmt: skip
            self._guard.admit(job, str(frame["title"])[:200], most)
            return {"ok": True}
        if op == "spend":
            parties = self._own(frame["parties"])
            _ = self._guard  # in place before anything is spent
            event = unpack_event(dict(frame["event"]))
            self._ledger.append(event, parties[0] if len(parties) == 1 else parties, str(frame["request"]), job=job)
            return {"ok": True}
        raise ValueError(op)

    def _own(self, parties: Any) -> list[str]:
        """The parties, if they are this site's."""
        for party in parties:
            if not isinstance(party, str) or not (self._helper or party.partition("/")[0] == self._site):
                raise MessageError(
                    f"{party!r:.100} is no party of site {self._site!r}",
                    where="ledger",
                    remedy="look at the job's own code",
                )
        return list(parties)

    @property
    def _guard(self) -> LedgerGuard:
        from atoll.privacy import LedgerGuard  # a daemon without jobs needs no accountants

        if self._guarding is None:
            self._guarding = LedgerGuard(self._ledger, lambda party: self._demand)
        return self._guarding

    def close(self, job: str) -> None:
        """Note that a job has ended for good.

        Raises:
            CheckpointError: the ledger cannot be written.
        """
        with self._one:
            self._guard.close(job)

    def _take_over(self, folder: Path) -> None:
        """Take over what jobs of older versions have spent: each had a file of its own. Lines that are here already count once."""
        for path in sorted((folder / "jobs").glob(f"*/state/{LEDGER}")):
            job = path.parent.parent.name
            try:
                old = Ledger(path, readable=True)
            except CheckpointError as error:
                _LOG.error("what job %s has spent is not in the site's ledger: %s", job, error)
                continue
            for number, line in enumerate(old.lines()):
                event = unpack_event({name: value for name, value in line.items() if name not in _FIELDS})
                self._ledger.append(event, line["party"], line["request"] or f"older/{number}", job=job)
