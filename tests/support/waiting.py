"""Waiting for a condition without sleeping on the clock, and looking at folders that other processes still change."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from pathlib import Path

__all__ = ["find_files", "read_files", "until"]


async def until(found: Callable[[], object], seconds: float = 120.0) -> None:
    """Let others run until something is true."""
    async with asyncio.timeout(seconds):
        while not found():
            await asyncio.sleep(0.005)


def find_files(folder: Path) -> list[Path]:
    """Return the files below a folder in which others work: what goes away meanwhile is left out, where `Path.rglob` raises."""
    return [path for place, _, names in os.walk(folder) for name in names if (path := Path(place, name)).is_file()]


def read_files(folder: Path) -> dict[Path, bytes]:
    """Return what the files below a folder hold, of those that are still there when their turn comes."""
    found = {}
    for path in find_files(folder):
        with contextlib.suppress(FileNotFoundError):
            found[path] = path.read_bytes()
    return found
