"""Who owns a folder: another site would take the files there for its own, and remove them."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from atoll.core.errors import ConfigError
from atoll.runtime.provision import Kit
from atoll.runtime.provision.files import make_folder

__all__ = ["take_folder"]

_OWNER = "owner"


def take_folder(folder: Path, kit: Kit) -> None:
    """Make a party's folder and write its owner's name into it. Later processes of the same party may use it too.

    Args:
        folder: the folder.
        kit: the party's kit.

    Raises:
        ConfigError: it is another party's, or cannot be made or written.
    """
    make_folder(folder, "--folder")  # private states are private to this user
    me = f"{kit.role} {kit.name!r} of project {kit.project!r}"
    try:
        with (folder / _OWNER).open("a+", encoding="utf-8", errors="replace") as file:
            owner = _owner(file, me)
    except OSError as error:
        raise ConfigError(
            f"the folder cannot be written: {error.strerror or error}",
            where=str(folder),
            remedy="free space, let this user write there, or choose another --folder",
        ) from error
    if owner != me:
        raise ConfigError(
            f"the folder belongs to {owner}, but this is {me}",
            where=str(folder),
            remedy="give each its own --folder, or move this one away if you do not need it",
        )


def _owner(file: IO[str], me: str) -> str:
    """Return the owner that is written down; the first to come is written, even if two come at once."""
    try:
        import fcntl
    except ImportError:  # not on POSIX: avoid starting two at once
        pass
    else:
        fcntl.flock(file, fcntl.LOCK_EX)  # until the file is closed
    file.seek(0)
    found = file.read().strip()
    if not found:
        file.write(f"{me}\n")
    return found or me
