"""A zip archive with exactly one way to write it: stored regular files of mode 644, dated 1980-01-01, one behind the other.

The standard library reads and writes it. An archive is written again after reading and compared, so links, devices,
encryption, comments, hidden members and members that two programs would read differently are all refused in one step.
Nothing is compressed, so nothing can be a bomb.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass

from atoll.core.errors import BundleError

__all__ = ["Member", "members", "write_archive"]

_DATE = (1980, 1, 1, 0, 0, 0)
_UNIX, _MODE = 3, 0o100644 << 16
_MALFORMED = (zipfile.BadZipFile, NotImplementedError, RuntimeError, ValueError, EOFError, OSError)


@dataclass(frozen=True)
class Member:
    """A file in an archive.

    Attributes:
        name: its path.
        content: its bytes.
    """

    name: str
    content: bytes


def write_archive(files: Iterable[tuple[str, bytes]]) -> bytes:
    """Return an archive of (name, content), in this order.

    Raises:
        BundleError: they are more than an archive holds, or a name appears twice or has a zero byte.
    """
    made = io.BytesIO()
    try:
        with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED, allowZip64=False) as archive:
            for name, content in files:
                if "\x00" in name or name in archive.NameToInfo:
                    raise _make_refusal(f"the name {name!r} is refused: it appears twice, or has a zero byte")
                archive.writestr(_info(name), content)
    except zipfile.LargeZipFile as error:
        raise _make_refusal(f"its files are more than an archive holds: {error}") from error
    return made.getvalue()


def _info(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name, _DATE)
    info.create_system, info.external_attr = _UNIX, _MODE
    return info


def members(content: bytes, most: int) -> list[Member]:
    """Return the files of an archive, in order. This takes at most a few times its size, whatever the archive claims.

    Args:
        content: the archive.
        most: how many files it may have.

    Raises:
        BundleError: it is not exactly what ``write_archive`` makes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            found = _files(archive, len(content), most)
        same = write_archive((member.name, member.content) for member in found) == content
    except _MALFORMED as error:
        raise _make_refusal(f"it is not an archive: {error}") from error
    if not same:
        raise _make_refusal("it has bytes outside its files: flags, dates, links, extra fields or comments")
    return found


def _files(archive: zipfile.ZipFile, size: int, most: int) -> list[Member]:
    infos = archive.infolist()
    if len(infos) > most:
        raise _make_refusal(f"it has more than {most} files")
    # Checked before anything is read: members may overlap, or claim to be compressed.
    if any(info.compress_type != zipfile.ZIP_STORED for info in infos) or sum(info.file_size for info in infos) > size:
        raise _make_refusal("its files are compressed, or overlap")
    return [Member(info.filename, archive.read(info)) for info in infos]


def _make_refusal(what: str) -> BundleError:
    return BundleError(what, where="bundle", remedy="submit the job again from its folder; a bundle is never edited")
