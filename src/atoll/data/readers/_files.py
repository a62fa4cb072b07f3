"""Opening files, with clear errors."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from atoll.core.errors import DataError
from atoll.core.redaction import private


def existing(path: str | Path) -> Path:
    """Return the path of an existing file."""
    path = Path(path)
    if path.is_dir():
        raise DataError(f"{path.name!r} is a folder", where=str(path.parent), remedy="give one of its files")
    if not path.is_file():
        raise DataError(f"there is no file {path.name!r}", where=str(path.parent), remedy="check the path")
    return path


def content(path: str | Path) -> bytes:
    """Return the bytes of a file, decompressed if it is gzip (recognised by its first bytes, not its name)."""
    path = existing(path)
    raw = path.read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(
            f"broken gzip file: {private(error)}", where=path.name, remedy="fetch the file again"
        ) from error
