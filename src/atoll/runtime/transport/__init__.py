"""Transports: how blocks of bytes get from one process to another."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import ClassVar

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


_GROUP = "atoll.transports"


def _tcp() -> Transport:
    from .tcp import TcpTransport

    return TcpTransport()


class _Transports(Mapping[str, Callable[[], Transport]]):
    """Atoll's own transports, and the plug-ins that installed distributions list as entry points of the group ``atoll.transports``."""

    _own: ClassVar[dict[str, Callable[[], Transport]]] = {"tcp": _tcp, "memory": MemoryTransport}

    @functools.cached_property
    def _plugged(self) -> dict[str, EntryPoint]:
        """The plug-ins by name. Nobody takes the place of another: a transport keeps promises, and which one does must not depend on what is installed.

        Raises:
            ConfigError: two distributions have the same name, or one has that of an own transport.
        """
        found: dict[str, EntryPoint] = {}
        for point in entry_points(group=_GROUP):
            before = "Atoll" if point.name in self._own else found[point.name].value if point.name in found else ""
            if before and before != point.value:
                raise ConfigError(
                    f"the transport {point.name!r} of {point.value} has the name of one of {before}",
                    where=f"entry points of {_GROUP}",
                    remedy="uninstall one of the two distributions",
                )
            found[point.name] = point
        return found

    def __getitem__(self, name: str) -> Callable[[], Transport]:
        if name in self._own:  # tcp reads no entry points
            return self._own[name]
        point = self._plugged[name]
        return lambda: point.load()()

    def __iter__(self) -> Iterator[str]:
        return iter([*self._own, *self._plugged])

    def __len__(self) -> int:
        return len(self._own) + len(self._plugged)


TRANSPORTS: Mapping[str, Callable[[], Transport]] = _Transports()
"""What makes each transport, by its name in kits and settings. The default is TLS over TCP. Others are plug-ins: gRPC, for networks that want HTTP/2, is one."""


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
            remedy=f"choose one of {', '.join(TRANSPORTS)}, or install the distribution that has it",
        )
    return TRANSPORTS[name]()
