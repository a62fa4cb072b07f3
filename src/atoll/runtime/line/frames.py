"""Frames: the content of the blocks on a pipe, the first one in each direction, and how long they are."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from atoll.core import message as M
from atoll.core.errors import MessageError

from ..transport.base import BLOCK, Buffer, Pipe

__all__ = [
    "DROP",
    "END",
    "HEADER",
    "OVERHEAD",
    "SHORTEST",
    "TELL",
    "VERSION",
    "Frame",
    "FramePace",
    "Kind",
    "LineHello",
    "SharedContent",
    "Violation",
    "parse",
    "parts_of",
    "read_hello",
    "room_in",
    "room_of",
    "text_of",
    "write_hello",
]


# ------------------------------------------------------------------ frames: the content of the blocks on a pipe. A header of 14 bytes, then content
#
# ```
# kind u8 | flags u8 | channel u32 | seq u64 | content
# ```
#
# ``HELLO`` is the first frame in each direction and the only one that is a message. ``OPEN`` (content: the name),
# ``DATA`` and ``CLOSE`` (content: the reason) are numbered within their channel and direction from 0, and sent again
# after a cut. ``ACK`` says in ``seq`` how many frames of a channel were consumed, and in a content of 8 bytes how many
# bytes may be in transit; ``ASK`` asks for it once all that was sent is consumed. ``PING`` and ``PONG`` carry clocks.
# ``CLOSE`` of channel 0 ends the line.


HEADER = struct.Struct("<BBIQ")
OVERHEAD = 64
"""Bytes that a frame counts against a window beyond its content, so that empty frames are not free."""
END = 1
"""Flag of the last block of a message."""
DROP = 2
"""Flag of an empty last block: the message was given up, so forget what arrived of it."""
TELL = 4
"""Flag of a block inside a message after which there is no room for another one: its sender asks to hear when it is consumed."""
_LONGEST_TEXT = 2048
_ROOM = struct.Struct("<Q")


class Violation(Exception):  # noqa: N818 - what the other end did
    """The other end broke the rules of the line."""


class Kind(IntEnum):
    """The kind of a frame."""

    HELLO = 1
    OPEN = 2
    DATA = 3
    ACK = 4
    CLOSE = 5
    PING = 6
    PONG = 7
    ASK = 8


_KINDS = {int(kind): kind for kind in Kind}


class SharedContent:
    """Content that is sent on many lines. Lines in step give it the same header, so the two are joined once.

    Args:
        content: the bytes.
    """

    def __init__(self, content: bytes) -> None:
        self.content: Buffer = content
        self._whole: bytes | None = None

    def after(self, header: bytes) -> bytes:
        """Join header and content; the first such block replaces the content, so it needs no extra memory."""
        if self._whole is None:
            self._whole = header + self.content
            self.content = memoryview(self._whole)[HEADER.size :]
        return self._whole if self._whole.startswith(header) else b"".join((header, self.content))


class Frame(NamedTuple):
    """One frame. ``content`` may be a view of the block it came in, or of ``whole``, the block it leaves in; ``shared`` is set if others send the same."""

    kind: Kind
    flags: int
    channel: int
    seq: int
    content: Buffer
    whole: bytes = b""
    shared: SharedContent | None = None

    @property
    def parts(self) -> tuple[Buffer, ...]:
        """Return what to write: the whole block if there is one, else header and content."""
        return (self.whole,) if self.whole else (self.header(), self.content)

    @property
    def joined(self) -> tuple[Buffer, ...]:
        """``parts`` for a pipe that would join them: in one where others have, or will, send the same."""
        return self.parts if self.shared is None else (self.shared.after(self.header()),)

    @property
    def cost(self) -> int:
        """Return what it counts against a window, in bytes."""
        return len(self.content) + OVERHEAD

    def header(self) -> bytes:
        """Its first 14 bytes."""
        return HEADER.pack(self.kind, self.flags, self.channel, self.seq)


def parse(block: Buffer) -> Frame:
    """Read a block.

    Raises:
        Violation: it is too short, too long, or of no known kind.
    """
    if len(block) < HEADER.size:
        raise Violation(f"a block of {len(block)} bytes is shorter than a header")
    number, flags, channel, seq = HEADER.unpack_from(block)
    kind = _KINDS.get(number)
    if kind is None:
        raise Violation(f"a frame of unknown kind {number}")
    if flags & ~(END | DROP | TELL) or (flags and kind is not Kind.DATA):
        raise Violation(f"unknown flags {flags} on {kind.name}")
    content = memoryview(block)[HEADER.size :]
    if len(content) > BLOCK:
        raise Violation(f"{len(content)} bytes in one frame, {BLOCK} are allowed")
    if flags & DROP and (len(content) or not flags & END):
        raise Violation("a message is dropped by an empty last block")
    if kind is Kind.ASK and len(content):
        raise Violation(f"ASK with {len(content)} bytes")
    return Frame(kind, flags, channel, seq, content)


def room_of(size: int) -> bytes:
    """Return the content of an acknowledgement."""
    return _ROOM.pack(size)


def room_in(frame: Frame) -> int | None:
    """For how many bytes there is room, as an acknowledgement says it; None: it does not.

    Raises:
        Violation: it says something else.
    """
    if not frame.content:
        return None
    if len(frame.content) != _ROOM.size:
        raise Violation(f"an acknowledgement of {len(frame.content)} bytes")
    room: int = _ROOM.unpack(frame.content)[0]
    return room


def text_of(frame: Frame) -> str:
    """Return the text in a frame: a name or a reason.

    Raises:
        Violation: it is too long, not UTF-8, or holds control characters.
    """
    if len(frame.content) > _LONGEST_TEXT:
        raise Violation(f"a text of {len(frame.content)} bytes in {frame.kind.name}")
    try:
        text = bytes(frame.content).decode()
    except UnicodeDecodeError:
        raise Violation(f"the text in {frame.kind.name} is not UTF-8") from None
    if not text.isprintable():
        raise Violation(f"the text in {frame.kind.name} holds control characters: {text!r}")
    return text


# ------------------------------------------------------------------ the first frame in each direction: who speaks, and where each channel resumes


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


# ------------------------------------------------------------------ how long frames are
#
# How long frames are: short ones on a slow network, so that some arrive all the time and nothing waits long behind one.


SHORTEST = 1 << 14
"""Bytes of content; no frame is cut to less."""
_FIRST = 1 << 16  # bytes, on a connection about which nothing is known yet
_QUICK, _SLOW = 1 / 60, 1 / 15  # of the time in which something must arrive


class FramePace:
    """Doubles the length of frames while the connection takes them quickly, and halves it when it is slow.

    A fast write may only have filled buffers on the way, so nothing is doubled before the other end has acknowledged
    frames of this connection. Over gRPC the other end notices data only once a frame is complete. So a connection makes
    progress if it carries 64 KiB in the time after which silence would end it.

    Args:
        silence: seconds of silence after which the other end gives up a connection; None: never, and frames have full
            length.

    Attributes:
        proven: whether the other end has consumed something since this connection began.
        most: bytes of content of the next frame; ``SHORTEST`` times a power of two.
    """

    def __init__(self, silence: float | None) -> None:
        self._silence = silence
        self.proven = False
        self.most = BLOCK if silence is None else _FIRST

    def took(self, size: int, seconds: float) -> None:
        """Note that the connection took a frame of ``size`` bytes in ``seconds``."""
        if self._silence is None:
            return
        if seconds > _SLOW * self._silence:
            self.most = max(SHORTEST, self.most // 2)
        elif self.proven and size >= self.most and seconds < _QUICK * self._silence:
            self.most = min(BLOCK, 2 * self.most)
