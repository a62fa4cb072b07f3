"""How much a job may write in total. The system bounds single files only, so the daemon measures a job's folders now and then."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable
from pathlib import Path

__all__ = ["beyond", "written"]

_EVERY = 2.0
"""Seconds between two looks, at least; a look takes at most a tenth of the time."""
_BLOCK = 512
"""Bytes of a block of ``st_blocks``, whatever the file system's own are."""


def written(folders: Iterable[Path]) -> int:
    """Return the bytes on disk of all files in some folders: holes count nothing, a file with two names counts once, and links are not followed."""
    total, known, left = 0, set[tuple[int, int]](), [os.fspath(folder) for folder in folders]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError:  # it went while we looked
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif (found.st_dev, found.st_ino) not in known:
                        if found.st_nlink > 1:
                            known.add((found.st_dev, found.st_ino))
                        total += getattr(found, "st_blocks", -(-found.st_size // _BLOCK)) * _BLOCK
        except OSError:  # a folder that went, or that the job closed to us
            continue
    return total


async def beyond(folders: Iterable[Path], most: int, every: float = _EVERY) -> int:
    """Return, as soon as a look finds more than ``most`` bytes in the folders, how many there are."""
    places, loop = tuple(folders), asyncio.get_running_loop()
    while True:
        begun = loop.time()
        found = await asyncio.to_thread(written, places)
        if found > most:
            return found
        await asyncio.sleep(max(every, 9 * (loop.time() - begun)))
