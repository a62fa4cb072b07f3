"""Transforms of a search direction: the parts from which first-order methods are put together, one idea a file.

At a client, a transform acts on the direction of every local step; at the server, on the mean update taken as a gradient. See
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
