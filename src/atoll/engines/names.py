"""Engines by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .batched import Batched
from .inline import Inline
from .processes import LoopbackSocket, Processes
from .ray import Ray

__all__ = ["ENGINES"]

ENGINES: dict[str, Callable[[int | None], Any]] = {
    "batched": Batched,
    "inline": lambda workers: Inline(),
    "processes": Processes,
    "ray": Ray,
    "socket": LoopbackSocket,
}
"""Map a name to the function that makes the engine with a number of workers."""
