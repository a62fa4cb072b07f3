"""Addresses of the form ``host:port``."""

from __future__ import annotations

from atoll.core.errors import ConfigError

__all__ = ["join_address", "split"]


def split(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 address has brackets.

    Raises:
        ConfigError: the port or the host is missing.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ConfigError(
            f"{address!r} is not an address", where="address", remedy="give host:port, such as server.example.org:8443"
        )
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Return the inverse of ``split``."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
