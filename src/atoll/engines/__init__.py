"""Engines, which run tasks: inline, batched, processes, a loopback socket and a Ray cluster. They know tasks, never algorithms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .batched import Batched
    from .inline import Inline
    from .processes import LoopbackSocket, Processes
    from .ray import Ray
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "batched": ("Batched",),
            "inline": ("Inline",),
            "processes": ("LoopbackSocket", "Processes"),
            "ray": ("Ray",),
        },
    )

__all__ = ["ENGINES", "Batched", "Inline", "LoopbackSocket", "Processes", "Ray"]


def _batched(workers: int | None) -> Any:
    from .batched import Batched

    return Batched(workers)


def _inline(workers: int | None) -> Any:
    from .inline import Inline

    del workers
    return Inline()


def _processes(workers: int | None) -> Any:
    from .processes import Processes

    return Processes(workers)


def _ray(workers: int | None) -> Any:
    from .ray import Ray

    return Ray(workers)


def _socket(workers: int | None) -> Any:
    from .processes import LoopbackSocket

    return LoopbackSocket(workers)


ENGINES: dict[str, Callable[[int | None], Any]] = {
    "batched": _batched,
    "inline": _inline,
    "processes": _processes,
    "ray": _ray,
    "socket": _socket,
}
"""Map the name that configurations use to the function that makes the engine with a number of workers."""
