"""What the server checks regularly: lists that its operator may replace at any moment."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from atoll.core.errors import AtollError
from atoll.runtime.identity import Peer
from atoll.runtime.line import LineLost, Switchboard
from atoll.runtime.provision import Revocations, SiteList

from .site_session import SiteSession

__all__ = ["EVERY", "follow", "guard", "publish"]

EVERY = 2.0
"""Seconds between two looks."""
_LOG = logging.getLogger("atoll.runtime")


async def guard(board: Switchboard, revoked: Callable[[int], bool], on_cut: Callable[[Peer], None]) -> None:
    """Cut off parties whose certificate was revoked since they connected; when they dial again, they learn why.

    Args:
        board: the lines of all connected parties.
        revoked: tells whether a serial number is revoked; follows the list by itself.
        on_cut: called with each party that is cut off.
    """
    unsaid: list[Peer] = []
    while True:
        await asyncio.sleep(EVERY)
        for line in board.lines:
            if revoked(line.peer.serial):
                _LOG.warning("%s is cut off: its certificate (serial %x) was revoked", line.peer, line.peer.serial)
                line.lose(LineLost(f"the certificate of {line.peer} was revoked"))
                unsaid.append(line.peer)
        try:  # even if the disk is full, revoked parties are cut off; it is recorded when there is room
            while unsaid:
                on_cut(unsaid[0])
                del unsaid[0]
        except AtollError as error:
            _LOG.error("the cut of %s cannot be recorded yet: %s", unsaid[0], error)


async def follow(sites: SiteList, on_change: Callable[[], None]) -> None:
    """Follow the list of the project's sites.

    Args:
        sites: the list.
        on_change: called when its names have changed.
    """
    while True:
        await asyncio.sleep(EVERY)
        if sites.changed():
            on_change()


async def publish(revoked: Revocations, sessions: Mapping[str, SiteSession]) -> None:
    """Send the revocation list to the sites whenever it changes: they are connected to each other too.

    Args:
        revoked: the list.
        sessions: connected sites by name.
    """
    known = revoked.signed
    while True:
        await asyncio.sleep(EVERY)
        if (found := revoked.latest()) != known:
            known = found
            for session in sessions.values():
                session.tell("revoked", revoked=known)
