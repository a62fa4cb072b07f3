"""``/healthz`` and ``/metrics`` over plain HTTP, on a port of their own: for the operator's monitoring, and off unless it is asked for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from atoll.core.errors import AtollError, ConfigError
from atoll.runtime.transport.addresses import join_address, split

__all__ = ["Sample", "serve_monitor", "text_of"]

_LOG = logging.getLogger("atoll.runtime")
_WITHIN = 5.0
"""Seconds for a request."""
_MOST = 16
"""Requests at once."""
_LONGEST = 8192
"""Bytes of a request."""
_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True)
class Sample:
    """A number in Prometheus' text format.

    Attributes:
        name: its name; one that ends with ``_total`` is a counter, others are gauges.
        value: its value.
        help: what it counts.
        labels: its labels.
    """

    name: str
    value: float
    help: str
    labels: Mapping[str, str] = field(default_factory=dict)


def text_of(metrics: Iterable[Sample]) -> str:
    """Return metrics as Prometheus reads them (text format 0.0.4)."""
    lines: list[str] = []
    named = ""
    for metric in metrics:
        if metric.name != named:
            named = metric.name
            kind = "counter" if named.endswith("_total") else "gauge"
            lines += [f"# HELP {named} {metric.help}", f"# TYPE {named} {kind}"]
        labels = ",".join(f'{key}="{_escape_value(value)}"' for key, value in metric.labels.items())
        lines.append(f"{named}{{{labels}}} {_number(metric.value)}" if labels else f"{named} {_number(metric.value)}")
    return "\n".join([*lines, ""])


def _escape_value(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    return repr(float(value)) if math.isfinite(value) else {math.inf: "+Inf", -math.inf: "-Inf"}.get(value, "NaN")


@contextlib.asynccontextmanager
async def serve_monitor(
    address: str | None, ill: Callable[[], str], metrics: Callable[[], Iterable[Sample]]
) -> AsyncIterator[str]:
    """Serve ``/healthz`` and ``/metrics`` while the context is entered.

    Args:
        address: ``host:port``; None serves nothing.
        ill: tells what is wrong, or nothing.
        metrics: the numbers, without this process's own.

    Yields:
        The address; empty if nothing is served.

    Raises:
        ConfigError: it cannot listen there.
    """
    if address is None:
        yield ""
        return
    host, port = split(address)
    turns = asyncio.Semaphore(_MOST)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(_WITHIN), turns:
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(_answer(head, ill, metrics))
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    try:
        server = await asyncio.start_server(serve, host, port, limit=_LONGEST)
    except OSError as error:
        raise ConfigError(
            f"cannot listen at {address}: {error.strerror or error}",
            where="--metrics",
            remedy="stop the program that uses the port, or choose another: --metrics HOST:PORT",
        ) from error
    async with server:
        at = join_address(host, server.sockets[0].getsockname()[1])
        _LOG.info("/healthz and /metrics are served at http://%s, to whoever can connect there", at)
        yield at


def _answer(head: bytes, ill: Callable[[], str], metrics: Callable[[], Iterable[Sample]]) -> bytes:
    """Return the answer to a request."""
    method, _, rest = head.partition(b" ")
    path = rest.split(b" ")[0].split(b"?")[0]
    if method not in (b"GET", b"HEAD"):
        return _response("405 Method Not Allowed", "only GET\n")
    try:
        if path == b"/healthz":
            wrong = ill()
            return _response("503 Service Unavailable", f"{wrong}\n") if wrong else _response("200 OK", "ok\n")
        if path == b"/metrics":
            return _response("200 OK", text_of([*metrics(), *_process()]), _TYPE)
    except AtollError as error:
        return _response("503 Service Unavailable", f"{error.what}\n")
    return _response("404 Not Found", "/healthz or /metrics\n")


def _response(status: str, text: str, kind: str = "text/plain; charset=utf-8") -> bytes:
    body = text.encode("utf-8", "replace")
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode() + body


def _process() -> Iterable[Sample]:
    """Yield what is known of this process."""
    yield Sample("process_cpu_seconds_total", time.process_time(), "Processor time of this process, in seconds.")
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        yield Sample(
            "process_resident_memory_bytes",
            float(pages * os.sysconf("SC_PAGE_SIZE")),
            "Memory of this process, in bytes.",
        )
