"""The sites that are connected to a server."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from .site_session import SiteSession

__all__ = ["SiteSessions"]


class SiteSessions(Mapping[str, SiteSession]):
    """Sessions by the name of their site, and which of them can be reached: a cut line is not lost yet."""

    def __init__(self) -> None:
        self._sessions: dict[str, SiteSession] = {}
        self._reached: dict[str, bool] = {}

    def __getitem__(self, site: str) -> SiteSession:
        return self._sessions[site]

    def __iter__(self) -> Iterator[str]:
        return iter(self._sessions)

    def __len__(self) -> int:
        return len(self._sessions)

    def put(self, session: SiteSession) -> None:
        """Add a site's new line, in place of an older one."""
        self._sessions[session.name], self._reached[session.name] = session, True

    def remove(self, session: SiteSession) -> bool:
        """Remove a lost line; return whether it was its site's newest, so that the site is gone."""
        if self._sessions.get(session.name) is not session:
            return False
        del self._sessions[session.name]
        return True

    def take_changes(self) -> list[tuple[str, bool]]:
        """Return the sites that have become reachable or unreachable since the last call."""
        now = {site: session.connected for site, session in self._sessions.items()}
        found = [(site, there) for site, there in now.items() if there != self._reached.get(site)]
        self._reached = now
        return found

    def without(self, sites: Iterable[str]) -> list[str]:
        """Return those of some sites that are not connected."""
        return sorted(set(sites) - self._sessions.keys())

    def tell(self, site: str, op: str, **fields: Any) -> None:
        """Send a site a frame, if it is connected."""
        session = self._sessions.get(site)
        if session is not None:
            session.tell(op, **fields)
