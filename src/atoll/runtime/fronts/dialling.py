"""The way from a kit to its server."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable

from atoll.core.errors import IdentityError
from atoll.runtime.provision import Kit
from atoll.runtime.transport import Pipe, PipeClosed, transport
from atoll.runtime.transport.addresses import joined

__all__ = ["dialler"]

_LOG = logging.getLogger("atoll.runtime")


def dialler(kit: Kit, server: str | None = None) -> Callable[[], Awaitable[Pipe]]:
    """What makes one connection to the kit's server, trying its addresses in turn.

    Args:
        kit: whose.
        server: ``host:port`` in place of the kit's addresses.

    Raises:
        IdentityError: the kit's key cannot be used.
        MissingExtraError: what the transport needs is not installed.
    """
    carrier, credentials = transport(kit.transport), kit.credentials()
    addresses = [server] if server else [joined(host, port) for host, port in kit.addresses]

    async def dial() -> Pipe:
        last: OSError = PipeClosed("the kit has no address")
        for address in addresses:
            try:
                # The certificate says the server's name, whatever address is dialled.
                return await carrier.dial(address, credentials, kit.server.name)
            except IdentityError:
                raise
            except OSError as error:
                _LOG.info("%s cannot be reached: %s", address, error)
                last = error
        raise last

    return dial
