"""The ways from a kit to its servers."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from atoll.core.errors import IdentityError
from atoll.runtime.provision import Kit
from atoll.runtime.transport import Pipe, PipeClosed, transport
from atoll.runtime.transport.addresses import split

__all__ = ["dialler"]

_LOG = logging.getLogger("atoll.runtime")


def dialler(kit: Kit, server: str | None = None) -> Callable[[], Awaitable[Pipe]]:
    """Return a function that makes one connection to a server of the kit: it tries all addresses in turn, starting with the last one that worked.

    Args:
        kit: the party's kit.
        server: ``host:port`` in place of the kit's addresses.

    Raises:
        ConfigError: ``server`` is not an address.
        IdentityError: the kit's key cannot be used.
        MissingExtraError: what the transport needs is not installed.
    """
    if server:
        split(server)  # gRPC would choose a port itself, and dial it for ever
    carrier, credentials = transport(kit.transport), kit.credentials()
    known = [(way.address, way.server) for way in kit.ways]
    # The certificate names the server, whatever address is dialled.
    ways = [(server, dict(known).get(server, kit.server.name))] if server else known
    first = 0

    async def dial() -> Pipe:
        nonlocal first
        failed: list[OSError] = []
        for place in [*range(first, len(ways)), *range(first)]:
            address, name = ways[place]
            try:
                pipe = await carrier.dial(address, credentials, name)
            except IdentityError:
                raise
            except OSError as error:
                _LOG.info("server %r cannot be reached at %s: %s", name, address, error)
                failed.append(error)
            else:
                first = place
                return pipe
        raise failed[0] if len(failed) == 1 else PipeClosed("; ".join(map(str, failed)))

    return dial
