"""What a daemon tells its operator's monitoring, and how a site finds a server that was started from a copy of its folder."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import secrets
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from atoll.core.errors import AtollError, CheckpointError, ConfigError, IdentityError, MessageError
from atoll.core.persistence.files import write_bytes

from ..transport.base import join_address, split

__all__ = ["KnownServer", "Sample", "SiteTokens", "serve_monitor", "text_of"]


# ------------------------------------------------------------------ ``/healthz`` and ``/metrics`` over plain HTTP, on a port of their own
#
# ``/healthz`` and ``/metrics`` over plain HTTP, on a port of their own: for the operator's monitoring, and off unless it is asked for.


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


# ------------------------------------------------------------------ how a site finds a server that was started from a copy of its folder, or from a backup
#
# How a site finds a server that was started from a copy of its folder, or from a backup: it has forgotten what they did together.
# A site says in its greeting that it keeps tokens. With each line and each deployment, the server draws a new token for the site, keeps it, and sends it with the one before,
# which the site has. The site keeps the new one and says so. A server whose folder is older than what the site has seen
# cannot name the site's token: the folder was copied, restored or lost. So whichever of two servers with one history a site
# meets second, it refuses.
#
# ```
# server                                               site
# {"op": "incarnation", "was": [...], "now": token} ->  keeps it if ``was`` has its own
# <-  {"op": "incarnation", "now": token}
# ```
#
# A token that the site may have is forgotten only when the site has confirmed the next, so no kill of either, at any moment,
# makes an honest pair refuse each other.


_BYTES = 16


class SiteTokens:
    """A server's tokens for its sites. Threads may share it.

    Args:
        folder: the server's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "incarnations"
        self._one = threading.Lock()

    def offer(self, site: str) -> dict[str, Any]:
        """Return a frame's fields for a site, with a new token once the last is confirmed; durable when this returns."""
        with self._one:
            has, next_one = self._read(site)
            if not next_one:
                with contextlib.suppress(CheckpointError):  # on a full disk the site keeps the token that it has
                    drawn = secrets.token_hex(_BYTES)
                    self._write(site, has, drawn)
                    next_one = drawn
            return {"was": [token for token in (has, next_one) if token], "now": next_one or has}

    def confirm(self, site: str, token: str) -> None:
        """Note that a site has kept a token.

        Raises:
            CheckpointError: it cannot be noted; then the site is offered the same again.
        """
        with self._one:
            _, next_one = self._read(site)
            if token and token == next_one:
                self._write(site, token, "")

    def _read(self, site: str) -> tuple[str, str]:
        try:
            found = json.loads((self._folder / quote(site, safe="")).read_bytes())
            return str(found["has"]), str(found["next"])
        except (OSError, ValueError, KeyError, TypeError):
            return "", ""

    def _write(self, site: str, has: str, next_one: str) -> None:
        write_bytes(
            self._folder / quote(site, safe=""), json.dumps({"has": has, "next": next_one}).encode(), private=True
        )


class KnownServer:
    """The server as a site remembers it.

    Args:
        path: the site's file of the token that it has.
        accept_restored: take the next server as it is, once.
    """

    def __init__(self, path: Path, accept_restored: bool = False) -> None:
        self._path, self._accepts = path, accept_restored
        self._token = ""
        with contextlib.suppress(OSError):
            self._token = path.read_text(encoding="ascii", errors="replace").strip()
        self._shown = False

    def begin(self) -> None:
        """Begin a new line: the server has not shown yet that it is the one."""
        self._shown = False

    def require_shown(self) -> None:
        """Refuse to do what a server wants that has not shown that it is the one that this site knows.

        Raises:
            MessageError: it has not.
        """
        if self._token and not self._shown and not self._accepts:
            raise MessageError(
                "the server gives orders before it has shown that it is the one that this site knows",
                where="control",
                remedy="use the same version of Atoll at both ends",
            )

    def take(self, frame: Any) -> str:
        """Return the token to confirm, which is durable then; nothing if this site keeps the one that it has.

        Raises:
            IdentityError: the server does not know the token that this site has.
            MessageError: it sent no tokens.
        """
        was, now = frame.get("was"), frame.get("now")
        if not isinstance(was, list) or not isinstance(now, str) or len(now) != 2 * _BYTES or len(was) > 2:
            raise MessageError("no tokens of the server", where="control", remedy="check that server")
        if self._token and self._token not in was and not self._accepts:
            raise IdentityError(
                "the server does not know what this site last did with it: the folder of one of them is a copy, an older backup, or a new one",
                where="the server's incarnation",
                remedy="start both with their newest folders; if one is lost for good, start this site once with --accept-restored-server",
            )
        self._shown, self._accepts = True, False
        if now != self._token:
            try:
                write_bytes(self._path, f"{now}\n".encode(), private=True)
            except CheckpointError as error:
                _LOG.warning("the server's token cannot be kept, and the last one stays: %s", error)
                return ""
            self._token = now
        return now
