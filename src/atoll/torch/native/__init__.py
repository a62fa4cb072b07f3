"""Native code: traced programs of small models as generated, compiled and cached C++.

The rest of the room goes through one seam, ``compile(graph, layout)``, which answers with something to call or with ``None``: then PyTorch's own
programs run, with the same results to rounding. ``ATOLL_NATIVE=0`` in the environment turns all of it off (`enabled`).
"""

from .code import Beside, MemoryLayout, compile, enabled, simple_graph, small_enough  # noqa: A004 - what it does
from .image_layers import count_layers
from .program import NativeColumn

__all__ = [
    "Beside",
    "MemoryLayout",
    "NativeColumn",
    "compile",
    "count_layers",
    "enabled",
    "simple_graph",
    "small_enough",
]
