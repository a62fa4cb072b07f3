"""Whether a process works: the processor time that it, and what it has started, has used."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Effort", "cpu_seconds", "started_seconds"]

_MOVED = 1e-3
"""Seconds of processor time between two looks that are work, not waiting."""


class _Process(NamedTuple):
    """One line of /proc; times in ticks."""

    pid: int
    parent: int
    group: int
    own: int
    ended: int  # of its children that have ended and were waited for


def cpu_seconds(group: int) -> float:
    """Seconds of processor time of all processes of a group, waited-for children included; 0 where there is no /proc."""
    return _seconds(sum(one.own + one.ended for one in _processes() if one.group == group))


def started_seconds() -> float:
    """The same of what this process has started: its descendants, and of its group, where it leads one, whoever else is left."""
    me = os.getpid()
    found = {one.pid: one for one in _processes()}
    if me not in found:
        return 0.0
    mine = {pid for pid, one in found.items() if one.group == me} | {me}
    more = mine
    while more:
        more = {pid for pid, one in found.items() if one.parent in more} - mine
        mine |= more
    return _seconds(sum(found[pid].own + found[pid].ended for pid in mine) - found[me].own)


def _seconds(ticks: int) -> float:
    return ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0


def _processes() -> Iterator[_Process]:
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # proc(5): after the name in brackets, fields 4 and 5 are parent and group, and 14 to 17 are user and system time.
            fields = path.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
            user, system, ended, ended_system = (int(fields[i]) for i in (11, 12, 13, 14))
            yield _Process(int(path.parent.name), int(fields[1]), int(fields[2]), user + system, ended + ended_system)


class Effort:
    """Looks now and then at whether a process has worked since: by default this one.

    What it has started counts too: a task may hand its computation to another program and wait for that.

    Args:
        own: seconds of its processor time.
        started: of what it has started; None where ``own`` counts that as well. Systems count it in steps of 10 ms, of which an idle process makes one now and then: it is work where it is
            more than 1 ms a look, since it was work last.
    """

    def __init__(
        self,
        own: Callable[[], float] = time.process_time,
        started: Callable[[], float] | None = started_seconds,
    ) -> None:
        self._own = own
        self._started = started
        self._before = own()
        self._others: float | None = None
        self._looks = 0

    def moved(self) -> bool:
        """Whether there was work since the last look."""
        now = self._own()
        moved, self._before = now - self._before > _MOVED, now
        if moved or self._started is None:
            self._others = None
            return moved
        moved = self._others_moved(self._started())
        self._before = self._own()  # looking takes time too
        return moved

    def _others_moved(self, now: float) -> bool:
        self._looks += 1
        if self._others is not None and now - self._others <= _MOVED * self._looks and now >= self._others:
            return False
        moved = self._others is not None and now > self._others
        self._others, self._looks = now, 0
        return moved
