"""Folders that a job may write, as its daemon handles them: by handle, never by path.

A job may put a link, a pipe, a closed folder or a thousand nested ones wherever it may write. A path that a daemon opens
there leads where the job wants. So a daemon opens the folder, which it has made itself, and from there one name at a time
(``openat(2)`` with ``O_NOFOLLOW``): it reads regular files with one name alone, up to a size, creates files that were not
there (``O_EXCL``), and counts and removes what lies there without following anything.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

__all__ = ["DEEPEST", "HeldFolder", "UnmeasuredError", "clear_removed", "measure_folders", "remove_tree"]

DEEPEST = 200
"""Folders within folders that are measured; nothing needs more."""
_FOLDER = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_BLOCK = 512
"""Bytes of a block of ``st_blocks``, whatever the file system's own are."""
_PLAIN_FOLDER = 4096
"""Bytes of a folder with few names, which count nothing."""
_ENTRY = 256
"""Bytes of a name at least: of an inode without a block."""
_REMOVED = ".removing-"
"""Begins the name of a folder in which something is on its way out."""


class UnmeasuredError(OSError):
    """What a job has written cannot be counted, because it lies deeper than folders lie or in a folder that stays closed."""


class HeldFolder:
    """A folder that a daemon has open; names in it are looked up in this very folder, wherever it is moved.

    Use it as a context.

    Attributes:
        handle: its descriptor.
    """

    def __init__(self, handle: int) -> None:
        self.handle = handle

    @classmethod
    def open(cls, path: Path, *below: str, make: bool = False) -> Self:
        """Open a folder.

        Args:
            path: a folder in which no job writes; links on the way to it are the operator's.
            below: names from there on, none of which may be a link.
            make: make those that are missing, for this user alone.

        Raises:
            OSError: there is no such folder, or a name is something else.
        """
        if make:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(path, _FOLDER if below else _FOLDER & ~getattr(os, "O_NOFOLLOW", 0))
        try:
            for name in below:
                _require_name(name)
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=handle)
                # Below the handle, not by path: a job could swap a folder on the way for a link between a check and the opening.
                inner = os.open(name, _FOLDER, dir_fd=handle)
                os.close(handle)
                handle = inner
        except BaseException:
            os.close(handle)
            raise
        return cls(handle)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close it."""
        os.close(self.handle)

    def names(self) -> list[str]:
        """Return the names in it, sorted; those that begin with a dot are left out."""
        return sorted(name for name in os.listdir(self.handle) if not name.startswith("."))

    def fault_of(self, name: str) -> str:
        """Return why a name is not a plain file of this folder, in words; nothing if it is one."""
        try:
            found = os.stat(name, dir_fd=self.handle, follow_symlinks=False)
        except OSError as error:
            return error.strerror or str(error)
        return _fault(found)

    def open_file(self, name: str) -> IO[bytes]:
        """Open a plain file for reading.

        Raises:
            OSError: it is a link, a pipe, a folder, or a second name of a file that may lie elsewhere.
        """
        _require_name(name)
        handle = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_LINK, dir_fd=self.handle)
        try:
            if fault := _fault(os.fstat(handle)):
                raise OSError(errno.EINVAL, f"{name} is {fault}")
            return os.fdopen(handle, "rb")
        except BaseException:
            os.close(handle)
            raise

    def read(self, name: str, most: int) -> bytes:
        """Return the content of a plain file.

        Args:
            name: the file.
            most: bytes that it may have.

        Raises:
            OSError: it is not a plain file, or longer.
        """
        with self.open_file(name) as file:
            content = file.read(min(most, os.fstat(file.fileno()).st_size) + 1)
        if len(content) > most:
            raise OSError(errno.EFBIG, f"{name} has more than {most} bytes")
        return content

    def create(self, name: str, content: bytes) -> None:
        """Write a file that was not there, durably, readable by this user alone.

        Raises:
            OSError: something of that name is there, or the disk is full.
        """
        _require_name(name)
        handle = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINK, 0o600, dir_fd=self.handle)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.fsync(self.handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(name, dir_fd=self.handle)
            raise

    def write(self, name: str, content: bytes) -> None:
        """Replace a file, or whatever else has its name, atomically and durably.

        Raises:
            OSError: the disk is full, or a folder has the name; what was there is unchanged.
        """
        _require_name(name)
        aside = f".{secrets.token_hex(8)}.tmp"
        self.create(aside, content)
        try:
            os.rename(aside, name, src_dir_fd=self.handle, dst_dir_fd=self.handle)
        except OSError:
            with contextlib.suppress(OSError):
                os.unlink(aside, dir_fd=self.handle)
            raise
        os.fsync(self.handle)

    def remove(self, name: str) -> None:
        """Remove whatever has a name: a file, or a folder with all that is in it, however deep, however closed.

        A nested folder is first moved to the top, so that no path grows and no stack does.

        Raises:
            OSError: this user may not, or something goes on writing there.
        """
        _require_name(name)
        grave = f"{_REMOVED}{secrets.token_hex(8)}"
        os.mkdir(grave, 0o700, dir_fd=self.handle)
        try:
            with contextlib.suppress(FileNotFoundError):
                _take(self.handle, name, self.handle, f"{grave}/{0}")
        finally:
            _bury(self.handle, grave)


def remove_tree(path: Path) -> None:
    """Remove a folder with all that is in it, see `HeldFolder.remove`; nothing happens if it is not there.

    Raises:
        OSError: this user may not, or something goes on writing there.
    """
    with contextlib.suppress(FileNotFoundError), HeldFolder.open(path.parent) as above:
        if _there(above.handle, path.name):
            above.remove(path.name)


def clear_removed(path: Path) -> None:
    """Remove what was on its way out of a folder when its process was killed.

    Raises:
        OSError: this user may not.
    """
    with contextlib.suppress(FileNotFoundError), HeldFolder.open(path) as held:
        for name in os.listdir(held.handle):
            if name.startswith(_REMOVED):
                _bury(held.handle, name)


def measure_folders(folders: Iterable[Path]) -> int:
    """Return the bytes on disk of all files in some folders: holes count nothing, a file with two names counts once, and links are not followed.

    A folder that is closed to this user, who owns it, is opened.

    Raises:
        UnmeasuredError: a folder stays closed, or folders lie more than `DEEPEST` deep.
    """
    known, total = set[tuple[int, int]](), 0
    for folder in folders:
        with contextlib.suppress(FileNotFoundError), HeldFolder.open(folder.parent) as above:
            if (handle := _enter_folder(above.handle, folder.name)) is not None:
                total += sum(_sizes(handle, known))
    return total


def _sizes(top: int, known: set[tuple[int, int]]) -> Iterator[int]:
    """Yield the bytes of everything below a folder, which is closed at the end."""
    path: list[tuple[int, list[str]]] = []
    handle: int | None = top
    try:
        while handle is not None or path:
            if handle is not None:
                names: list[str] = []
                path.append((handle, names))
                yield max(0, _blocks(os.fstat(handle)) - _PLAIN_FOLDER)
                handle = None
                with os.scandir(path[-1][0]) as entries:
                    for entry in entries:
                        if entry.is_dir(follow_symlinks=False):
                            names.append(entry.name)
                        else:
                            with contextlib.suppress(FileNotFoundError):
                                yield _once(entry.stat(follow_symlinks=False), known)
            elif path[-1][1]:
                if len(path) > DEEPEST:
                    raise UnmeasuredError(f"folders lie more than {DEEPEST} deep")
                handle = _enter_folder(path[-1][0], path[-1][1].pop())
            else:
                os.close(path.pop()[0])
    finally:
        for held in (*(held for held, _ in path), *(() if handle is None else (handle,))):
            os.close(held)


def _once(found: os.stat_result, known: set[tuple[int, int]]) -> int:
    if found.st_nlink > 1:
        if (found.st_dev, found.st_ino) in known:
            return 0
        known.add((found.st_dev, found.st_ino))
    return max(_blocks(found), _ENTRY)


def _blocks(found: os.stat_result) -> int:
    return int(getattr(found, "st_blocks", -(-found.st_size // _BLOCK))) * _BLOCK


def _enter_folder(above: int, name: str) -> int | None:
    """Open a folder in another; None if it has gone, or become something else."""
    try:
        for opening in (False, True):
            if opening:
                _unclose(above, name)
            with contextlib.suppress(PermissionError):
                return _searchable(os.open(name, _FOLDER, dir_fd=above))
    except PermissionError:
        pass
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
            return None
        raise UnmeasuredError(str(error)) from error
    raise UnmeasuredError(f"the folder {name[:100]!r} stays closed")


def _searchable(handle: int) -> int:
    try:
        os.stat(".", dir_fd=handle)
    except OSError:
        os.close(handle)
        raise
    return handle


def _unclose(above: int, name: str) -> None:
    """Let this user into a folder that it owns; not into what a link leads to."""
    if not hasattr(os, "O_PATH"):  # not Linux
        os.chmod(name, 0o700, dir_fd=above, follow_symlinks=False)
        return
    handle = os.open(name, os.O_PATH | os.O_DIRECTORY | _NO_LINK, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{handle}", 0o700)
    finally:
        os.close(handle)


def _take(above: int, name: str, to: int, other: str) -> None:
    """Move a name elsewhere; a folder must be open to its owner for that."""
    with contextlib.suppress(NotADirectoryError, OSError):
        _unclose(above, name)
    os.rename(name, other, src_dir_fd=above, dst_dir_fd=to)


def _bury(above: int, grave: str) -> None:
    """Remove a folder whose content no job reaches any more."""
    top = os.open(grave, _FOLDER, dir_fd=above)
    number = 0
    try:
        while left := os.listdir(top):
            for name in left:
                if not _is_folder(top, name):
                    os.unlink(name, dir_fd=top)
                    continue
                _unclose(top, name)
                inner = os.open(name, _FOLDER, dir_fd=top)
                try:
                    for one in os.listdir(inner):
                        if _is_folder(inner, one):
                            number += 1
                            _take(inner, one, top, f"{number}-{secrets.token_hex(4)}")
                        else:
                            os.unlink(one, dir_fd=inner)
                finally:
                    os.close(inner)
                with contextlib.suppress(FileNotFoundError):
                    os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(grave, dir_fd=above)


def _is_folder(above: int, name: str) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _there(above: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=above, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def _fault(found: os.stat_result) -> str:
    kinds = {stat.S_IFLNK: "a link", stat.S_IFDIR: "a folder", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket"}
    if not stat.S_ISREG(found.st_mode):
        return kinds.get(stat.S_IFMT(found.st_mode), "a device")
    return "" if found.st_nlink == 1 else "a second name of a file"


def _require_name(name: str) -> None:
    """Refuse what is not one name."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise OSError(errno.EINVAL, f"{name[:100]!r} is not the name of a file")
