"""The engines by the names that configurations use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["ENGINES"]


def _make_batched(workers: int | None) -> Any:
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
    "batched": _make_batched,
    "inline": _inline,
    "processes": _processes,
    "ray": _ray,
    "socket": _socket,
}
"""Map the name that configurations use to the function that makes the engine with a number of workers."""
