"""Worlds that run the waist: inline, batched, processes and a loopback socket. They know tasks, never algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .batched import Batched
from .inline import Inline
from .processes import LoopbackSocket, Processes

__all__ = ["ENGINES", "Batched", "Inline", "LoopbackSocket", "Processes"]

ENGINES: dict[str, Callable[[int | None], Any]] = {
    "batched": Batched,
    "inline": lambda workers: Inline(),
    "processes": Processes,
    "socket": LoopbackSocket,
}
