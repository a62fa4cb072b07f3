"""How a daemon confines its jobs: in a sandbox where the machine has one, and who insists on it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from atoll.core.errors import ConfigError

from .bubblewrap import command, program, why_not
from .system_calls import why_open
from .walls import JobLimits, Walls

__all__ = ["INSTALL", "MODES", "SCRATCH", "UNCONFINED", "Confinement", "confinement"]

Mode = Literal["auto", "always", "never"]
MODES: tuple[Mode, ...] = ("auto", "always", "never")
INSTALL = "install bubblewrap (apt-get install bubblewrap), and let users make namespaces"
"""What to do where jobs cannot be confined."""
_PROCESSES, _FILES, _SIZE = 1024, 1 << 16, 64 << 30
SCRATCH = 64 << 30
"""Bytes that a job may write in total, unless the operator says otherwise."""


@dataclass(frozen=True)
class Confinement:
    """How the jobs of a daemon are confined.

    Attributes:
        program: the path of bubblewrap; empty if jobs are not confined.
        why: why they are not.
        network: whether they may use the machine's network.
        reads: files and folders that every job may read.
        hides: folders that no job may see: the kit, and the daemon's own.
        scratch: bytes that a job may write in total, confined or not.
    """

    program: str = ""
    why: str = ""
    network: bool = False
    reads: tuple[Path, ...] = ()
    hides: tuple[Path, ...] = ()
    scratch: int = SCRATCH

    @property
    def confined(self) -> bool:
        """Tell whether jobs are confined."""
        return bool(self.program)

    def __str__(self) -> str:
        if not self.confined:
            rest = f", and system calls are open: {why_open()}" if why_open() else ""
            return f"jobs are not confined: {self.why}. A job can do whatever the user of this process can{rest}"
        where = "with this machine's network" if self.network else "without a network"
        calls = f"system calls are open: {why_open()}" if why_open() else "system calls that no job needs are shut"
        return f"jobs are confined by bubblewrap, {where}; {calls}"

    def hiding(self, *folders: Path) -> Confinement:
        """Return it with folders that no job may see."""
        return replace(self, hides=(*self.hides, *(folder.resolve() for folder in folders)))

    def command(self, child: Sequence[str], walls: Walls) -> list[str]:
        """Return the command line that runs a child between walls, or the child's own if jobs are not confined."""
        if not self.confined:
            return list(child)
        walls = replace(walls, reads=(*self.reads, *walls.reads), hides=(*self.hides, *walls.hides))
        return command(self.program, walls, child, self.network)

    def limits(self, memory: int, devices: bool = False) -> JobLimits:
        """Return what a job's process may take.

        Args:
            memory: the bytes that it has been granted; 0 if it asked for none, and then it is the machine's memory.
            devices: whether it uses accelerators, whose drivers reserve more addresses than there is memory.
        """
        if not self.confined:
            return JobLimits(memory)
        return JobLimits(memory or (0 if devices else _machine()), _PROCESSES, _FILES, _SIZE)


def _machine() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


UNCONFINED = Confinement(why="nobody asked for it")


def confinement(
    mode: str = "auto", *, network: bool = False, show: Sequence[Path] = (), where: str = "--confine"
) -> Confinement:
    """Return how jobs are confined on this machine.

    Args:
        mode: ``auto``: where it is possible; ``always``: or not at all; ``never``.
        network: let jobs use the machine's network.
        show: files and folders that jobs may read.
        where: who asks, for errors.

    Raises:
        ConfigError: the mode is unknown, a path is not there, or jobs must be confined and cannot be.
    """
    if mode not in MODES:
        raise ConfigError(f"{mode!r} is not a way to confine jobs", where="--confine", remedy=f"use {', '.join(MODES)}")
    for path in show:
        if not path.exists():
            raise ConfigError(f"there is no file or folder {str(path)!r}", where="--show", remedy="correct the path")
    if mode == "never":
        return Confinement(why="--confine never says so")
    found = program()
    why = "bubblewrap is not installed" if found is None else why_not(found, network)
    if found is not None and not why:
        return Confinement(found, "", network, tuple(path.resolve() for path in show))
    if found is not None:
        why = f"bubblewrap cannot make a sandbox here ({why})"
    if mode == "always":
        raise ConfigError(f"jobs must be confined, and {why}", where=where, remedy=INSTALL)
    return Confinement(why=why)
