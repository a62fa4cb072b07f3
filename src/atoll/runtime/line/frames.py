"""Frames: the content of the blocks on a pipe. A header of 14 bytes, then content.

```
kind u8 | flags u8 | channel u32 | seq u64 | content
```

``HELLO`` is the first frame in each direction and the only one that is a message. ``OPEN`` (content: the name),
``DATA`` and ``CLOSE`` (content: the reason) are numbered within their channel and direction from 0, and sent again
after a cut. ``ACK`` says in ``seq`` how many frames of a channel were consumed, and in a content of 8 bytes how many
bytes may be in transit; ``ASK`` asks for it once all that was sent is consumed. ``PING`` and ``PONG`` carry clocks.
``CLOSE`` of channel 0 ends the line.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

from atoll.runtime.transport.base import BLOCK, Buffer

__all__ = [
    "DROP",
    "END",
    "HEADER",
    "OVERHEAD",
    "TELL",
    "Frame",
    "Kind",
    "SharedContent",
    "Violation",
    "parse",
    "room_in",
    "room_of",
    "text_of",
]

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
