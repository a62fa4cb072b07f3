"""Transports: how blocks of bytes get from one process to another."""

from __future__ import annotations

from collections.abc import Callable

from atoll.core.errors import ConfigError, nearest

from .base import BLOCK, Accept, Listener, Pipe, PipeClosed, Revoked, Transport
from .framed import local_pipe
from .memory import MemoryTransport

__all__ = [
    "BLOCK",
    "TRANSPORTS",
    "Accept",
    "Listener",
    "MemoryTransport",
    "Pipe",
    "PipeClosed",
    "Revoked",
    "Transport",
    "local_pipe",
    "transport",
]


def _grpc() -> Transport:
    from .rpc import GrpcTransport

    return GrpcTransport()


def _tcp() -> Transport:
    from .tcp import TcpTransport

    return TcpTransport()


TRANSPORTS: dict[str, Callable[[], Transport]] = {"tcp": _tcp, "grpc": _grpc, "memory": MemoryTransport}
"""The class of each transport, by its name in kits and settings. The default is TLS over TCP; gRPC is for networks that want HTTP/2, and is loaded when you ask for it."""


def transport(name: str = "tcp") -> Transport:
    """Return a transport by its name.

    Raises:
        ConfigError: no transport has that name.
        MissingExtraError: a library that it needs is not installed.
    """
    if name not in TRANSPORTS:
        raise ConfigError(
            f"transport is {name!r}.{nearest(name, TRANSPORTS)}",
            where="transport",
            remedy=f"choose one of {', '.join(TRANSPORTS)}",
        )
    return TRANSPORTS[name]()
