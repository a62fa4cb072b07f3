"""The lines of a site's daemon to those of other sites, over which the roles of a session talk directly.

A site started with ``atoll site KIT --direct HOST:PORT`` listens for other sites of its project, and says so in its
greeting. For a job with ``direct: true`` the server tells every site of an attempt where the others listen, and which
certificates were revoked; Whenever that list changes, it tells all connected sites, and they cut off the parties on it.
Of two sites, the one that does not listen dials the other; if both listen, the one whose name comes first dials. Over
the line each attempt has a channel, ``direct/JOB/ATTEMPT``, which both daemons pass on to their job processes as
``direct/SITE``, without reading it. A pair without a channel after a few seconds gets none in this attempt: all
messages between these two sites then pass through the server. `atoll.runtime.network.session_site` says what the job
processes do with the channels.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from functools import partial

from atoll.core.errors import ConfigError, IdentityError
from atoll.engines.link import LinkClosed
from atoll.runtime.line import Channel, Line, LineLost, Settings, Switchboard, dial_line
from atoll.runtime.provision import Kit
from atoll.runtime.transport import Listener, Pipe, transport

from ..identity import SITES, Credentials
from ..provision.certificates import RevocationList, read_list
from ..transport.base import join_address, split

__all__ = ["Neighbours", "partners", "require_named"]

_LOG = logging.getLogger("atoll.runtime")


def partners(me: str, addresses: Mapping[str, str]) -> tuple[dict[str, str], set[str]]:
    """Return which sites a site dials, and which dial it.

    Args:
        me: the site.
        addresses: every site of the attempt -> where it listens, or nothing.

    Returns:
        Site -> address of those to dial; the sites that dial.
    """
    mine, others = addresses.get(me, ""), {site: at for site, at in addresses.items() if site != me}
    dialled = {site: at for site, at in others.items() if at and (not mine or me < site)}
    return dialled, {site for site in others if mine and site not in dialled}


def require_named(kit: Kit, address: str) -> None:
    """Refuse to listen at an address where no other site could verify who listens.

    Args:
        kit: the site's own.
        address: ``host:port``, as others would dial it.

    Raises:
        ConfigError: the kit's certificate does not name the host.
    """
    host, _ = split(address)
    if host not in kit.config.direct:
        named = ", ".join(kit.config.direct) or "none"
        raise ConfigError(
            f"the kit of {kit.name!r} does not let others dial it at {host!r} (direct: {named})",
            where=f"--direct {address}",
            remedy=f"add `direct: [{host}]` to the site in project.yaml, then atoll provision PROJECT --renew {kit.name}",
        )


class Neighbours:
    """The lines to other sites; one for each site, for all jobs.

    Args:
        credentials: this site's own.
        carrier: the name of the transport.
        address: ``host:port`` to listen at, as others dial it; empty: do not listen. Port 0 lets the system
            choose.
        settings: of the lines.

    Attributes:
        address: where it listens; empty before ``listen``.
        on_open: called with each channel that another site opens.
        signed: the newest known revocation list, as the authority signed it; empty before there is one.
    """

    def __init__(
        self, credentials: Credentials, carrier: str, address: str | None = None, settings: Settings | None = None
    ) -> None:
        self.address = ""
        self.on_open: Callable[[Channel], None] = lambda channel: channel.close("no such channel")
        self._wanted = address
        self._credentials = credentials
        self._carrier = transport(carrier)
        self._settings = settings or Settings()
        self._list: RevocationList | None = None
        self.signed = b""
        self._lines: dict[str, tuple[str, Line]] = {}
        self._dialling: dict[str, asyncio.Lock] = {}
        self._board = Switchboard(self._came, self._settings)
        self._listener: Listener | None = None

    async def listen(self) -> None:
        """Listen, if this site has an address to listen at.

        Raises:
            ConfigError: it cannot listen at the address.
        """
        if not self._wanted:
            return
        try:
            self._listener = await self._carrier.listen(
                self._wanted, self._credentials, self._board.accept, self._revoked, roles=SITES
            )
        except OSError as error:
            raise ConfigError(
                f"cannot listen at {self._wanted}: {error.strerror or error}",
                where="--direct",
                remedy="stop the program that uses the port, or choose another port or address of this machine: --direct HOST:PORT",
            ) from error
        # Report the name that was given: certificates hold names, the system reports numbers.
        self.address = join_address(split(self._wanted)[0], split(self._listener.address)[1])
        _LOG.info("other sites may connect at %s", self.address)

    def learn(self, signed: bytes) -> None:
        """Take the project's revocation list, if it is newer than the known one, and cut off the parties on it.

        Raises:
            IdentityError: the authority has not signed it.
        """
        found = read_list(signed, self._credentials.ca, "the revocation list that the server sent")
        if self._list is None or found.number > self._list.number:
            self._list, self.signed = found, signed
            for line in (*self._board.lines, *(line for _, line in self._lines.values())):
                if line.peer.serial in found.serials and not line.lost.is_set():
                    _LOG.warning("%s is cut off: its certificate (serial %x) was revoked", line.peer, line.peer.serial)
                    line.lose(LineLost(f"the certificate of {line.peer} was revoked"))

    def _revoked(self, serial: int) -> bool:
        return self._list is None or serial in self._list.serials  # nobody is admitted before the list is known

    def _came(self, line: Line) -> None:
        _LOG.info("%s is connected directly", line.peer)
        line.on_open = lambda channel: self.on_open(channel)

    async def open(self, site: str, address: str, name: str) -> Channel:
        """Open a channel to another site, over its line; without one, dial it.

        Raises:
            IdentityError: one end refuses the other, or another party answers.
            OSError: it cannot be reached.
        """
        async with self._dialling.setdefault(site, asyncio.Lock()):
            at, line = self._lines.get(site, ("", None))
            if line is None or line.lost.is_set() or at != address:
                if line is not None:
                    line.lose(LinkClosed("the other site listens elsewhere now"))
                dial = partial(self._dial, site, address)
                line = await dial_line(dial, settings=self._settings)
                line.on_open = lambda channel: channel.close("no such channel")
                self._lines[site] = (address, line)
        if not line.connected:
            raise LinkClosed(f"the line to site {site!r} is cut")
        return line.open(name)

    async def _dial(self, site: str, address: str) -> Pipe:
        pipe = await self._carrier.dial(address, self._credentials, None, self._revoked, roles=SITES)
        if pipe.peer.name != site:
            await pipe.close()
            raise IdentityError(
                f"{pipe.peer} answers where site {site!r} was meant", where=address, remedy="correct its --direct"
            )
        return pipe

    async def close(self) -> None:
        """Close all lines."""
        lines = [line for _, line in self._lines.values()]
        await asyncio.gather(*(line.close("the site was stopped", within=1.0) for line in lines))
        await self._board.close("the site was stopped", within=1.0)
        if self._listener is not None:
            await self._listener.close()
