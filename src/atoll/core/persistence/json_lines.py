"""Records as JSON lines."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ..errors import CheckpointError

__all__ = ["as_json", "read_lines"]


def as_json(value: Any, indent: int | None = None) -> str:
    """Standard JSON: NumPy numbers become plain numbers, and non-finite ones become null."""
    return json.dumps(_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines; an incomplete last line was cut short by a crash and is skipped.

    Raises:
        CheckpointError: the file cannot be read, or another line is damaged.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(f"cannot be read: {said}", where=str(path), remedy="restore the file") from error
    rows = []
    whole = text[: text.rfind("\n") + 1]
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
        except ValueError as error:
            raise CheckpointError(
                f"the line is damaged: {error}",
                where=f"{path}, line {number}",
                remedy="resume the run, which writes the file again from its checkpoint",
            ) from error
        rows.append(row)
    return rows
