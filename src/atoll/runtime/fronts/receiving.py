"""Files as they come from a server, in pieces."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from atoll.core.errors import MessageError

__all__ = ["received"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


async def received(answers: AsyncIterator[Any], name: str, out: Path) -> Path:
    """Take one file; it is in its place only when it is whole.

    Args:
        answers: its pieces, and then its SHA-256.
        name: as the server calls it.
        out: the folder.

    Raises:
        MessageError: the name leads elsewhere, or what came is not what was sent.
    """
    if not _NAME.fullmatch(name):
        raise MessageError(f"{name[:100]!r} is no name of a file", where="server", remedy="look at that server")
    answer: Any = {}
    seen, part = hashlib.sha256(), out / f".{name}.part"
    with part.open("wb") as file:
        async for answer in answers:
            if "piece" not in answer:
                break
            seen.update(answer["piece"])
            file.write(answer["piece"])
    if answer.get("sha256") != seen.hexdigest():
        raise MessageError(f"{name} did not arrive whole", where=str(out), remedy="fetch it again")
    return part.replace(out / name)
