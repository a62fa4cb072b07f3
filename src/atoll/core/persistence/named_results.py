"""Named results: values that tasks leave at their parties for later, such as half of a model, an answer or an index.

While a job runs, the values of `Island.leave` are private state in their own slot: after a crash they return to the checkpoint with the party's other states,
and a sum that fails leaves nothing. When the job's program has ended well, each party writes its results here, one file each. They never leave the party.

A *record*, which a task has left at once, such as what a party has answered, may only grow: of two jobs that have read the same record, the second to write it is refused, and its answer does not leave.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from ..algebra.tree import Tree
from ..errors import CheckpointError, ConfigError, PolicyError, nearest
from .files import read_message, write_message

__all__ = ["MARK", "NamedResult", "NamedResults", "file_of", "place_of", "require_grown", "require_name", "slot_of"]

MARK = "//@"
"""Separates a scope's slot from the name of a result, in the slot that keeps it until the job has ended."""

_ONE_WRITER = threading.Lock()
"""Jobs of one process write records held in memory one after the other. It is not the results' own, which travel to other processes and cannot take a lock along."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def require_name(name: str) -> None:
    """Refuse a text that is not a valid name of a result.

    Raises:
        ConfigError: it is not valid.
    """
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigError(
            f"{name!r:.120} is not a valid name of a result",
            where="island.leave",
            remedy="use at most 100 letters, digits and . _ - and begin with a letter or digit",
        )


def slot_of(home: str, name: str) -> str:
    """The slot in which a party keeps a result of a scope until the job has ended."""
    return f"{home.partition('//')[0]}{MARK}{name}"


def file_of(party: str, name: str, job: str, value: Tree) -> dict[str, Any]:
    """The content of a result's file."""
    saved = datetime.now(UTC).isoformat(timespec="seconds")
    return {"party": party, "name": name, "job": job, "saved": saved, "value": value}


def place_of(party: str, name: str) -> tuple[str, str]:
    """The names of a result's folder and file."""
    return quote(party, safe=""), f"{quote(name, safe='')}.msg"


def require_grown(known: Any, value: Any, party: str, name: str) -> None:
    """Refuse a record that lacks what its file has: the job, or another one that wrote meanwhile, has been told it.

    Args:
        known: the content of the file; see `file_of`.
        value: the new value.
        party: the party.
        name: the name.

    Raises:
        PolicyError: names the record.
    """
    if not _extends(known.get("value") if isinstance(known, dict) else None, value):
        raise PolicyError(
            f"{name!r} is a record of {party}, which may only grow, and the job leaves less",
            where=party,
            remedy="run the job again, if another one has written meanwhile; else look at the job's own code, or let a person at the site remove the file in the site's folder results",
        )


def _extends(old: Any, new: Any) -> bool:
    """Tell whether a message tree has all that another has: the same leaves, all keys of its dicts, and its lists as beginnings of longer ones."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and _extends(value, new[key]) for key, value in old.items())
    if isinstance(old, list | tuple):
        return (
            isinstance(new, list | tuple)
            and len(new) >= len(old)
            and all(_extends(a, b) for a, b in zip(old, new, strict=False))
        )
    if isinstance(old, np.ndarray):
        return (
            isinstance(new, np.ndarray)
            and (old.dtype, old.shape) == (new.dtype, new.shape)
            and old.tobytes() == np.ascontiguousarray(new).tobytes()
        )
    return type(old) is type(new) and bool(old == new or (old != old and new != new))  # NaN is NaN


@dataclass(frozen=True)
class NamedResult:
    """One result.

    Attributes:
        party: the party that has it.
        name: its name; a result that was left in a scope of the program has the scope's name before it, ``scope/name``.
        job: the id of the job that left it; empty in a simulation.
        saved: when it was saved, as ISO 8601 in UTC.
        nbytes: size of its file.
        path: path of its file.
    """

    party: str
    name: str
    job: str
    saved: str
    nbytes: int
    path: Path


class NamedResults:
    """The results that stay at the parties of one place. A newer result replaces an older one of the same name.

    Args:
        folder: has one folder a party, and one file a result; ``None`` keeps them in memory.
        job: the job that leaves results now.
    """

    def __init__(self, folder: Path | None = None, job: str = "") -> None:
        self.folder = folder
        self.job = job
        self._held: dict[tuple[str, str], Tree] = {}

    def put(self, party: str, name: str, value: Tree, *, at_once: bool = False) -> None:
        """Store a result; durable when this returns.

        Args:
            party: the party.
            name: the name.
            value: a message tree.
            at_once: whether the task left it at once, see `Island.leave`; such a record may only grow.

        Raises:
            CheckpointError: it cannot be written; an older one stays intact.
            PolicyError: it is a record that would lose something, which another job may have written meanwhile.
        """
        if self.folder is None:
            with _ONE_WRITER:
                if at_once and (party, name) in self._held:
                    require_grown({"value": self._held[party, name]}, value, party, name)
                self._held[party, name] = value
            return
        path = self._path(party, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.parent) if at_once else contextlib.nullcontext():
            if at_once and path.exists():
                require_grown(self._read(path), value, party, name)
            write_message(path, file_of(party, name, self.job, value))

    def get(self, party: str, name: str) -> Any:
        """The value of a result.

        Raises:
            ConfigError: the party has no result of this name.
            CheckpointError: its file is damaged.
        """
        if (party, name) in self._held:
            return self._held[party, name]
        if self.folder is None or not self._path(party, name).exists():
            known = [key for who, key in self._held if who == party] or [one.name for one in self.all(party)]
            raise ConfigError(
                f"{party} has no result named {name!r}.{nearest(name, known)}",
                where="island.left",
                remedy=f"use one of {', '.join(known)}"
                if known
                else "first run the job that leaves it: island.leave(name, value)",
            )
        return self._read(self._path(party, name))["value"]

    def all(self, party: str | None = None) -> list[NamedResult]:
        """The results in the folder, of one party or of all, sorted.

        Raises:
            CheckpointError: a file is damaged.
        """
        if self.folder is None or not self.folder.is_dir():
            return []
        whose = "*" if party is None else quote(party, safe="")
        found = []
        for path in sorted(path for folder in self.folder.glob(whose) for path in folder.glob("*.msg")):
            said = self._read(path)
            found.append(
                NamedResult(said["party"], said["name"], said["job"], said["saved"], path.stat().st_size, path)
            )
        return found

    def remove(self, party: str, name: str) -> None:
        """Remove a result, if it is there."""
        self._held.pop((party, name), None)
        if self.folder is not None:
            path = self._path(party, name)
            for one in (path, path.with_suffix(".record")):
                one.unlink(missing_ok=True)

    def _path(self, party: str, name: str) -> Path:
        if self.folder is None:
            raise ConfigError("these results are only in memory", remedy="give the run a folder")
        folder, file = place_of(party, name)
        return self.folder / folder / file

    @staticmethod
    def _read(path: Path) -> dict[str, Any]:
        said = read_message(path)
        if not isinstance(said, dict) or set(said) != {"party", "name", "job", "saved", "value"}:
            raise CheckpointError("the file is not a result", where=str(path), remedy="remove it; run its job again")
        return said


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other processes from writing records of a party; the system releases the lock when this one dies."""
    with (folder / ".lock").open("a") as file:
        with contextlib.suppress(ImportError):  # not on POSIX: no lock, so users must not run two jobs over one folder
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        yield
