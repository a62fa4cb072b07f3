"""What the parties of a site have spent on each request, before and after a crash; every reply reports it to the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from atoll.core.event import unpack_event

if TYPE_CHECKING:
    from atoll.core.execution.host import Host

__all__ = ["Spent"]


class Spent:
    """Privacy events by request.

    Args:
        host: the owner of the ledger.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._events: dict[str, list[dict[str, Any]]] = {}
        for entry in host.ledger:
            self._note(entry)

    def spend(self, event: Any, party: str | Sequence[str], request: str) -> None:
        """Write an event to the site's own ledger; the reply reports it to the server."""
        self._host.spend(event, party, request)
        for name in [party] if isinstance(party, str) else party:
            self._note({"party": name, "request": request, **event.pack()})

    def _note(self, entry: Mapping[str, Any]) -> None:
        fields = {k: v for k, v in entry.items() if k not in ("party", "request", "job")}
        unpack_event(dict(fields))
        told = {"event": fields, "party": entry["party"], "request": entry["request"]}
        known = self._events.setdefault(str(entry["request"]).partition("#")[0], [])
        if told not in known:
            known.append(told)

    def on(self, request: str, position: int) -> list[dict[str, Any]]:
        """Return what a party has spent on a request."""
        name = self._host.executor.roster.name(position)
        return [told for told in self._events.get(request, ()) if told["party"] == name]
