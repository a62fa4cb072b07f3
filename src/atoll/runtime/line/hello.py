"""The first frame in each direction: who speaks, and where each channel resumes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from atoll.core import message as M
from atoll.core.errors import MessageError
from atoll.runtime.transport.base import Buffer, Pipe

from .frames import HEADER, Frame, Kind, Violation, parse

__all__ = ["VERSION", "LineHello", "parts_of", "read_hello", "write_hello"]

VERSION = 2
"""The version of the line's rules, the same at both ends."""

_LIMITS = M.Limits(max_bytes=1 << 18, max_header_bytes=1 << 14, max_leaves=64, max_depth=4)
_ID = 16


@dataclass(frozen=True)
class LineHello:
    """What one end says first on every connection.

    Attributes:
        line: the random name of its line, 16 bytes.
        other: the name of the other end's line, if known; else empty.
        seen: the highest number of a channel that the other end opened and that this end has seen.
        channels: number -> (how many frames it has received, how many of them it has consumed).
        refused: why this end wants no line; empty if it wants one. A dialler sets it when it only checks whether it is
            admitted.
        version: of the rules.
        about: what an end says about itself. One that is only checked: ``"atoll"``, its version, and ``"clock"``, seconds
            since 1970. A dialler: ``"asks"``, whether the line is one of people's requests.
    """

    line: bytes
    other: bytes = b""
    seen: int = 0
    channels: dict[int, tuple[int, int]] = field(default_factory=dict)
    refused: str = ""
    version: int = VERSION
    about: dict[str, Any] = field(default_factory=dict)


def parts_of(hello: LineHello) -> tuple[bytes, bytes]:
    """Return the frame as a pipe sends it."""
    table = np.array([[k, *v] for k, v in hello.channels.items()], np.uint64).reshape(-1, 3)
    tree = {
        "version": hello.version,
        "line": hello.line,
        "other": hello.other,
        "seen": hello.seen,
        "channels": table,
        "refused": hello.refused,
        "about": hello.about,
    }
    return Frame(Kind.HELLO, 0, 0, 0, b"").header(), M.encode(tree)


async def write_hello(pipe: Pipe, hello: LineHello) -> None:
    """Send a greeting."""
    await pipe.send(*parts_of(hello))


async def read_hello(pipe: Pipe) -> LineHello:
    """Wait for the greeting.

    Raises:
        Violation: the first frame is something else, damaged, or of another version.
        PipeClosed: the connection is gone.
    """
    return _understood(await pipe.recv())


def _understood(block: Buffer) -> LineHello:
    frame = parse(block)
    if frame.kind is not Kind.HELLO:
        raise Violation(f"the first frame is {frame.kind.name}, not HELLO")
    try:
        tree = M.decode(memoryview(block)[HEADER.size :], limits=_LIMITS)
    except MessageError as error:
        raise Violation(f"HELLO is damaged: {error}") from None
    if not isinstance(tree, dict) or tree.get("version") != VERSION:
        version = tree.get("version") if isinstance(tree, dict) else None
        raise Violation(f"the other end speaks version {version!r} of the line, this end {VERSION}")
    try:
        return _check_tree(tree)
    except (KeyError, TypeError, ValueError):
        raise Violation("HELLO lacks a field or has a wrong one") from None


def _check_tree(tree: dict[str, Any]) -> LineHello:
    line, other, seen, table, refused = (tree[k] for k in ("line", "other", "seen", "channels", "refused"))
    about = tree.get("about", {})
    right = (
        isinstance(line, bytes) and len(line) == _ID
        and isinstance(other, bytes) and len(other) in (0, _ID)
        and type(seen) is int and 0 <= seen < 1 << 32
        and isinstance(table, np.ndarray) and table.dtype == np.uint64 and table.ndim == 2 and table.shape[1] == 3
        and isinstance(refused, str) and refused.isprintable()
        and isinstance(about, dict)
    )  # fmt: skip
    if not right:
        raise ValueError
    channels = {int(k): (int(received), int(consumed)) for k, received, consumed in table}
    if any(consumed > received for received, consumed in channels.values()):
        raise ValueError
    return LineHello(line, other, seen, channels, refused, about=about)
