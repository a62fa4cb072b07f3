"""Files that hold long messages."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from atoll.runtime.transport.base import Buffer

__all__ = ["create_unnamed", "write"]


def create_unnamed(folder: Path) -> int:
    """Create an unnamed file in a folder; it is gone with the process, however that ends."""
    folder.mkdir(parents=True, exist_ok=True)
    number, name = tempfile.mkstemp(dir=folder, prefix="message-")
    Path(name).unlink()
    return number


def write(file: int, data: Buffer) -> None:
    """Append all of ``data``."""
    view = memoryview(data)
    while len(view):
        view = view[os.write(file, view) :]
