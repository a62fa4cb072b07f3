"""A zip archive with exactly one way to write it (APPNOTE.TXT 6.3.10, sections 4.3 and 4.4).

Every member is a deflated regular file of mode 644, dated 1980-01-01, named in UTF-8, without extra fields or comments, one behind the other.
So the reader needs no leniency: it walks the members, rebuilds the directory that belongs behind them and refuses every other byte. Links,
devices, encryption, overlaps, hidden members and members that two programs would read differently have no form here at all.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from atoll.core.errors import BundleError

__all__ = ["Member", "inflated", "members", "write_archive"]

_LOCAL = struct.Struct("<4s5H3I2H")
_CENTRAL = struct.Struct("<4s6H3I5H2I")
_END = struct.Struct("<4s4H2IH")
_NEED, _UTF8, _DEFLATED, _TIME, _DATE = 20, 0x800, 8, 0, 0x21
_UNIX, _MODE = 3 << 8, 0o100644 << 16
_STEP = 64 * 1024


@dataclass(frozen=True)
class Member:
    """A file in an archive, as its header describes it: nothing of it is believed until ``inflated`` has seen it.

    Attributes:
        name: its path.
        size: bytes.
        crc: CRC-32 of the bytes.
        packed: the deflated bytes.
    """

    name: str
    size: int
    crc: int
    packed: memoryview

    @property
    def head(self) -> tuple[int, ...]:
        """The fields that a local header and its copy in the directory share."""
        sizes = (self.crc, len(self.packed), self.size, len(self.name.encode()))
        return (_NEED, _UTF8, _DEFLATED, _TIME, _DATE, *sizes)

    def local(self) -> bytes:
        """The header before the file."""
        return _LOCAL.pack(b"PK\3\4", *self.head, 0) + self.name.encode()

    def central(self, offset: int) -> bytes:
        """Its entry in the directory."""
        return _CENTRAL.pack(b"PK\1\2", _UNIX | _NEED, *self.head, 0, 0, 0, 0, _MODE, offset) + self.name.encode()


def write_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """An archive of (name, content), in this order."""
    parts, found = [], []
    for name, content in files:
        squeeze = zlib.compressobj(9, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = squeeze.compress(content) + squeeze.flush()
        found.append(Member(name, len(content), zlib.crc32(content), memoryview(packed)))
        parts += [found[-1].local(), packed]
    return b"".join([*parts, _directory(found)])


def members(content: bytes, most: int) -> list[Member]:
    """The members of an archive, in order. Costs no more than its own size, whatever it claims.

    Args:
        content: the archive.
        most: how many members it may have.

    Raises:
        BundleError: it is not exactly what ``write_archive`` makes.
    """
    found: list[Member] = []
    view, at = memoryview(content), 0
    while content[at : at + 4] == b"PK\3\4":
        if len(found) == most:
            raise _refused(f"it has more than {most} files")
        member = _member(view, at)
        found.append(member)
        at += _LOCAL.size + len(member.name.encode()) + len(member.packed)
    if content[at:] != _directory(found):
        raise _refused(f"what follows byte {at} is not the directory of its {len(found)} files")
    return found


def _member(view: memoryview, at: int) -> Member:
    if len(view) < at + _LOCAL.size:
        raise _refused(f"it ends inside a header at byte {at}")
    _, *_same, crc, packed, size, name, _extra = _LOCAL.unpack_from(view, at)
    begin = at + _LOCAL.size + name
    if len(view) < begin + packed:
        raise _refused(f"it ends inside a file at byte {at}")
    try:
        text = bytes(view[at + _LOCAL.size : begin]).decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"a name at byte {at} is not UTF-8") from error
    member = Member(text, size, crc, view[begin : begin + packed])
    if member.local() != view[at:begin]:
        raise _refused(f"the header of {text!r} has flags, a date, a method or extra fields of its own")
    return member


def inflated(member: Member, most: int) -> Iterator[bytes]:
    """The content in pieces of at most 64 KiB; never more than ``most`` bytes and never more than the header says.

    Raises:
        BundleError: it is larger than allowed, or not what its header says.
    """
    if member.size > most:
        raise _refused(f"{member.name!r} has {member.size} bytes, and {most} are allowed")
    widen = zlib.decompressobj(-zlib.MAX_WBITS)
    waiting: bytes | memoryview = member.packed
    done, crc = 0, 0
    while not widen.eof:
        try:
            piece = widen.decompress(waiting, _STEP)
        except zlib.error as error:
            raise _refused(f"{member.name!r} cannot be decompressed: {error}") from error
        if not piece and not widen.eof:
            raise _refused(f"{member.name!r} is cut short")
        waiting = widen.unconsumed_tail
        done, crc = done + len(piece), zlib.crc32(piece, crc)
        if done > member.size:
            raise _refused(f"{member.name!r} is larger than the {member.size} bytes that its header says")
        if piece:
            yield piece
    if done != member.size or crc != member.crc or widen.unused_data:
        raise _refused(f"{member.name!r} is not what its header says")


def _directory(found: list[Member]) -> bytes:
    entries, at = [], 0
    for member in found:
        entries.append(member.central(at))
        at += _LOCAL.size + len(member.name.encode()) + len(member.packed)
    size = sum(map(len, entries))
    if len(found) > 0xFFFF or at + size > 0xFFFF_FFFF:
        raise _refused(f"{len(found)} files of {at} bytes are more than an archive holds")
    return b"".join([*entries, _END.pack(b"PK\5\6", 0, 0, len(found), len(found), size, at, 0)])


def _refused(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder; a bundle is never edited")
