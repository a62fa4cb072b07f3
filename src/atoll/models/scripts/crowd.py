"""The scripts of all clients that one worker serves: started when they are needed, and no more of them at once than allowed."""

from __future__ import annotations

import logging
import multiprocessing
import multiprocessing.util
import os
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, MutableMapping

from .running import RunningScript

__all__ = ["ScriptCrowd"]

_GRACE, _IN_WORKER = 10.0, 3.0
"""Seconds for scripts to end by themselves once their rounds are over; an engine waits less for its workers."""

_LOG = logging.getLogger("atoll.models")


class ScriptCrowd:
    """Running scripts by client, those used last at the end.

    Args:
        most: how many run at once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._running: OrderedDict[str, RunningScript] = OrderedDict()
        self._owner = os.getpid()
        self._watched = False

    def at(self, client: str, start: Callable[[], RunningScript]) -> RunningScript:
        """Return a client's script, which begins now if it does not run."""
        self._claim()
        found = self._running.pop(client, None)
        if found is None:
            while len(self._running) >= self._most:
                self._end(next(iter(self._running)))
            found = start()
        self._running[client] = found
        return found

    def drop(self, client: str) -> None:
        """Kill a client's script."""
        found = self._running.pop(client, None)
        if found is not None:
            found.kill()

    def end(self, client: str) -> None:
        """Let a client's script end by itself."""
        if client in self._running:
            self._end(client)

    def close(self) -> None:
        """Let all scripts end."""
        if self._owner == os.getpid():
            _end_all(self._running, _GRACE)

    def _end(self, client: str) -> None:
        _end_all({client: self._running.pop(client)}, _GRACE)

    def _claim(self) -> None:
        """Own this crowd: a forked worker has a copy of its parent's, whose scripts are not its own."""
        if self._owner != os.getpid():
            self._owner, self._running, self._watched = os.getpid(), OrderedDict(), False
        if not self._watched:
            self._watched = True
            weakref.finalize(self, _end_all, self._running, _GRACE)
            if multiprocessing.parent_process() is not None:  # its exit runs no other finalizers
                multiprocessing.util.Finalize(self, _end_all, (self._running, _IN_WORKER), exitpriority=10)


def _end_all(running: MutableMapping[str, RunningScript], seconds: float) -> None:
    """Say to all scripts that the rounds are over, and wait for their ends together."""
    ending = []
    while running:
        ending.append(running.popitem()[1])
        ending[-1].finish()
    until = time.monotonic() + seconds
    for script in ending:
        wrong = script.ended_by(until)
        if wrong:
            _LOG.warning("%s", wrong)
