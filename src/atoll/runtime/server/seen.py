"""When each site was last connected: kept in a file, so that it is known after a restart too."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from atoll.core.errors import AtollError
from atoll.core.persistence.files import write_bytes

from .site_session import SiteSession

__all__ = ["LastSeen", "Sighting", "watch"]

_EVERY = 30.0
"""Seconds between two times that are written down."""


@dataclass(frozen=True)
class Sighting:
    """When a site was last connected.

    Attributes:
        when: in seconds since 1970.
        org: its organisation.
        serial: of its certificate, in hex.
    """

    when: float
    org: str
    serial: str


class LastSeen:
    """Site -> when it was last connected.

    Args:
        path: the file.
        revoked: tells whether a serial number is revoked.
    """

    def __init__(self, path: Path, revoked: Callable[[int], bool]) -> None:
        self._path = path
        self._revoked = revoked
        self._rows: dict[str, Sighting] = {}
        with contextlib.suppress(OSError, ValueError, TypeError, AttributeError):  # damaged: they come again
            tree = json.loads(path.read_text(encoding="utf-8"))
            self._rows = {
                str(site): Sighting(float(when), str(org), str(serial)) for site, (when, org, serial) in tree.items()
            }

    def note(self, session: SiteSession, now: float) -> None:
        """A site is connected; this is written down with the next ``keep``."""
        peer = session.line.peer
        self._rows[session.name] = Sighting(now, peer.org, f"{peer.serial:x}")

    def keep(self) -> None:
        """Write everything down.

        Raises:
            CheckpointError: it cannot be written.
        """
        write_bytes(
            self._path, json.dumps({site: list(asdict(row).values()) for site, row in self._rows.items()}).encode()
        )

    def of(self, site: str) -> Sighting | None:
        """Return when a site was last connected; None if it never was."""
        return self._rows.get(site)

    def revoked(self, site: str) -> bool:
        """Tell whether the certificate with which a site last came is revoked."""
        row = self._rows.get(site)
        return row is not None and self._revoked(int(row.serial, 16))


async def watch(seen: LastSeen, sessions: Mapping[str, SiteSession]) -> None:
    """Note and write down who is connected, for as long as the server runs."""
    while True:
        for session in sessions.values():
            if session.connected:
                seen.note(session, time.time())
        with contextlib.suppress(AtollError):  # a full disk: later
            seen.keep()
        await asyncio.sleep(_EVERY)
