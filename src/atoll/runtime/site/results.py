"""The named results that stay at a site, as its daemon keeps them: a job's process reads them, and has no way to write one but to ask.

A result of a job replaces an older one of its name. A record, which a task has left at once (`Island.leave`), such as what
the site has answered, may only grow: no later job, whoever has signed it, makes it shorter.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path
from typing import Any

import numpy as np

from atoll.core import message
from atoll.core.errors import AtollError, CheckpointError, MessageError, PolicyError
from atoll.core.persistence.named_results import file_of, place_of
from atoll.core.requests.wire import pack_error
from atoll.runtime.confinement.folders import HeldFolder

from ..daemon.place import results_of

__all__ = ["SiteResults", "extends"]

_LONGEST_NAME = 400
_LONGEST_FILE = 1 << 40
_RECORD = ".record"
"""Ends the name of an empty file that says that a result is a record."""


class SiteResults:
    """The results of a site.

    Args:
        folder: the site's own.
        site: the site's name: its clients are called so, or ``site/client``.
        helper: whether it has no clients; what it plays has names of its own.
        most: bytes that one job may leave.
    """

    def __init__(self, folder: Path, site: str, helper: bool, most: int) -> None:
        self._place, self._site, self._helper, self._most = results_of(folder), site, helper, most
        self._sizes: dict[str, dict[tuple[str, str], int]] = {}
        self._one = threading.Lock()

    async def answer(self, job: str, frame: Any) -> dict[str, Any]:
        """Answer a job's process; what it leaves is durable when this returns."""
        return await asyncio.to_thread(self._answer, job, frame)

    def _answer(self, job: str, frame: Any) -> dict[str, Any]:
        try:
            with self._one:
                self._put(job, *self._check_name(frame), frame["value"], frame.get("at_once") is True)
            return {"ok": True}
        except AtollError as error:
            return {"error": pack_error(error)}
        except OSError as error:
            what = f"a result cannot be kept: {error.strerror or error}"
            return {"error": pack_error(CheckpointError(what, where="results", remedy="free space at the site"))}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            what = f"a job's process sent no result: {type(error).__name__}"
            return {"error": pack_error(MessageError(what, where="results", remedy="look at the job's own code"))}

    def _check_name(self, frame: Any) -> tuple[str, str]:
        """The party and the name, if a result may be called so."""
        party, name = frame["party"], frame["name"]
        own = isinstance(party, str) and (self._helper or party.partition("/")[0] == self._site)
        if not own or not 0 < len(party) <= _LONGEST_NAME:
            raise MessageError(
                f"{party!r:.100} is no party of site {self._site!r}",
                where="results",
                remedy="look at the job's own code",
            )
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_NAME or not name.isprintable():
            raise MessageError(
                f"{name!r:.100} is not the name of a result", where="results", remedy="look at the job's own code"
            )
        return party, name

    def _put(self, job: str, party: str, name: str, value: Any, at_once: bool) -> None:
        content = message.encode(file_of(party, name, job, value))
        mine = self._sizes.setdefault(job, {})
        left = sum(size for key, size in mine.items() if key != (party, name))
        if left + len(content) > self._most:
            raise PolicyError(
                f"the job has left results of {left + len(content):,} bytes, more than the {self._most:,} that jobs may write here",
                where=party,
                remedy="let the job leave less, or start the site with --scratch and a larger size",
            )
        folder, file = place_of(party, name)
        mark = file.removesuffix(".msg") + _RECORD
        with HeldFolder.open(self._place, folder, make=True) as held:
            record = at_once or not held.fault_of(mark)
            if record and not held.fault_of(file):
                self._require_grown(message.decode(held.read(file, _LONGEST_FILE)), value, party, name)
            if record:
                with contextlib.suppress(FileExistsError):
                    held.create(mark, b"")
            held.write(file, bytes(content))
        mine[party, name] = len(content)

    @staticmethod
    def _require_grown(known: Any, value: Any, party: str, name: str) -> None:
        if not extends(known.get("value") if isinstance(known, dict) else None, value):
            raise PolicyError(
                f"{name!r} is a record of {party}, which may only grow, and the job leaves less",
                where=party,
                remedy="look at the job's own code; a person at the site can remove the file in the site's folder results",
            )


def extends(old: Any, new: Any) -> bool:
    """Tell whether a message tree has all that another has: the same leaves, all keys of its dicts, and its lists as beginnings of longer ones."""
    if isinstance(old, dict):
        return isinstance(new, dict) and all(key in new and extends(value, new[key]) for key, value in old.items())
    if isinstance(old, list | tuple):
        return (
            isinstance(new, list | tuple)
            and len(new) >= len(old)
            and all(extends(a, b) for a, b in zip(old, new, strict=False))
        )
    if isinstance(old, np.ndarray):
        return (
            isinstance(new, np.ndarray)
            and (old.dtype, old.shape) == (new.dtype, new.shape)
            and old.tobytes() == np.ascontiguousarray(new).tobytes()
        )
    return type(old) is type(new) and bool(old == new or (old != old and new != new))  # NaN is NaN
