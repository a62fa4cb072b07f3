"""Engines by name, as a configuration says them."""

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
"""Name -> what makes one with so many workers."""
