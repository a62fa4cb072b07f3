"""Engines, which run tasks: inline, batched, processes, a loopback socket and a Ray cluster. They know tasks, never algorithms."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .batched import Batched
    from .inline import Inline
    from .names import ENGINES
    from .processes import LoopbackSocket, Processes
    from .ray import Ray
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "batched": ("Batched",),
            "inline": ("Inline",),
            "names": ("ENGINES",),
            "processes": ("LoopbackSocket", "Processes"),
            "ray": ("Ray",),
        },
    )

__all__ = ["ENGINES", "Batched", "Inline", "LoopbackSocket", "Processes", "Ray"]
