"""Transforms of a search direction: the building blocks of first-order methods, one idea per file.

At a client, a transform acts on the direction of every local step. At the server, it acts on the mean update, taken as a gradient. See
``atoll.learn.algorithms.Accelerated`` and ``ServerOptimised``.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .adaptive import AdaGrad, Adam, RMSProp, Yogi
    from .base import Transform
    from .clip import ClipNorm
    from .momentum import Momentum
    from .pull import Proximal, WeightDecay
else:
    from atoll.core.lazy import lazy

    __getattr__, __dir__ = lazy(
        __name__,
        {
            "adaptive": ("AdaGrad", "Adam", "RMSProp", "Yogi"),
            "base": ("Transform",),
            "clip": ("ClipNorm",),
            "momentum": ("Momentum",),
            "pull": ("Proximal", "WeightDecay"),
        },
    )

__all__ = ["AdaGrad", "Adam", "ClipNorm", "Momentum", "Proximal", "RMSProp", "Transform", "WeightDecay", "Yogi"]
