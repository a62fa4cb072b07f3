"""Measure whether a process works: the processor time that it and its descendants have used."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Effort", "cpu_seconds", "started_seconds"]

_MOVED = 1e-3
"""Seconds of processor time between two looks that count as work, not waiting."""


class _Process(NamedTuple):
    """One line of /proc; times in ticks."""

    pid: int
    parent: int
    group: int
    own: int
    ended: int  # of its children that have ended and were waited for


def cpu_seconds(group: int) -> float:
    """Return the processor seconds of all processes of a group, including children already waited for; 0 without /proc."""
    return _seconds(sum(one.own + one.ended for one in _processes() if one.group == group))


def started_seconds() -> float:
    """Return the processor seconds of this process's descendants and, if it or its parent leads its process group, of everyone else in the group."""
    me = os.getpid()
    found = {one.pid: one for one in _processes()}
    if me not in found:
        return 0.0
    group = found[me].group
    # A guardian may lead it, whose children orphans become; in a sandbox the group's leader is outside, which is 0.
    led = group in (me, found[me].parent, 0)
    mine = {pid for pid, one in found.items() if led and one.group == group} | {me}
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
    """Tell, look by look, whether a process has worked since the last look; by default this process.

    Work of its descendants counts too: a task may start another program and wait for it.

    Args:
        own: returns the seconds of processor time of the process.
        started: returns the seconds of what the process has started; None if ``own`` includes them. Systems count in
            steps of 10 ms, and an idle process uses such a step now and then. So only more than 1 ms a look, averaged
            since the last work, counts as work.
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
        """Tell whether there was work since the last look."""
        now = self._own()
        moved, self._before = now - self._before > _MOVED, now
        if moved or self._started is None:
            self._others = None
            return moved
        moved = self._others_moved(self._started())
        self._before = self._own()  # measuring takes processor time too
        return moved

    def _others_moved(self, now: float) -> bool:
        self._looks += 1
        if self._others is not None and now - self._others <= _MOVED * self._looks and now >= self._others:
            return False
        moved = self._others is not None and now > self._others
        self._others, self._looks = now, 0
        return moved
